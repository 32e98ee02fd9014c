//! Mapping a range on a thread that may block.
//!
//! A small map may evict prepared entries while other threads use the disk. So a range that cannot be mapped as a whole
//! is mapped in parts. The extents found first stay valid until the request completes, even if the map evicts their
//! entries.

use crate::contract::error::IoError;
use crate::map::extent::Extents;
use crate::map::format::{Format, Mapping};

/// Maximum number of attempts to prepare and map a range as a whole.
const WHOLE_TRIES: u32 = 4;
/// Maximum number of attempts for a part.
const TRIES: u32 = 256;
/// Size of a part in bytes; a map of any budget can hold it.
const PART: u64 = 64 << 10;

/// Prepare and map a range, for reading or (`writes`) for writing.
///
/// # Errors
/// Errors of the format; [`IoError::Damaged`] if a part stays unmapped.
pub(crate) fn map_now(
    format: &dyn Format,
    writes: bool,
    offset: u64,
    len: u64,
    extents: &mut Extents,
) -> Result<(), IoError> {
    if map_in(format, writes, offset, len, WHOLE_TRIES, extents)? {
        return Ok(());
    }
    extents.clear();
    let (mut at, end) = (offset, offset + len);
    let mut part_extents = Extents::new();
    while at < end {
        let part = ((at / PART + 1) * PART).min(end) - at;
        if !map_in(format, writes, at, part, TRIES, &mut part_extents)? {
            return Err(IoError::Damaged("the range cannot be mapped"));
        }
        extents.append(&part_extents);
        at += part;
    }
    Ok(())
}

/// Try to map the range up to `tries` times. Returns whether it is mapped.
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
