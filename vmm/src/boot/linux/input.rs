//! A file to load into guest memory.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::error::LinuxError;

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
