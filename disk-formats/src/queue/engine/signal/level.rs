//! The state of a [`Signal`](super::Signal): who writes and who reads the eventfd.
//!
//! ```text
//! LOWERED -raise-> WRITING -written-> RAISED -lower-> LOWERED
//! WRITING -lower-> LOWERED_MEANWHILE -read-> LOWERED
//! LOWERED_MEANWHILE -raise-> RAISED_AGAIN -> WRITING               (the eventfd is written again)
//! RAISED_AGAIN -lower-> LOWERED_MEANWHILE
//! ```
//!
//! The thread that found `LOWERED` writes, and no other does until it has left. The owner may lower the signal before or after the write, and
//! cannot know which. So the writing thread reads what it wrote if the owner has lowered the signal meanwhile. The owner need not wait for
//! that thread, which it may have preempted: the write wakes it, often on the same CPU.

use super::sync::atomic::{AtomicU8, Ordering};

/// The signal is not raised; the eventfd's counter is 0.
const LOWERED: u8 = 0;
/// A thread in `raise` is about to write the eventfd, or has written it.
const WRITING: u8 = 1;
/// As [`WRITING`], and the owner has lowered the signal since.
const LOWERED_MEANWHILE: u8 = 2;
/// As [`LOWERED_MEANWHILE`], and another thread has raised the signal since.
const RAISED_AGAIN: u8 = 3;
/// The eventfd is written, and no thread writes.
const RAISED: u8 = 4;

#[derive(Debug)]
pub(super) struct Level(AtomicU8);

impl Level {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(LOWERED))
    }

    /// As [`Signal::raise`](super::Signal::raise); `write` and `read` write and read the eventfd.
    #[inline]
    pub(super) fn raise(&self, write: impl Fn(), read: impl Fn()) {
        // The state is stored even if it stays the same, so that `lower` synchronizes with this call.
        let before = self.update(|state| match state {
            LOWERED => WRITING,
            LOWERED_MEANWHILE => RAISED_AGAIN,
            same => same,
        });
        if before != LOWERED {
            return;
        }
        write();
        loop {
            let before = self.update(|state| match state {
                WRITING => RAISED,
                RAISED_AGAIN => WRITING,
                same => same,
            });
            match before {
                WRITING => return,
                RAISED_AGAIN => write(),
                _ => {
                    read();
                    if self.change(LOWERED_MEANWHILE, LOWERED).is_ok() {
                        return;
                    }
                }
            }
        }
    }

    /// As [`Signal::lower`](super::Signal::lower); `read` reads the eventfd.
    #[inline]
    pub(super) fn lower(&self, read: impl Fn()) {
        let mut state = self.0.load(Ordering::Acquire);
        while state != LOWERED {
            read();
            match self.change(state, if state == RAISED { LOWERED } else { LOWERED_MEANWHILE }) {
                Ok(_) => return,
                // The other thread may have written after `read`.
                Err(now) => state = now,
            }
        }
    }

    /// Change the state, and return the one before.
    fn update(&self, to: impl Fn(u8) -> u8) -> u8 {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            match self.change(state, to(state)) {
                Ok(before) => return before,
                Err(now) => state = now,
            }
        }
    }

    fn change(&self, from: u8, to: u8) -> Result<u8, u8> {
        self.0.compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire)
    }
}
