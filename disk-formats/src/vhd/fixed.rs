//! A fixed VHD: its footer is read and checked when it is opened; afterwards it is a run of a file.

use std::sync::Arc;

use super::chain::Image;
use crate::backing::BackingFile;
use crate::raw::file_info;
use crate::{DiskInfo, Extents, Format, IoError, Kind, Mapping, Place, SectorSize};

/// A fixed VHD as a format.
#[derive(Debug)]
pub struct FixedVhd {
    info: DiskInfo,
    files: [Arc<BackingFile>; 1],
}

impl FixedVhd {
    pub(super) fn new(image: Image) -> Self {
        let kind = Kind { format: "vhd", subformat: Some("fixed") };
        let info = file_info(&image.file, kind, image.found.size, SectorSize::B512);
        Self { info, files: [image.file] }
    }
}

impl Format for FixedVhd {
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
