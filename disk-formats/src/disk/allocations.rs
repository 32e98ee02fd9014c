//! The allocation status of a range of a disk, with a bound on the work.

use std::time::{Duration, Instant};

use crate::contract::disk::{Allocation, Disk};
use crate::contract::error::IoError;

/// Limits of one call of [`allocations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationLimits {
    /// Number of pieces to return.
    pub pieces: usize,
    /// Number of calls of [`Disk::status`].
    pub look_ups: usize,
    /// Bytes that one call of [`Disk::status`] covers.
    pub window: u64,
    /// Time after which [`Disk::status`] is not called again.
    pub time: Duration,
}

/// The allocation status of the range of `len` bytes at `offset`, which lies inside the disk. The result starts at
/// `offset` and covers the range, or as much of it as the limits allow. It has at least one piece, and neighbors differ
/// in status.
///
/// # Errors
/// The disk's, if even the status at `offset` cannot be read.
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
        // A length of 0 would loop forever. A piece must not reach beyond the requested range.
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
