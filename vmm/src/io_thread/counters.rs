//! Counters of an I/O thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of an I/O thread since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sleeps that ended.
    pub wakeups: AtomicU64,
    /// Periods of polling, each before a sleep, in which the thread found work.
    pub polls: AtomicU64,
    /// Calls through the mailbox: register accesses of virtual CPUs that only this thread can make, and commands of the program, such as to
    /// attach a disk.
    pub calls: AtomicU64,
    /// Writes to doorbells and fast registers that virtual CPUs' threads served.
    pub served: AtomicU64,
}

impl Counters {
    /// Add one.
    pub(super) fn count(counter: &AtomicU64) {
        // One thread at a time writes a counter (`served` under the device's lock), so no read-modify-write is needed.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
