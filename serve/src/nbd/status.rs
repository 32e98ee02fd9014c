//! What is stored of a range (`base:allocation`).

use std::time::{Duration, Instant};

use disk_formats::{Allocation, Disk, IoError, Status};

use super::spec::{Descriptor, NBD_STATE_HOLE, NBD_STATE_ZERO};

/// Descriptors of a reply at the most.
const MOST: usize = 4096;
/// A reply ends where looking took so long.
const PATIENCE: Duration = Duration::from_millis(20);
/// Bytes looked at at once: first, and as long as pieces are shorter. Looking at much costs as much as it has pieces, though
/// only the first of them is told.
const FIRST_WINDOW: u64 = 1 << 20;

/// The status of a range that lies inside the disk, from its start: of all of it, or as far as it was found in reasonable time;
/// of one piece, where only `one` is asked for.
///
/// # Errors
/// The disk's, where not even the status at the start is known.
pub(super) fn status(disk: &dyn Disk, offset: u64, len: u32, one: bool) -> Result<Vec<Descriptor>, IoError> {
    let begin = Instant::now();
    let mut found: Vec<(u32, u32)> = Vec::new();
    let (mut at, mut left, mut window) = (offset, len, FIRST_WINDOW);
    while left > 0 {
        let piece = match disk.status(at, window.min(left.into())) {
            Ok(piece) => piece,
            Err(_) if !found.is_empty() => break,
            Err(error) => return Err(error),
        };
        // Never nothing, or this would not end; never more than was asked for.
        let Allocation { len: piece_len, status } = piece;
        let piece_len = u32::try_from(piece_len).unwrap_or(u32::MAX).min(left);
        if piece_len == 0 {
            break;
        }
        let flags = match status {
            Status::Mapped => 0,
            Status::Zeros => NBD_STATE_HOLE | NBD_STATE_ZERO,
        };
        let full = found.len() >= if one { 1 } else { MOST };
        match found.last_mut() {
            Some((last_len, last)) if *last == flags => *last_len += piece_len,
            _ if full => break,
            _ => found.push((piece_len, flags)),
        }
        window = if u64::from(piece_len) < window { FIRST_WINDOW } else { window * 2 };
        at += u64::from(piece_len);
        left -= piece_len;
        if begin.elapsed() > PATIENCE {
            break;
        }
    }
    if found.is_empty() {
        return Err(IoError::OutOfRange);
    }
    Ok(found.into_iter().map(|(len, flags)| Descriptor { len: len.into(), flags: flags.into() }).collect())
}
