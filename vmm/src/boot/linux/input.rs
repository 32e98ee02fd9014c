//! A file to load into guest memory, and the RAM that may get it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::error::LinuxError;
use crate::layout::{LOW_RAM_END, LOW_RAM_RESERVED};
use crate::memory::GuestMemory;

/// A file to load.
pub(super) struct Input {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) len: u64,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, LinuxError> {
        let error = |source| LinuxError::Read { path: path.to_owned(), source };
        // Checked before opening, because opening a pipe would block.
        let metadata = fs::metadata(path).map_err(error)?;
        if !metadata.is_file() {
            return Err(error(io::Error::new(io::ErrorKind::InvalidInput, "no regular file")));
        }
        let file = File::open(path).map_err(error)?;
        Ok(Self { path: path.to_owned(), file, len: metadata.len() })
    }

    pub(super) fn no_kernel(&self, why: impl Into<String>) -> LinuxError {
        LinuxError::NoKernel { path: self.path.clone(), why: why.into() }
    }

    pub(super) fn unreadable(&self, error: impl fmt::Display) -> LinuxError {
        LinuxError::Read { path: self.path.clone(), source: io::Error::other(error.to_string()) }
    }
}

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
