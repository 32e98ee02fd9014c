//! Log events of failed requests and faulted queues.

use super::slot::Slot;
use crate::contract::error::IoError;
use crate::contract::escaped::escaped;
use crate::map::format::Format;

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
