//! Short and failed transfers: the only place that decides between a retry and an error.
//!
//! After EAGAIN the transfers of a request are retried a bounded number of times. EINTR and short transfers are
//! continued at once, without limit. If a write with RWF_DSYNC fails, the queue repeats it as a plain write followed by
//! a flush, to tell an error of the write from an error of the flush.

use rustix::io::Errno;

use super::slot::Slot;
use crate::contract::error::{IoError, escaped};
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::Op;
use crate::map::format::Format;

pub(super) const SHORT_FILE: IoError = IoError::Damaged("the file ends inside the disk");

/// Retries of a request after EAGAIN: so many at once, then so many after a [`PAUSE`](super::helper::PAUSE) each. Then
/// the request fails.
const AGAIN_AT_ONCE: u32 = 8;
const AGAIN_LATER: u32 = 2000;

/// What the queue does next with a short or failed piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterFailure {
    /// Start the remainder.
    Again,
    /// Start the remainder; the files do not support RWF_DSYNC.
    AgainWithoutDsync,
    /// Start the remainder after a pause.
    Later,
    /// Nothing: the piece has ended. The slot has its error, if any.
    Done,
}

impl Slot {
    /// Whether the helper may be pausing for one of the pieces.
    pub(super) fn pauses(&self) -> bool {
        self.retries > AGAIN_AT_ONCE
    }

    /// A transfer was short or failed: prepare the piece to be continued, or record the error. With `zeros_past_end`, a
    /// read beyond the end of the file returns zeros.
    #[cold]
    pub(super) fn piece_failed(
        &mut self,
        number: usize,
        result: Result<u32, Errno>,
        zeros_past_end: bool,
    ) -> AfterFailure {
        let reads = self.op == Op::Read;
        let dsync = self.op == (Op::Write { fua: true }) && !self.sync_after;
        let piece = &self.pieces[number];
        let (bufs, left) = (self.piece_bufs(piece), piece.len);
        let error = match result {
            Ok(0) if reads && zeros_past_end => {
                bufs.iter().for_each(IoBuf::zero);
                return AfterFailure::Done;
            }
            Ok(0) if reads => SHORT_FILE,
            Ok(0) => IoError::Os(Errno::IO),
            Ok(moved) if u64::from(moved) > left => IoError::Damaged("a transfer moved more than requested"),
            Ok(moved) => {
                self.advance(number, u64::from(moved));
                return AfterFailure::Again;
            }
            Err(Errno::INTR) => return AfterFailure::Again,
            Err(Errno::AGAIN) if self.retries < AGAIN_AT_ONCE + AGAIN_LATER => {
                self.retries += 1;
                if self.retries == AGAIN_AT_ONCE + 1 {
                    tracing::debug!(op = ?self.op, offset = self.offset, "EAGAIN: repeated after pauses");
                }
                return if self.pauses() { AfterFailure::Later } else { AfterFailure::Again };
            }
            Err(Errno::OPNOTSUPP | Errno::INVAL) if dsync => {
                self.sync_after = true;
                return AfterFailure::AgainWithoutDsync;
            }
            // The host is out of memory. That does not mean that a flush failed.
            Err(Errno::NOMEM) if dsync => {
                self.sync_after = true;
                return AfterFailure::Again;
            }
            // Either the write or its flush failed. A failed flush also affects other writes. The repeated plain write
            // tells which of the two failed.
            Err(errno) if dsync => {
                self.dsync_failed = Some(errno);
                self.sync_after = true;
                return AfterFailure::Again;
            }
            Err(errno) => errno.into(),
        };
        self.error.get_or_insert(error);
        AfterFailure::Done
    }
}

/// Log a failed request.
#[cold]
pub(super) fn request_failed(format: &dyn Format, slot: &Slot, error: IoError) {
    let file = format.files().first().map(|file| tracing::field::display(escaped(file.path())));
    tracing::warn!(file, op = ?slot.op, offset = slot.offset, %error, "request failed");
}

/// Log a broken invariant. Returns the error of all requests from now on.
#[cold]
pub(super) fn queue_faulted(what: &'static str) -> IoError {
    tracing::error!(what, "queue faulted: all its requests fail");
    IoError::Damaged(what)
}
