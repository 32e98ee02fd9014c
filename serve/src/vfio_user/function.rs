//! The PCI function's regions: accesses of any length at any offset are split into pieces that the device accepts.

use paradisk_devices::pci::spec::{
    CAP_ID_MSI, CAP_ID_MSIX, CAPABILITIES_POINTER, CAPABILITIES_START, CONFIG_SIZE, INTERRUPT_PIN,
    MSI_MULTIPLE_CAPABLE_SHIFT, MSIX_CONTROL, MSIX_ENTRY_SIZE, MSIX_MAX_VECTORS, MSIX_TABLE, MsixControl,
};
use paradisk_devices::{AccessKind, Bar, PciDevice, Time};
use rustix::io::Errno;

use super::spec::CONFIG_REGION;

/// Bytes of a function's configuration space in PCI Express.
const EXTENDED_CONFIG_SIZE: u64 = 4096;

/// Offsets of a function's MSI-X capability and table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Msix {
    capability: u16,
    bar: u8,
    table: u64,
    pub(super) vectors: u16,
}

/// How a doorbell was rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ring {
    /// The client requests no reply, and its guest runs on.
    Posted,
    /// The client's virtual CPU waits for the reply.
    Blocking,
}

/// A device, and its constant properties.
pub(super) struct Function {
    pub(super) device: Box<dyn PciDevice>,
    pub(super) bars: Vec<Bar>,
    pub(super) intx: bool,
    pub(super) msi_vectors: u16,
    pub(super) msix: Option<Msix>,
    pub(super) msix_enabled: bool,
    /// The client writes to the MSI-X table. Many clients keep the table to themselves, as in VFIO: then the device may
    /// use each vector that has an eventfd.
    client_has_table: bool,
    /// For each doorbell: rung by a message, and not yet forwarded to the device.
    rung: Vec<Option<Ring>>,
    any_rung: bool,
    /// A register was written that gives the device work, and the device was not called yet.
    submitted: bool,
    /// The device's descriptors may have changed.
    pub(super) stale: bool,
}

impl Function {
    pub(super) fn new(device: Box<dyn PciDevice>) -> Self {
        let mut function = Self {
            bars: device.bars(),
            rung: vec![None; device.doorbells().len()],
            device,
            intx: false,
            msi_vectors: 0,
            msix: None,
            msix_enabled: false,
            client_has_table: false,
            any_rung: false,
            submitted: false,
            stale: true,
        };
        function.intx = function.config_u8(INTERRUPT_PIN as u16) != 0;
        function.find_capabilities();
        function
    }

    fn config_u8(&mut self, at: u16) -> u8 {
        let mut byte = [0];
        self.device.config_read(at, &mut byte);
        byte[0]
    }

    fn config_u32(&mut self, at: u16) -> u32 {
        let mut bytes = [0; 4];
        self.device.config_read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn find_capabilities(&mut self) {
        let mut at = u16::from(self.config_u8(CAPABILITIES_POINTER as u16));
        for _ in 0..CONFIG_SIZE / 4 {
            if usize::from(at) < CAPABILITIES_START {
                return;
            }
            let header = self.config_u32(at);
            let control = header >> 16;
            match header as u8 {
                CAP_ID_MSI => self.msi_vectors = 1 << (control >> MSI_MULTIPLE_CAPABLE_SHIFT & 7),
                CAP_ID_MSIX => {
                    let table = self.config_u32(at + MSIX_TABLE as u16);
                    self.msix = Some(Msix {
                        capability: at,
                        bar: table as u8 & 7,
                        table: u64::from(table & !7),
                        vectors: (control as u16 & (MSIX_MAX_VECTORS - 1)) + 1,
                    });
                }
                _ => {}
            }
            at = u16::from((header >> 8) as u8);
        }
    }

    /// Size of a region in bytes.
    pub(super) fn region_size(&self, region: u32) -> u64 {
        if region == CONFIG_REGION {
            return CONFIG_SIZE as u64;
        }
        self.bars.iter().find(|bar| u32::from(bar.index) == region).map_or(0, |bar| bar.size)
    }

    /// Configuration space may be accessed up to the size of PCI Express, although the function has less: guests access
    /// it, and some clients wait for ever after an error (the crate `vfio_user`).
    fn check(&self, region: u32, offset: u64, len: usize) -> Result<(), Errno> {
        let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
        let size = if region == CONFIG_REGION { EXTENDED_CONFIG_SIZE } else { self.region_size(region) };
        if len == 0 || end > size {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Read from a region.
    ///
    /// # Errors
    /// `EINVAL` outside the region.
    pub(super) fn read(&mut self, region: u32, offset: u64, data: &mut [u8], now: Time) -> Result<(), Errno> {
        self.check(region, offset, data.len())?;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at_mut(piece(region, at, rest.len()));
            rest = after;
            if region == CONFIG_REGION {
                self.device.config_read(at as u16, piece);
            } else {
                self.stale |= self.device.access_kind(region as u8, at, None) == AccessKind::Command;
                self.device.bar_read(region as u8, at, piece, now);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Write to a region. `ring` is the kind of a doorbell's write.
    ///
    /// # Errors
    /// `EINVAL` outside the region.
    pub(super) fn write(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
        ring: Ring,
        now: Time,
    ) -> Result<(), Errno> {
        self.check(region, offset, data.len())?;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(piece(region, at, rest.len()));
            rest = after;
            if region == CONFIG_REGION {
                self.device.config_write(at as u16, piece);
                self.after_config_write();
            } else {
                self.bar_write(region as u8, at, piece, ring, now);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn after_config_write(&mut self) {
        self.stale = true;
        self.msix_enabled = self.msix.is_some_and(|msix| {
            let mut control = [0; 2];
            self.device.config_read(msix.capability + MSIX_CONTROL as u16, &mut control);
            MsixControl::from_bits_truncate(u16::from_le_bytes(control)).contains(MsixControl::ENABLE)
        });
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], ring: Ring, now: Time) {
        let rung =
            self.device.doorbells().iter().position(|bell| {
                bell.bar == bar && bell.offset == offset && usize::from(bell.len) == data.len()
            });
        if let Some(rung) = rung.and_then(|index| self.rung.get_mut(index)) {
            *rung = (*rung).max(Some(ring));
            self.any_rung = true;
            return;
        }
        self.client_has_table |= self.msix.is_some_and(|msix| {
            let size = u64::from(msix.vectors) * MSIX_ENTRY_SIZE;
            msix.bar == bar && offset.checked_sub(msix.table).is_some_and(|at| at < size)
        });
        match self.device.access_kind(bar, offset, Some(data)) {
            AccessKind::Register => {}
            AccessKind::Submission => self.submitted = true,
            AccessKind::Command => self.stale = true,
        }
        self.device.bar_write(bar, offset, data, now);
    }

    /// Forward doorbells and submissions since the last call to the device.
    pub(super) fn deliver_writes(&mut self, now: Time) {
        if std::mem::take(&mut self.any_rung) {
            for (index, rung) in self.rung.iter_mut().enumerate() {
                match rung.take() {
                    Some(Ring::Posted) => self.device.on_doorbell(index, now),
                    Some(Ring::Blocking) => self.device.on_blocking_doorbell(index, now),
                    None => {}
                }
            }
        }
        if std::mem::take(&mut self.submitted) {
            self.device.on_completions(now);
        }
    }

    /// Mask or unmask a vector of MSI-X in the table, for a client that keeps the table to itself.
    pub(super) fn enable_vector(&mut self, vector: u16, enable: bool, now: Time) {
        let Some(msix) = self.msix.filter(|_| !self.client_has_table) else { return };
        let control = msix.table + u64::from(vector) * MSIX_ENTRY_SIZE + 12;
        self.device.bar_write(msix.bar, control, &u32::from(!enable).to_le_bytes(), now);
    }

    /// Reset to the state after power-on.
    pub(super) fn reset(&mut self, now: Time) {
        self.rung.fill(None);
        (self.any_rung, self.submitted, self.client_has_table) = (false, false, false);
        self.device.reset(now);
        self.after_config_write();
    }
}

/// Bytes of the next piece of an access: an aligned power of two, up to the largest register of the space.
fn piece(region: u32, at: u64, len: usize) -> usize {
    let widest = if region == CONFIG_REGION || len != 8 { 4 } else { 8 };
    [8, 4, 2]
        .into_iter()
        .find(|&size| size <= widest && size <= len && at.is_multiple_of(size as u64))
        .unwrap_or(1)
}
