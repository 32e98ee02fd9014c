//! Raw images: the content of the disk is the content of the file.

use std::path::Path;
use std::sync::Arc;

use crate::contract::error::{BadField, OpenError};
use crate::contract::info::{Kind, SectorSize};
use crate::formats::flat::{Flat, Sectors};
use crate::formats::info::{check_shrink, file_info, whole_sectors};
use crate::formats::signature::gpt_sector;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;

/// Raw files.
#[derive(Debug)]
pub enum Raw {}

impl Raw {
    /// Open a raw image with the default sector sizes.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub fn open(path: &Path, access: Access) -> Result<Flat, OpenError> {
        Self::open_with(path, access, Sectors::default())
    }

    /// Open a raw image. A file that ends inside a sector is only read: the rest of the sector reads as zeros.
    ///
    /// # Errors
    /// As [`BackingFile::open`]; [`OpenError::Invalid`] if the file is empty, or to be written and does not consist of
    /// whole sectors.
    pub fn open_with(path: &Path, access: Access, sectors: Sectors) -> Result<Flat, OpenError> {
        let mut file = BackingFile::open(path, access)?;
        if file.device().is_some() {
            return Err(BadField::new(
                "type of file",
                "a block device",
                "a regular file (format passthrough opens devices)",
            )
            .of(path));
        }
        let size = file.size();
        let sector = match sectors.logical {
            Some(sector) => Some(sector),
            None => sector_of_gpt(path, &file)?,
        };
        let sector = sector.unwrap_or(SectorSize::B512);
        let bytes = u64::from(sector.bytes());
        let padded = !size.is_multiple_of(bytes);
        let capacity = size.checked_next_multiple_of(bytes).unwrap_or(size);
        if size == 0 || padded && !access.read_only {
            let remedy = match size {
                0 => String::new(),
                _ => format!(": open it read-only, or resize it to {capacity}"),
            };
            return Err(BadField::new(
                "size",
                format!("{size} bytes"),
                format!("whole sectors of {bytes} bytes, at least one{remedy}"),
            )
            .of(path));
        }
        if padded {
            file.use_page_cache()?;
        }
        let mut info = file_info(&file, Kind { format: "raw", subformat: None }, capacity, sector);
        info.physical_sector = sectors.physical(path, sector, info.physical_sector)?;
        Ok(Flat::whole(info, Arc::new(file)).padded(padded))
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
        let file = Self::open_to_resize(path, size, shrink)?;
        let resized = file.set_size(size).and_then(|()| Ok(file.sync()?));
        resized.map_err(OpenError::os(path, "cannot resize"))
    }

    /// Open the file of an image, and refuse what [`resize`](Self::resize) refuses.
    pub(crate) fn open_to_resize(path: &Path, size: u64, shrink: bool) -> Result<BackingFile, OpenError> {
        whole_sectors(path, size, SectorSize::B512)?;
        let file = BackingFile::open(path, Access::default())?;
        if let Some(sector) = sector_of_gpt(path, &file)? {
            whole_sectors(path, size, sector)?;
        }
        check_shrink(path, file.size(), size, shrink)?;
        Ok(file)
    }
}

/// The size of sectors in which the GPT of an image counts, if it has one.
fn sector_of_gpt(path: &Path, file: &BackingFile) -> Result<Option<SectorSize>, OpenError> {
    let found = gpt_sector(file.size(), |data, at| file.read_at(data, at));
    found.map_err(OpenError::os(path, "cannot read"))
}
