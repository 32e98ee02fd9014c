//! The counters of a disk: those of each of its queues, and the clock of its latencies.

#[expect(
    clippy::disallowed_types,
    reason = "locked to create and drop a queue, and by readers of the counters"
)]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use super::counters::{Counters, QueueMetrics};

/// The counters of a [`Metered`](crate::Metered) disk, readable from any thread. They outlive the disk.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

impl Metrics {
    pub(super) fn new(ticks_per_second: u64) -> Self {
        Self(Arc::new(Shared::new(ticks_per_second)))
    }

    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Measure the latency of requests that are pushed from now on, or stop measuring. Off at first.
    pub fn time_requests(&self, on: bool) {
        self.0.timed.store(on, Ordering::Relaxed);
    }

    /// Whether latencies are measured.
    #[must_use]
    pub fn times_requests(&self) -> bool {
        self.0.is_timed()
    }

    /// The counters of each queue so far. While a queue works, its counters are not read at one instant: their sums may differ by the
    /// requests of a batch.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueMetrics> {
        // The counters are read without the lock, because the creation of a queue takes the lock.
        let sets = self.0.sets().clone();
        sets.iter().map(|set| set.read()).collect()
    }
}

/// What the disk, its queues and readers share.
pub(super) struct Shared {
    timed: AtomicBool,
    /// Nanoseconds for each tick, times 2^32.
    scale: u64,
    #[expect(clippy::disallowed_types, reason = "see the import")]
    sets: Mutex<Vec<Arc<Counters>>>,
}

impl Shared {
    #[expect(clippy::disallowed_types, reason = "see the import")]
    fn new(ticks_per_second: u64) -> Self {
        let scale = (1_000_000_000u128 << 32) / u128::from(ticks_per_second.max(1));
        Self {
            timed: AtomicBool::new(false),
            scale: u64::try_from(scale).unwrap_or(u64::MAX),
            sets: Mutex::default(),
        }
    }

    fn sets(&self) -> MutexGuard<'_, Vec<Arc<Counters>>> {
        // Every change of the list is a single step, so the list is consistent even if a holder of the lock panicked.
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Claim a set of counters that no queue uses, or add one.
    pub(super) fn take(&self) -> Arc<Counters> {
        let mut sets = self.sets();
        if let Some(free) = sets.iter().find(|set| set.begin()) {
            return Arc::clone(free);
        }
        let new = Arc::new(Counters::default());
        new.begin();
        sets.push(Arc::clone(&new));
        new
    }

    #[inline]
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }
}
