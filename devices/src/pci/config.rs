//! The 256 bytes of configuration space: their content, and the bits that the guest may change.

use super::spec::*;
use crate::device::{Bar, BarKind};

/// Identification of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Vendor ID.
    pub(crate) vendor: u16,
    /// Device ID.
    pub(crate) device: u16,
    /// Revision ID.
    pub(crate) revision: u8,
    /// Base class, sub-class, programming interface.
    pub(crate) class: [u8; 3],
    /// Subsystem vendor ID.
    pub(crate) subsystem_vendor: u16,
    /// Subsystem ID.
    pub(crate) subsystem: u16,
}

/// The layout of a function is impossible. This is an error of the device, never of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The base address register is in use, does not exist, or is the upper half of another one.
    #[error("base address register {0} is not free")]
    BarTaken(u8),
    /// The size of a base address register.
    #[error("base address register of {size:#x} bytes: expected a power of two, at least {minimum}")]
    BarSize {
        /// Requested bytes.
        size: u64,
        /// Bytes needed.
        minimum: u64,
    },
    /// The capabilities do not fit into configuration space.
    #[error("no free space for a capability of {0} bytes")]
    NoRoom(usize),
    /// The number of interrupt vectors.
    #[error("{count} interrupt vectors: expected {expected}")]
    Vectors {
        /// Requested vectors.
        count: u16,
        /// Possible numbers.
        expected: &'static str,
    },
    /// The table or the pending bits of MSI-X lie outside their base address register.
    #[error("MSI-X structures do not fit into base address register {0}")]
    MsixPlace(u8),
}

/// Current content of configuration space.
pub(super) struct ConfigSpace {
    bytes: [u8; CONFIG_SIZE],
    /// Bits that writes change.
    writable: [u8; CONFIG_SIZE],
    /// Content after reset.
    initial: [u8; CONFIG_SIZE],
    bars: [Option<(BarKind, u64)>; BAR_COUNT],
    /// Offset of the pointer to the next capability, and offset of that capability.
    last_pointer: usize,
    free: usize,
}

impl ConfigSpace {
    pub(super) fn new(identity: &Identity) -> Self {
        let mut space = Self {
            bytes: [0; CONFIG_SIZE],
            writable: [0; CONFIG_SIZE],
            initial: [0; CONFIG_SIZE],
            bars: [None; BAR_COUNT],
            last_pointer: CAPABILITIES_POINTER,
            free: CAPABILITIES_START,
        };
        let [base, sub, interface] = identity.class;
        space.put(VENDOR_ID, &identity.vendor.to_le_bytes());
        space.put(DEVICE_ID, &identity.device.to_le_bytes());
        space.put(REVISION_ID, &[identity.revision, interface, sub, base]);
        space.put(SUBSYSTEM_VENDOR_ID, &identity.subsystem_vendor.to_le_bytes());
        space.put(SUBSYSTEM_ID, &identity.subsystem.to_le_bytes());
        space.allow(COMMAND, &Command::all().bits().to_le_bytes());
        space.allow(CACHE_LINE_SIZE, &[0xff]);
        space.allow(LATENCY_TIMER, &[0xff]);
        space.allow(INTERRUPT_LINE, &[0xff]);
        space
    }

    /// Set the value after reset.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.initial[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    pub(super) fn add_bar(&mut self, index: u8, kind: BarKind, size: u64) -> Result<(), LayoutError> {
        let at = usize::from(index);
        let wide = kind == BarKind::Memory64;
        let minimum = if kind.is_io() { 4 } else { 16 };
        let maximum = if wide { 1 << 63 } else { 1 << 31 };
        if !size.is_power_of_two() || size < minimum || size > maximum {
            return Err(LayoutError::BarSize { size, minimum });
        }
        let free = |at: usize| {
            // Free, and not the upper half of the previous one.
            self.bars.get(at).is_some_and(Option::is_none)
                && !(at > 0 && matches!(self.bars[at - 1], Some((BarKind::Memory64, _))))
        };
        if !free(at) || (wide && !free(at + 1)) || kind == BarKind::FixedIo {
            return Err(LayoutError::BarTaken(index));
        }
        self.bars[at] = Some((kind, size));
        let register = BASE_ADDRESS_0 + 4 * at;
        let flags = match kind {
            BarKind::Io | BarKind::FixedIo => BAR_IO,
            BarKind::Memory32 => 0,
            BarKind::Memory64 => BAR_MEMORY_64,
        };
        self.put(register, &flags.to_le_bytes());
        let mask = !(size - 1);
        self.allow(register, &(mask as u32).to_le_bytes());
        if wide {
            self.allow(register + 4, &((mask >> 32) as u32).to_le_bytes());
        }
        Ok(())
    }

    /// Add a register of the device.
    pub(super) fn add_register(&mut self, at: usize, value: &[u8], writable: &[u8]) {
        self.put(at, value);
        self.allow(at, writable);
    }

    /// Append a capability; `bytes` and `writable` without the two bytes of the header. Returns its offset.
    pub(super) fn add_capability(
        &mut self,
        id: u8,
        bytes: &[u8],
        writable: &[u8],
    ) -> Result<usize, LayoutError> {
        let (at, size) = (self.free, bytes.len() + 2);
        let end = at + size;
        if end > CONFIG_SIZE {
            return Err(LayoutError::NoRoom(size));
        }
        self.put(self.last_pointer, &[at as u8]);
        self.put(at, &[id, 0]);
        self.put(at + 2, bytes);
        self.allow(at + 2, writable);
        self.put(STATUS, &Status::CAPABILITIES_LIST.bits().to_le_bytes());
        self.last_pointer = at + 1;
        self.free = end.next_multiple_of(4);
        Ok(at)
    }

    pub(super) fn set_pin(&mut self, pin: u8) {
        self.put(INTERRUPT_PIN, &[pin]);
    }

    /// Absent bytes (a conventional function's extended space) read as all ones.
    pub(super) fn read(&self, offset: u16, data: &mut [u8]) {
        for (at, byte) in (usize::from(offset)..).zip(data) {
            *byte = self.bytes.get(at).copied().unwrap_or(0xff);
        }
    }

    pub(super) fn write(&mut self, offset: u16, data: &[u8]) {
        for (at, &value) in (usize::from(offset)..CONFIG_SIZE).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | value & mask;
        }
    }

    pub(super) fn reset(&mut self) {
        self.bytes = self.initial;
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    pub(super) fn command(&self) -> Command {
        Command::from_bits_truncate(self.u16(COMMAND))
    }

    pub(super) fn set_interrupt_status(&mut self, wanted: bool) {
        let mut status = Status::from_bits_retain(self.u16(STATUS));
        status.set(Status::INTERRUPT, wanted);
        self.bytes[STATUS..STATUS + 2].copy_from_slice(&status.bits().to_le_bytes());
    }

    pub(super) fn bar_size(&self, index: u8) -> Option<u64> {
        self.bars.get(usize::from(index)).copied().flatten().map(|(_, size)| size)
    }

    pub(super) fn bars(&self) -> Vec<Bar> {
        let command = self.command();
        let bars =
            (0..).zip(&self.bars).filter_map(|(index, bar)| bar.map(|(kind, size)| (index, kind, size)));
        bars.map(|(index, kind, size)| {
            let register = BASE_ADDRESS_0 + 4 * usize::from(index);
            let low = u64::from(self.u32(register));
            let (address, enabled) = match kind {
                BarKind::Io | BarKind::FixedIo => (low & !3, Command::IO_SPACE),
                BarKind::Memory32 => (low & !15, Command::MEMORY_SPACE),
                BarKind::Memory64 => {
                    (low & !15 | u64::from(self.u32(register + 4)) << 32, Command::MEMORY_SPACE)
                }
            };
            Bar { index, kind, size, address: command.contains(enabled).then_some(address) }
        })
        .collect()
    }
}
