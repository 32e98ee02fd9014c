//! The capabilities that locate the register structures, and access to the structures through configuration space (VIRTIO 1.2, 4.1.4).

use super::super::spec::*;
use super::layout::{
    BAR, BAR_SIZE, DEVICE_CFG, DEVICE_CFG_SIZE, ISR, NOTIFY, NOTIFY_MULTIPLIER, NOTIFY_SIZE,
};
use crate::pci::spec::CAP_ID_VENDOR;
use crate::pci::{Function, LayoutError};

/// The capability of access through configuration space (4.1.4.9).
pub(super) struct ConfigAccess {
    /// Its offset in configuration space.
    at: u16,
}

/// A capability without the two bytes of its header.
fn capability(cfg_type: u8, offset: u64, length: u64, more: &[u8]) -> Vec<u8> {
    let mut bytes = vec![(VIRTIO_PCI_CAP_SIZE + more.len()) as u8, cfg_type, BAR, 0, 0, 0];
    bytes.extend((offset as u32).to_le_bytes());
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend(more);
    bytes
}

/// Give the function the capabilities of a virtio device.
pub(super) fn add(function: Function) -> Result<(Function, ConfigAccess), LayoutError> {
    let fixed = |function: Function, bytes: Vec<u8>| {
        let writable = vec![0; bytes.len()];
        function.with_capability(CAP_ID_VENDOR, &bytes, &writable)
    };
    let multiplier = (NOTIFY_MULTIPLIER as u32).to_le_bytes();
    let (function, _) = fixed(function, capability(VIRTIO_PCI_CAP_COMMON_CFG, 0, COMMON_CFG_SIZE, &[]))?;
    let (function, _) =
        fixed(function, capability(VIRTIO_PCI_CAP_NOTIFY_CFG, NOTIFY, NOTIFY_SIZE, &multiplier))?;
    let (function, _) = fixed(function, capability(VIRTIO_PCI_CAP_ISR_CFG, ISR, 1, &[]))?;
    let (function, _) =
        fixed(function, capability(VIRTIO_PCI_CAP_DEVICE_CFG, DEVICE_CFG, DEVICE_CFG_SIZE, &[]))?;
    let bytes = capability(VIRTIO_PCI_CAP_PCI_CFG, 0, 0, &[0; 4]);
    // The guest writes BAR number, offset and length. The data field stores nothing: accesses to it are forwarded to the BAR.
    let mut writable = vec![0; bytes.len()];
    for (at, mask) in (2..).zip(&mut writable) {
        let place = VIRTIO_PCI_CAP_OFFSET..VIRTIO_PCI_CFG_DATA;
        *mask = if at == VIRTIO_PCI_CAP_BAR || place.contains(&at) { 0xff } else { 0 };
    }
    let (function, at) = function.with_capability(CAP_ID_VENDOR, &bytes, &writable)?;
    Ok((function, ConfigAccess { at }))
}

impl ConfigAccess {
    /// BAR and offset that an access to the capability's data field is forwarded to. The access must have the length in the
    /// capability and be aligned; others have no effect.
    pub(super) fn window(&self, function: &Function, offset: u16, len: usize) -> Option<(u8, u64)> {
        let at = self.at;
        if offset != at + VIRTIO_PCI_CFG_DATA {
            return None;
        }
        let mut bar = [0; 1];
        function.config_read(at + VIRTIO_PCI_CAP_BAR, &mut bar);
        let dword = |field| {
            let mut bytes = [0; 4];
            function.config_read(at + field, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        let (offset, length) = (dword(VIRTIO_PCI_CAP_OFFSET), dword(VIRTIO_PCI_CAP_LENGTH));
        let good = length as usize == len && offset.is_multiple_of(length) && u64::from(offset) < BAR_SIZE;
        good.then_some((bar[0], offset.into()))
    }
}
