//! The checks that every queue makes before anything else, the same for all disks.

use crate::disk::info::DiskInfo;
use crate::error::IoError;
use crate::host::iobuf::{IoBuf, total_len};
use crate::queue::{Op, Request};

/// Whether the request may be done at all.
#[inline]
pub(crate) fn check(info: &DiskInfo, request: &Request<'_>) -> Result<(), IoError> {
    match request.op {
        Op::Read => {}
        Op::Write { .. } if info.read_only => return Err(IoError::ReadOnly),
        Op::Write { .. } => {}
        Op::Flush => return Ok(()),
        Op::Discard | Op::WriteZeroes { .. } => return check_without_payload(info, request),
    }
    let fits = match request.bufs {
        [buf] => buf.len() as u64 == request.len,
        bufs => adds_up(bufs, request.len),
    };
    if fits { check_range(info, request) } else { Err(IoError::Misaligned) }
}

#[cold]
fn check_without_payload(info: &DiskInfo, request: &Request<'_>) -> Result<(), IoError> {
    if request.op == Op::Discard && info.discard.is_none() {
        return Err(IoError::Unsupported);
    }
    if info.read_only {
        return Err(IoError::ReadOnly);
    }
    check_range(info, request)
}

/// Out of line, for the sake of requests with one buffer.
#[inline(never)]
fn adds_up(bufs: &[IoBuf], len: u64) -> bool {
    total_len(bufs) == Some(len)
}

/// Whole sectors that lie inside the disk.
#[inline]
fn check_range(info: &DiskInfo, request: &Request<'_>) -> Result<(), IoError> {
    let within = u64::from(info.logical_sector.bytes()) - 1;
    if (request.offset | request.len) & within != 0 {
        return Err(IoError::Misaligned);
    }
    match request.offset.checked_add(request.len) {
        Some(end) if end <= info.capacity => Ok(()),
        _ => Err(IoError::OutOfRange),
    }
}
