//! The description of an image file, for users, and of a disk in a file of the host, for guests.

use std::path::{Path, PathBuf};

use crate::contract::error::{BadField, OpenError};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::host::backing::BackingFile;

/// Which images of a chain to describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// The image alone. Its parents need not exist.
    Image,
    /// The image and its parents, from the top down.
    Chain,
}

/// Description of an image file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageInfo {
    /// The file.
    pub path: PathBuf,
    /// `fixed`, `dynamic` or `differencing`; `raw` for a raw parent of a VHD.
    pub subformat: &'static str,
    /// Virtual size in bytes.
    pub size: u64,
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Size of a block in bytes; `None` for a disk without blocks.
    pub block_size: Option<u64>,
    /// Number of blocks in the file, and number of blocks of the virtual size; `None` for a disk without blocks.
    pub blocks: Option<(u64, u64)>,
    /// Smallest unit that guests address.
    pub logical_sector: SectorSize,
    /// Physical sector size in bytes that guests see.
    pub physical_sector: u32,
    /// Identity of the disk in hexadecimal.
    pub id: String,
    /// The program that created it. Unprintable characters are replaced by `.`.
    pub creator: String,
    /// The parent; `None` if it has none.
    pub parent: Option<ParentInfo>,
    /// Fields that only this format has.
    pub format: FormatInfo,
}

/// What a child has recorded about its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParentInfo {
    /// Identity of the parent (VHD) or of its data (VHDX), in hexadecimal.
    pub id: String,
    /// Paths that are tried, in this order.
    pub candidates: Vec<PathBuf>,
}

/// Fields that only one format has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatInfo {
    /// A VHD.
    #[non_exhaustive]
    Vhd {
        /// Seconds since 1970.
        time_stamp: u64,
        /// The trailing footer is missing or damaged, and its copy at the start of the file was used.
        footer_from_copy: bool,
    },
    /// A VHDX.
    #[non_exhaustive]
    Vhdx {
        /// Identity of its data, which children record; in hexadecimal.
        data_write_guid: String,
        /// Number of log entries to replay; above zero, the file was not closed.
        log_entries: usize,
    },
}

/// Physical sector size that guests see for a file: the write unit of common media.
const FILE_PHYSICAL_SECTOR: u32 = 4096;

/// Refuse a size that is not whole sectors.
pub(crate) fn whole_sectors(path: &Path, size: u64, sector: SectorSize) -> Result<(), OpenError> {
    let bytes = u64::from(sector.bytes());
    if size >= bytes && size.is_multiple_of(bytes) {
        return Ok(());
    }
    Err(BadField::new(
        "size",
        format!("{size} bytes"),
        format!("whole sectors of {bytes} bytes, at least one"),
    )
    .of(path))
}

/// Refuse to shrink an image from `old` to `new` bytes, unless `shrink` allows it.
pub(crate) fn check_shrink(path: &Path, old: u64, new: u64, shrink: bool) -> Result<(), OpenError> {
    if new >= old || shrink {
        return Ok(());
    }
    let reason = format!("it has {old} bytes: to make it smaller, allow it (--shrink)");
    Err(OpenError::unsupported(path, reason))
}

/// The description of a disk of `capacity` bytes whose top image is `file`.
pub(crate) fn file_info(
    file: &BackingFile,
    kind: Kind,
    capacity: u64,
    logical_sector: SectorSize,
) -> DiskInfo {
    let granularity = u64::from(file.block_size().max(logical_sector.bytes()).next_power_of_two());
    DiskInfo {
        kind,
        capacity,
        logical_sector,
        physical_sector: FILE_PHYSICAL_SECTOR,
        read_only: !file.writable(),
        volatile_cache: file.writable(),
        discard: file.can_discard().then_some(DiscardLimits { granularity, reads_zero: true }),
        buffer_alignment: file.direct().map_or(1, |direct| direct.memory),
    }
}
