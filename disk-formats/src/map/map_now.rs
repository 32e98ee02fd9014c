//! Mapping a range on a thread that may block.
//!
//! A format with a small map may evict what was just prepared while other threads use the disk. So a range that cannot
//! be mapped as a whole is mapped in parts, whose places are put together: a place that was found is valid until the
//! request completes, also if its mapping is evicted.

use crate::error::IoError;
use crate::formats::format::{Format, Mapping};
use crate::map::extent::Extents;

/// Attempts to prepare and map a range as a whole.
pub(crate) const WHOLE: u32 = 4;
/// The same, of a part.
const TRIES: u32 = 256;
/// Bytes of a part: any map can hold as many.
const PART: u64 = 64 << 10;

const UNMAPPED: IoError = IoError::Damaged("the range cannot be mapped");

/// Prepare a range and map it, for reading or (`writes`) for writing.
///
/// # Errors
/// Those of the format; [`IoError::Damaged`] where a part stays unknown.
pub(crate) fn map_now(
    format: &dyn Format,
    writes: bool,
    offset: u64,
    len: u64,
    extents: &mut Extents,
) -> Result<(), IoError> {
    if map_in(format, writes, offset, len, WHOLE, extents)? {
        return Ok(());
    }
    map_in_parts(format, writes, offset, len, extents)
}

/// Map the range in parts, without trying it as a whole first.
pub(crate) fn map_in_parts(
    format: &dyn Format,
    writes: bool,
    offset: u64,
    len: u64,
    extents: &mut Extents,
) -> Result<(), IoError> {
    extents.clear();
    let (mut at, end) = (offset, offset + len);
    let mut found = Extents::new();
    while at < end {
        let part = ((at / PART + 1) * PART).min(end) - at;
        if !map_in(format, writes, at, part, TRIES, &mut found)? {
            return Err(UNMAPPED);
        }
        found.as_slice().iter().for_each(|extent| extents.push(extent.len, extent.place));
        at += part;
    }
    Ok(())
}

/// Whether the range is mapped after at most so many tries.
fn map_in(
    format: &dyn Format,
    writes: bool,
    offset: u64,
    len: u64,
    tries: u32,
    extents: &mut Extents,
) -> Result<bool, IoError> {
    for _ in 0..tries {
        extents.clear();
        let mapping = match writes {
            false => format.map_read(offset, len, extents)?,
            true => format.map_write(offset, len, extents)?,
        };
        if mapping == Mapping::Ready {
            return match extents.total() == len {
                true => Ok(true),
                false => Err(IoError::Damaged("the mapping is not as long as the range")),
            };
        }
        match writes {
            false => format.prepare_read(offset, len)?,
            true => format.prepare_write(offset, len)?,
        }
    }
    Ok(false)
}
