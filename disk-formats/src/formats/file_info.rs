//! The description of a disk in a file of the host, and the sizes that it can have.

use std::path::Path;

use crate::contract::error::{BadField, OpenError};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::host::backing::BackingFile;

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
