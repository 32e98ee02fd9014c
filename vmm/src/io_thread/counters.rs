//! Counters of an I/O thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of an I/O thread since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sleeps that ended.
    pub wakeups: AtomicU64,
    /// Periods of polling, each before a sleep, in which the thread found work.
    pub polls: AtomicU64,
    /// Calls through the mailbox: accesses of virtual CPUs that only this thread makes, and commands of the program, such as to attach a disk.
    pub calls: AtomicU64,
}

impl Counters {
    /// Add one.
    pub(super) fn count(counter: &AtomicU64) {
        // One thread writes a counter, so no read-modify-write is needed.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
