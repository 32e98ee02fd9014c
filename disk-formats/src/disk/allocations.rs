//! The allocation of a range of a disk, found piece by piece with bounded work.

use std::time::{Duration, Instant};

use crate::disk::{Allocation, Disk};
use crate::error::IoError;

/// Limits on the work of one call of [`allocations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationLimits {
    /// Pieces to be found.
    pub pieces: usize,
    /// Calls of [`Disk::status`].
    pub look_ups: usize,
    /// Bytes that one call covers.
    pub window: u64,
    /// Time after which there are no further calls.
    pub time: Duration,
}

/// The allocation of the range of `len` bytes at `offset`, which lies inside the disk, from its start: of all of it, or as far as
/// the limits allow. No two neighbours have the same status, and there is at least one piece.
///
/// # Errors
/// The disk's, where not even the status at the start is known.
pub fn allocations(
    disk: &dyn Disk,
    offset: u64,
    len: u64,
    limits: AllocationLimits,
) -> Result<Vec<Allocation>, IoError> {
    let begin = Instant::now();
    let mut found: Vec<Allocation> = Vec::new();
    let (mut at, mut left) = (offset, len);
    for _ in 0..limits.look_ups.max(1) {
        let piece = match disk.status(at, limits.window.min(left)) {
            Ok(piece) => piece,
            Err(_) if !found.is_empty() => break,
            Err(error) => return Err(error),
        };
        // A piece is never empty, or this would not end; nor longer than the requested range.
        let piece = Allocation { len: piece.len.min(left), ..piece };
        if piece.len == 0 {
            break;
        }
        let full = found.len() >= limits.pieces.max(1);
        match found.last_mut() {
            Some(last) if last.status == piece.status => last.len += piece.len,
            _ if full => break,
            _ => found.push(piece),
        }
        at += piece.len;
        left -= piece.len;
        if left == 0 || begin.elapsed() > limits.time {
            break;
        }
    }
    if found.is_empty() { Err(IoError::OutOfRange) } else { Ok(found) }
}
