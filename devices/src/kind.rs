//! Adapters by name.

use std::fmt;

use crate::scsi::Address;

/// A storage adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterKind {
    /// VMware's paravirtual SCSI adapter.
    #[cfg(feature = "pvscsi")]
    Pvscsi,
    /// LSI Logic LSI53C1030, parallel SCSI.
    #[cfg(feature = "lsi")]
    Lsi,
    /// LSI Logic SAS1068.
    #[cfg(feature = "lsi")]
    LsiSas,
    /// IDE function of the PIIX4 at the ports of a PC/AT, with ISA interrupts: four ATA disks. One in a machine.
    #[cfg(feature = "ide")]
    Ide,
    /// The same with ports where base address registers say, and INTx.
    #[cfg(feature = "ide")]
    IdeNative,
    /// BusLogic BT-958, parallel SCSI.
    #[cfg(feature = "buslogic")]
    BusLogic,
    /// Virtio block device: one disk.
    #[cfg(feature = "virtio")]
    VirtioBlk,
    /// Virtio SCSI host device.
    #[cfg(feature = "virtio")]
    VirtioScsi,
    /// Hyper-V's synthetic SCSI controller, on a VMBus.
    #[cfg(feature = "vmbus")]
    Storvsc,
}

/// What an adapter is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BusKind {
    /// It is a PCI function: [`build`](crate::build).
    Pci,
    /// It is a device of a VMBus: `build_vmbus`.
    Vmbus,
}

impl AdapterKind {
    /// Its name on command lines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            #[cfg(feature = "pvscsi")]
            Self::Pvscsi => "pvscsi",
            #[cfg(feature = "lsi")]
            Self::Lsi => "lsi",
            #[cfg(feature = "lsi")]
            Self::LsiSas => "lsi-sas",
            #[cfg(feature = "ide")]
            Self::Ide => "ide",
            #[cfg(feature = "ide")]
            Self::IdeNative => "ide-native",
            #[cfg(feature = "buslogic")]
            Self::BusLogic => "buslogic",
            #[cfg(feature = "virtio")]
            Self::VirtioBlk => "virtio-blk",
            #[cfg(feature = "virtio")]
            Self::VirtioScsi => "virtio-scsi",
            #[cfg(feature = "vmbus")]
            Self::Storvsc => "storvsc",
        }
    }

    /// What it is attached to.
    #[must_use]
    pub const fn bus(self) -> BusKind {
        match self {
            #[cfg(feature = "vmbus")]
            Self::Storvsc => BusKind::Vmbus,
            #[allow(unreachable_patterns, reason = "there may be no other")]
            _ => BusKind::Pci,
        }
    }

    /// The serial number of a unit that has no other: adapter and target, and the logical unit number if it is not 0.
    pub(crate) fn serial_of_place(self, address: Address) -> String {
        match address {
            Address { target, lun: 0 } => format!("{self}:{target}"),
            Address { target, lun } => format!("{self}:{target}:{lun}"),
        }
    }
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
