//! The state of a [`Signal`](super::Signal): who writes and who reads the eventfd.
//!
//! ```text
//! LOWERED -raise-> WRITING -written-> RAISED -lower-> LOWERED
//! WRITING -lower-> READ -written-> LOWERED              (the owner has read what was written)
//! WRITING, READ, WRITING_AGAIN -raise-> WRITING_TWICE
//! WRITING, WRITING_AGAIN -lower-> WRITING_TWICE         (perhaps not written yet)
//! WRITING_TWICE -written-> WRITING_AGAIN -written-> RAISED
//! ```
//!
//! `READ` is for an owner that preempts the writing thread, because the write has woken it on the same CPU. Without it, the eventfd stays
//! readable until the writing thread runs again. The owner then polls in vain for a whole time slice.

use super::sync::atomic::{AtomicU8, Ordering};

/// The signal is not raised; the eventfd's counter is 0.
const LOWERED: u8 = 0;
/// A thread in `raise` is about to write the eventfd, or has just written it. No other thread writes.
pub(super) const WRITING: u8 = 1;
/// As [`WRITING`], and the owner has read what was written: the signal is lowered.
const READ: u8 = 2;
/// As [`WRITING`], and another thread has called `raise` or `lower` since: the writing thread writes once more.
const WRITING_TWICE: u8 = 3;
/// As [`WRITING`], but the counter may be that of an earlier write.
const WRITING_AGAIN: u8 = 4;
/// The eventfd is written, and no thread writes.
pub(super) const RAISED: u8 = 5;

#[derive(Debug)]
pub(super) struct Level(AtomicU8);

impl Level {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(LOWERED))
    }

    /// As [`Signal::raise`](super::Signal::raise); `write` writes the eventfd.
    #[inline]
    pub(super) fn raise(&self, write: impl Fn()) {
        // The state is stored even if it stays the same, so that `lower` synchronizes with this call.
        let before = self.update(|state| match state {
            LOWERED => WRITING,
            RAISED => RAISED,
            _ => WRITING_TWICE,
        });
        if before != LOWERED {
            return;
        }
        // Until the state is `RAISED` or `LOWERED`, no other thread writes the eventfd.
        while {
            write();
            self.update(|state| match state {
                WRITING_TWICE => WRITING_AGAIN,
                READ => LOWERED,
                _ => RAISED,
            }) == WRITING_TWICE
        } {}
    }

    /// As [`Signal::lower`](super::Signal::lower); `read` reads the eventfd, and returns whether it was written.
    #[inline]
    pub(super) fn lower(&self, read: impl Fn() -> bool) {
        let mut state = self.0.load(Ordering::Acquire);
        loop {
            if matches!(state, LOWERED | READ) {
                return;
            }
            let lowered = match (state, read()) {
                (RAISED, _) => LOWERED,
                (WRITING, true) => READ,
                // Not written yet, or the owner has read the eventfd itself: only another write wakes it for certain.
                _ => WRITING_TWICE,
            };
            match self.0.compare_exchange_weak(state, lowered, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                // The other thread may have written again, after `read`.
                Err(now) => state = now,
            }
        }
    }

    /// Change the state, and return the one before.
    fn update(&self, change: impl Fn(u8) -> u8) -> u8 {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(state, change(state), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(now) => state = now,
            }
        }
    }
}
