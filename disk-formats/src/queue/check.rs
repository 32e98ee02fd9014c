//! The checks that every queue makes before anything else, the same for all disks.

use crate::disk::info::DiskInfo;
use crate::error::IoError;
use crate::host::iobuf::total_len;
use crate::queue::{Op, Request};

/// Whether the request may be done at all.
#[inline]
pub(crate) fn check(info: &DiskInfo, request: &Request<'_>) -> Result<(), IoError> {
    let writes = match request.op {
        Op::Flush => return Ok(()),
        Op::Read => false,
        Op::Write { .. } | Op::WriteZeroes { .. } => true,
        Op::Discard if info.discard.is_none() => return Err(IoError::Unsupported),
        Op::Discard => true,
    };
    if writes && info.read_only {
        return Err(IoError::ReadOnly);
    }
    let within = u64::from(info.logical_sector.bytes()) - 1;
    if (request.offset | request.len) & within != 0 {
        return Err(IoError::Misaligned);
    }
    let has_payload = matches!(request.op, Op::Read | Op::Write { .. });
    let payload = match request.bufs {
        [buf] if has_payload => Some(buf.len() as u64),
        bufs if has_payload => total_len(bufs),
        _ => Some(request.len),
    };
    if payload != Some(request.len) {
        return Err(IoError::Misaligned);
    }
    match request.offset.checked_add(request.len) {
        Some(end) if end <= info.capacity => Ok(()),
        _ => Err(IoError::OutOfRange),
    }
}
