//! The state of a [`Signal`](super::Signal): who writes and who reads the eventfd.
//!
//! ```text
//! LOWERED -raise-> WRITING -written-> RAISED -lower-> LOWERED
//!                    | ^
//!        raise, lower| |written        (the eventfd is written again)
//!                    v |
//!                WRITING_TWICE
//! ```

use super::sync::atomic::{AtomicU8, Ordering};

/// The signal is not raised; the eventfd's counter is 0.
const LOWERED: u8 = 0;
/// A thread in `raise` is about to write the eventfd, or has just written it. No other thread writes.
pub(super) const WRITING: u8 = 1;
/// As [`WRITING`], and another thread has called `raise` or `lower` since: the writing thread writes once more.
const WRITING_TWICE: u8 = 2;
/// The eventfd is written, and no thread writes.
pub(super) const RAISED: u8 = 3;

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
        // Until the state is `RAISED`, no other thread writes or reads the eventfd here.
        while {
            write();
            self.update(|state| if state == WRITING_TWICE { WRITING } else { RAISED }) == WRITING_TWICE
        } {}
    }

    /// As [`Signal::lower`](super::Signal::lower); `read` reads the eventfd.
    #[inline]
    pub(super) fn lower(&self, read: impl Fn()) {
        let mut state = self.0.load(Ordering::Acquire);
        while state == WRITING {
            match self.0.compare_exchange_weak(state, WRITING_TWICE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                // The other thread has written, and does not write again: an owner that has read the eventfd would not be woken.
                Err(now) => state = now,
            }
        }
        if state == RAISED {
            read();
            self.0.swap(LOWERED, Ordering::AcqRel);
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
