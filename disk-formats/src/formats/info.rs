//! What an image says of itself.

use std::path::PathBuf;

use crate::disk::info::SectorSize;

/// Which images of a chain are described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// The image alone. Its parents need not exist.
    Image,
    /// The image and its parents, from the top down.
    Chain,
}

/// An image file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageInfo {
    /// The file.
    pub path: PathBuf,
    /// `fixed`, `dynamic` or `differencing`.
    pub subformat: &'static str,
    /// Virtual size in bytes.
    pub size: u64,
    /// Bytes of the file.
    pub file_size: u64,
    /// Bytes of a block; `None` of a disk without blocks.
    pub block_size: Option<u64>,
    /// Blocks with data in the file, and blocks of the virtual size; `None` of a disk without blocks.
    pub blocks: Option<(u64, u64)>,
    /// Smallest unit that guests address.
    pub logical_sector: SectorSize,
    /// Bytes of a physical sector, as guests see it.
    pub physical_sector: u32,
    /// Identity of the disk in hexadecimal.
    pub id: String,
    /// The program that made it. `.` stands for what cannot be printed.
    pub creator: String,
    /// The parent; `None` without one.
    pub parent: Option<ParentInfo>,
    /// What only images of its format say.
    pub format: FormatInfo,
}

/// What a child has noted of its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParentInfo {
    /// Identity of the parent (a VHD) or of its content (a VHDX), in hexadecimal.
    pub id: String,
    /// The files that are tried, in this order.
    pub candidates: Vec<PathBuf>,
}

/// What only images of one format say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatInfo {
    /// Of a VHD.
    #[non_exhaustive]
    Vhd {
        /// Seconds since 1970.
        time_stamp: u64,
        /// The trailing footer is missing or damaged: the copy was used.
        footer_from_copy: bool,
    },
    /// Of a VHDX.
    #[non_exhaustive]
    Vhdx {
        /// Identity of its content, which children note; in hexadecimal.
        data_write_guid: String,
        /// Entries of the log that are to be replayed: the file was not closed.
        log_entries: usize,
    },
}
