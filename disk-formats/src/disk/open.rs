//! Opening a disk by its path. The path may lead into another disk (a nested image).

use std::path::Path;
use std::sync::Arc;

use crate::contract::disk::Disk;
use crate::contract::error::OpenError;
use crate::contract::escaped::escaped;
use crate::disk::file_disk::FileDisk;
use crate::formats::name::FormatName;
use crate::formats::nested;
use crate::formats::open::{OpenOptions, open_file, probe_file};
use crate::map::format::Format;

impl FormatName {
    /// The format of the disk at `path`: see [`OpenOptions::format`].
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if name and content disagree; the host's error.
    pub fn probe(path: &Path) -> Result<Self, OpenError> {
        let inside = OpenOptions { read_only: true, ..OpenOptions::new(path) };
        let Some(opened) = nested::open(&inside) else { return probe_file(path) };
        let format = opened?.info().kind.format;
        format.parse().map_err(|_| OpenError::unsupported(path, format))
    }
}

impl OpenOptions {
    /// Open the disk.
    ///
    /// # Errors
    /// [`OpenError`] names the path and what is wrong.
    pub fn open(&self) -> Result<Arc<dyn Disk>, OpenError> {
        Ok(Arc::new(FileDisk::new(self.open_format()?)))
    }

    /// Open only the format, for tools that map ranges rather than transfer data.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_format(&self) -> Result<Arc<dyn Format>, OpenError> {
        let format = nested::open(self).unwrap_or_else(|| open_file(self))?;
        let info = format.info();
        tracing::info!(
            path = %escaped(&self.path),
            format = %info.kind.format,
            capacity = info.capacity,
            read_only = info.read_only,
            files = format.files().len(),
            "disk opened"
        );
        Ok(format)
    }
}

#[cfg(test)]
mod tests;
