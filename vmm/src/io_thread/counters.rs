//! What an I/O thread counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What an I/O thread has done.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sleeps that ended.
    pub wakeups: AtomicU64,
    /// Polls before a sleep that found work.
    pub polls: AtomicU64,
    /// Calls through the mailbox: accesses of virtual CPUs that were no doorbells.
    pub calls: AtomicU64,
    /// Doorbells that virtual CPUs' threads served.
    pub served: AtomicU64,
}

impl Counters {
    /// Count one more.
    pub(super) fn count(counter: &AtomicU64) {
        // One thread at a time writes: no read-modify-write.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
