//! Disks whose bytes lie in one file in order, from its start: raw files, block devices, fixed VHDs.

use std::sync::Arc;

use crate::{BackingFile, DiskInfo, Extents, Format, IoError, Mapping, Place};

/// One run of one file, as a format.
#[derive(Debug)]
pub struct Flat {
    info: DiskInfo,
    files: [Arc<BackingFile>; 1],
}

impl Flat {
    /// The first [`DiskInfo::capacity`] bytes of a file.
    pub(crate) fn new(info: DiskInfo, file: Arc<BackingFile>) -> Self {
        Self { info, files: [file] }
    }
}

impl Format for Flat {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        extents.push(len, Place::File { file: 0, offset });
        Ok(Mapping::Ready)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.map_read(offset, len, extents)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.files[0].discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.files[0].write_zeroes(offset, len, may_unmap)
    }
}
