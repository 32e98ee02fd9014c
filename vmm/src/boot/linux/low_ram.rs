//! The RAM into which a kernel may be loaded.

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::error::LinuxError;
use super::input::Input;
use crate::layout::{LOW_RAM_END, LOW_RAM_RESERVED};
use crate::memory::GuestMemory;

/// Kernels are above the first 1 MiB, which firmware and loader use.
const LOWEST: u64 = 1 << 20;

/// RAM from address 0 up to the hole.
#[derive(Clone, Copy)]
pub(super) struct LowRam {
    /// First address after the RAM.
    pub(super) end: u64,
}

impl LowRam {
    pub(super) fn of(memory: &GuestMemory) -> Self {
        Self { end: memory.find_region(GuestAddress(0)).map_or(0, |region| region.len()) }
    }

    pub(super) fn has_space_for_tables(self) -> Result<(), LinuxError> {
        let needed = LOW_RAM_RESERVED.end;
        if self.end < needed {
            let what = "firmware's tables".to_owned();
            return Err(LinuxError::MemoryTooSmall { what, needed, have: self.end });
        }
        Ok(())
    }

    /// Check that a part of a kernel fits into the RAM.
    pub(super) fn check(self, file: &Input, start: u64, len: u64) -> Result<(), LinuxError> {
        match start.checked_add(len) {
            Some(end) if start >= LOWEST && end <= LOW_RAM_END => {
                if end > self.end {
                    let what = file.path.display().to_string();
                    return Err(LinuxError::MemoryTooSmall { what, needed: end, have: self.end });
                }
                Ok(())
            }
            _ => Err(file.no_kernel(format!(
                "wants to lie at {start:#x}, {len:#x} bytes: expected between {LOWEST:#x} and {LOW_RAM_END:#x}"
            ))),
        }
    }
}
