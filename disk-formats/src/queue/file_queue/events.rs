//! Events of the queue for the program's log: failures alone.

use super::slot::Slot;
use crate::error::IoError;
use crate::formats::format::Format;

/// A request has failed.
#[cold]
pub(super) fn request_failed(format: &dyn Format, slot: &Slot, error: IoError) {
    let file = format.files().first().map(|file| tracing::field::display(file.path().display()));
    tracing::warn!(file, op = ?slot.op, offset = slot.offset, %error, "request failed");
}

/// An invariant of the queue is broken; the error of all its requests from now on.
#[cold]
pub(super) fn queue_faulted(what: &'static str) -> IoError {
    tracing::error!(what, "queue faulted: all its requests fail");
    IoError::Damaged(what)
}
