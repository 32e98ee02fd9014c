//! Validation of requests, the same for all queues.

use crate::contract::error::IoError;
use crate::contract::info::DiskInfo;
use crate::contract::iobuf::total_len;
use crate::contract::queue::{Op, Request};

/// Whether the request is a valid READ or WRITE with one buffer, as nearly all requests are. If false, [`check`]
/// returns the reason or accepts the request.
#[inline(always)]
pub(crate) fn is_plain(info: &DiskInfo, request: &Request<'_>) -> bool {
    let allowed = match request.op {
        Op::Read => true,
        Op::Write { .. } => !info.read_only,
        _ => false,
    };
    matches!(request.bufs, [buf] if buf.len() as u64 == request.len)
        && allowed
        && check_range(info, request.offset, request.len).is_ok()
}

/// Validate a request.
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
    let has_payload = matches!(request.op, Op::Read | Op::Write { .. });
    if has_payload && total_len(request.bufs) != Some(request.len) {
        return Err(IoError::Misaligned);
    }
    check_range(info, request.offset, request.len)
}

/// The range must be whole sectors inside the disk.
#[inline]
pub(crate) fn check_range(info: &DiskInfo, offset: u64, len: u64) -> Result<(), IoError> {
    let within = u64::from(info.logical_sector.bytes()) - 1;
    if (offset | len) & within != 0 {
        return Err(IoError::Misaligned);
    }
    match offset.checked_add(len) {
        Some(end) if end <= info.capacity => Ok(()),
        _ => Err(IoError::OutOfRange),
    }
}
