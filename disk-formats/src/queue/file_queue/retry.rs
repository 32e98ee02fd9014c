//! What follows a transfer that was short or failed: the one place that decides between a repetition and an error.
//!
//! The transfers of a request are repeated a bounded number of times after EAGAIN. Each EINTR and each short transfer is
//! continued at once. A write with RWF_DSYNC that fails is repeated as a plain write with a flush after it, so that the errors of
//! the two are told apart.

use rustix::io::Errno;

use super::slot::Slot;
use crate::error::IoError;
use crate::host::iobuf::IoBuf;
use crate::queue::Op;

pub(super) const SHORT_FILE: IoError = IoError::Damaged("the file ends inside the disk");

/// Times that a transfer is handed to the engine again at once after EAGAIN, and times that this is tried after a pause of
/// [`PAUSE`](super::helper::PAUSE), before its request fails.
const AGAIN_AT_ONCE: u32 = 8;
const AGAIN_LATER: u32 = 2000;

/// What the queue does next with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start what remains of it.
    Again,
    /// The same; the files do not support RWF_DSYNC.
    AgainWithoutDsync,
    /// Start what remains of it after a pause.
    Later,
    /// Nothing: it has ended, with the error that is in its slot, if any.
    Done,
}

impl Slot {
    /// Whether a piece may wait for its pause at the helper.
    pub(super) fn pauses(&self) -> bool {
        self.retries > AGAIN_AT_ONCE
    }

    /// A piece was short or failed: prepare it to be continued, or record the error. `zeros_past_end`: what the file
    /// does not have reads as zeros.
    #[cold]
    pub(super) fn piece_failed(
        &mut self,
        number: usize,
        result: Result<u32, Errno>,
        zeros_past_end: bool,
    ) -> Next {
        let reads = self.op == Op::Read;
        let dsync = self.op == (Op::Write { fua: true }) && !self.sync_after;
        let (bufs, left) = match self.pieces.get(number) {
            Some(piece) => (self.piece_bufs(piece).unwrap_or_default(), piece.len),
            None => (&[][..], 0),
        };
        let error = match result {
            Ok(0) if reads && zeros_past_end && !bufs.is_empty() => {
                bufs.iter().for_each(IoBuf::zero);
                return Next::Done;
            }
            Ok(0) if reads => SHORT_FILE,
            Ok(0) => IoError::Os(Errno::IO),
            Ok(moved) if u64::from(moved) > left => IoError::Damaged("a transfer moved more than requested"),
            Ok(moved) => {
                self.advance(number, u64::from(moved));
                return Next::Again;
            }
            Err(Errno::INTR) => return Next::Again,
            Err(Errno::AGAIN) if self.retries < AGAIN_AT_ONCE + AGAIN_LATER => {
                self.retries += 1;
                if self.retries == AGAIN_AT_ONCE + 1 {
                    tracing::debug!(op = ?self.op, offset = self.offset, "EAGAIN: repeated after pauses");
                }
                return if self.pauses() { Next::Later } else { Next::Again };
            }
            Err(Errno::OPNOTSUPP | Errno::INVAL) if dsync => {
                self.sync_after = true;
                return Next::AgainWithoutDsync;
            }
            // An error of the host, not of the medium: no flush has failed.
            Err(Errno::NOMEM) if dsync => {
                self.sync_after = true;
                return Next::Again;
            }
            // Either the write or its flush failed, and a failed flush concerns other writes, too: a plain write shows
            // which.
            Err(errno) if dsync => {
                self.dsync_failed = Some(errno);
                self.sync_after = true;
                return Next::Again;
            }
            Err(errno) => errno.into(),
        };
        self.error.get_or_insert(error);
        Next::Done
    }
}
