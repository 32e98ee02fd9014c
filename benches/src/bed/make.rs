//! Files of a size, and disks with data.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use facts::disk::OpenDisk;

use super::error::BedError;
use super::fill;

/// Write a disk with random data, and read it.
pub(super) fn filled(subject: &OpenDisk) -> Result<(), BedError> {
    fill::fill(subject.disk.as_ref()).map_err(|source| fill_error(subject, source))
}

/// The error of a disk that cannot be filled.
pub(super) fn fill_error(subject: &OpenDisk, source: io::Error) -> BedError {
    BedError::Fill { disk: subject.name(), source }
}

/// An empty file of `capacity` bytes.
pub(crate) fn sized(path: PathBuf, capacity: u64) -> Result<PathBuf, BedError> {
    match File::create_new(&path).and_then(|file| file.set_len(capacity)) {
        Ok(()) => Ok(path),
        Err(source) => Err(BedError::Os { path, action: "cannot create", source }),
    }
}
