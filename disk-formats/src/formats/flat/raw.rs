//! Raw images: the content of the disk is the content of the file.

use std::path::Path;
use std::sync::Arc;

use crate::disk::info::{Kind, SectorSize};
use crate::error::OpenError;
use crate::formats::file_info::{check_shrink, file_info, whole_sectors};
use crate::formats::flat::Flat;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;

/// Raw files.
#[derive(Debug)]
pub enum Raw {}

impl Raw {
    /// Open a raw image. If direct I/O to its storage needs units of 4,096 bytes, the disk has logical sectors of 4,096
    /// bytes.
    ///
    /// # Errors
    /// As [`BackingFile::open`]; [`OpenError::Invalid`] if the size is not whole sectors, at least one.
    pub fn open(path: &Path, access: Access) -> Result<Flat, OpenError> {
        let file = BackingFile::open(path, access)?;
        if file.device().is_some() {
            return Err(OpenError::Invalid {
                path: path.into(),
                field: "type of file",
                value: "a block device".into(),
                expected: "a regular file (format passthrough opens devices)".into(),
            });
        }
        let sector = match file.direct() {
            None => SectorSize::B512,
            Some(direct) => direct_sector(path, direct.offset)?,
        };
        let size = file.size();
        whole_sectors(path, size, sector)?;
        let info = file_info(&file, Kind { format: "raw", subformat: None }, size, sector);
        Ok(Flat::whole(info, Arc::new(file)))
    }

    /// Create a sparse raw image of `size` bytes, which must not exist yet.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] for a size that is not whole sectors; [`OpenError::Os`] if the host refuses.
    pub fn create(path: &Path, size: u64) -> Result<(), OpenError> {
        whole_sectors(path, size, SectorSize::B512)?;
        BackingFile::create_image(path, size, |_| Ok(()))
    }

    /// Resize a raw image. Growing adds zeros. Shrinking needs `shrink`, and cuts the tail off with its data.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] for a size that is not whole sectors; [`OpenError::Unsupported`] if shrinking is not
    /// allowed; [`OpenError::Os`] if the host refuses.
    pub fn resize(path: &Path, size: u64, shrink: bool) -> Result<(), OpenError> {
        whole_sectors(path, size, SectorSize::B512)?;
        let file = BackingFile::open(path, Access::default())?;
        check_shrink(path, file.size(), size, shrink)?;
        let resized = file.set_size(size).and_then(|()| Ok(file.sync()?));
        resized.map_err(|source| OpenError::Os { path: path.into(), action: "cannot resize", source })
    }
}

fn direct_sector(path: &Path, alignment: u32) -> Result<SectorSize, OpenError> {
    SectorSize::from_bytes(alignment.max(512)).ok_or_else(|| OpenError::Unsupported {
        path: path.into(),
        reason: format!(
            "direct I/O needs {alignment} bytes at a time here; guests know sectors of 512 and 4096"
        ),
    })
}
