//! Counters of an I/O thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of an I/O thread since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sleeps that ended.
    pub wakeups: AtomicU64,
    /// Polls before a sleep that found work.
    pub polls: AtomicU64,
    /// Calls through the mailbox: accesses of virtual CPUs other than doorbells.
    pub calls: AtomicU64,
    /// Doorbells that virtual CPUs' threads served.
    pub served: AtomicU64,
}

impl Counters {
    /// Add one.
    pub(super) fn count(counter: &AtomicU64) {
        // Only one thread at a time writes, so no read-modify-write is needed.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
