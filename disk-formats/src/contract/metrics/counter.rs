//! A number that one thread at a time changes and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number with one writer at a time, so that a change needs no locked instruction. A new writer synchronizes with the previous one.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(super) fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    #[inline]
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
