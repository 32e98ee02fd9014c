//! How a virtual CPU's thread that posts a request in a fast register finds out whether the device's thread must be woken.
//!
//! ```text
//! device's thread:      Asleep::set, then poll for requests once more, sleep
//! virtual CPU's thread: post the request, then Asleep::take
//! ```
//!
//! Post, poll and both accesses of the flag have one total order (`SeqCst`): either the poll finds the request, or `take` finds the flag.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the device's thread sleeps.
#[derive(Debug, Default)]
pub(crate) struct Asleep {
    asleep: AtomicBool,
    /// No request was in flight when the thread went to sleep.
    idle: AtomicBool,
}

impl Asleep {
    /// The device's thread is about to sleep; `idle`: no request is in flight. Afterwards it polls for requests once more.
    pub(crate) fn set(&self, idle: bool) {
        self.idle.store(idle, Ordering::Relaxed);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The device's thread is awake.
    #[inline]
    pub(crate) fn clear(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Call this after posting a request. `Some`: the device's thread sleeps, and the caller must wake it; no other caller is told. The
    /// value is that of [`set`](Self::set).
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<bool> {
        let asleep = self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::Relaxed);
        asleep.then(|| self.idle.load(Ordering::Relaxed))
    }
}
