//! A file or block device behind a format.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::IoError;

/// An open file, how it was opened, and what direct I/O demands of it.
#[derive(Debug)]
pub struct BackingFile {
    path: PathBuf,
    file: File,
    writable: bool,
}

impl BackingFile {
    /// The path, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether it was opened for writing.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Make its data, and the metadata needed to find them, durable (fdatasync).
    ///
    /// # Errors
    /// The host's error.
    pub fn sync(&self) -> Result<(), IoError> {
        rustix::fs::fdatasync(&self.file).map_err(|errno: Errno| errno.into())
    }
}
