//! The allocation status of a range (`base:allocation`).

use std::time::Duration;

use paradisk_disk_formats::{Allocation, AllocationLimits, Disk, IoError, Status, allocations};

use super::spec::{Descriptor, NBD_STATE_HOLE, NBD_STATE_ZERO};

/// Descriptors of a reply at the most.
const MOST: usize = 4096;
/// A reply ends after so much time spent on look-ups.
const LONGEST: Duration = Duration::from_millis(20);

/// The status of a range that lies inside the disk, in pieces. If [`LONGEST`] or [`MOST`] is reached, the pieces end before the range does.
/// With `one`, only the first piece.
///
/// # Errors
/// The disk's, where not even the status at the start is known.
pub(super) fn status(disk: &dyn Disk, offset: u64, len: u32, one: bool) -> Result<Vec<Descriptor>, IoError> {
    let pieces = if one { 1 } else { MOST };
    let limits = AllocationLimits { pieces, look_ups: usize::MAX, window: u64::MAX, time: LONGEST };
    // The disk has a status for sectors: those that cover the range.
    let sector = u64::from(disk.info().logical_sector.bytes());
    let (mut before, mut left) = (offset % sector, u64::from(len));
    let covered = (before + left).next_multiple_of(sector);
    let found = allocations(disk, offset - before, covered, limits)?;
    let descriptor = |piece: Allocation| {
        let skipped = before.min(piece.len);
        let part = (piece.len - skipped).min(left);
        (before, left) = (before - skipped, left - part);
        let flags = match piece.status {
            Status::Mapped => 0,
            Status::Zeros => NBD_STATE_HOLE | NBD_STATE_ZERO,
        };
        // A piece is no longer than the range.
        (part > 0).then(|| Descriptor { len: (part as u32).into(), flags: flags.into() })
    };
    Ok(found.into_iter().filter_map(descriptor).collect())
}
