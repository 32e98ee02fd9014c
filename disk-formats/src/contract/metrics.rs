//! The counters of a disk: a set for each of its queues, and the conversion of ticks to nanoseconds.

pub(crate) mod counters;
pub(crate) mod histogram;

#[expect(
    clippy::disallowed_types,
    reason = "locked to create and drop a queue, and by readers of the counters"
)]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use self::counters::{Counters, QueueMetrics};

/// The counters of a disk with counters ([`Layered::metered`](crate::Layered::metered)), readable from any thread. They outlive the disk.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

impl Metrics {
    pub(crate) fn new(ticks_per_second: u64) -> Self {
        Self(Arc::new(Shared::new(ticks_per_second)))
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Start or stop measuring latencies. Off at first. A request is measured if measuring is on at its push and at its reap.
    pub fn time_requests(&self, on: bool) {
        self.0.timed.store(on, Ordering::Relaxed);
    }

    /// Whether latencies are measured.
    #[must_use]
    pub fn times_requests(&self) -> bool {
        self.0.is_timed()
    }

    /// The counters of each queue so far. While a queue is in use, its counters may be inconsistent with each other by the requests of one
    /// batch.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueMetrics> {
        // The counters are read after the lock is released, so that no queue's creation waits for this.
        let sets = self.0.sets().clone();
        sets.iter().map(|set| set.read()).collect()
    }
}

/// What the disk, its queues and readers share.
pub(crate) struct Shared {
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
        // A panic cannot leave the list half-changed: each change is a single push.
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Reserve a set of counters for a new queue.
    pub(crate) fn take(&self) -> Arc<Counters> {
        let mut sets = self.sets();
        if let Some(free) = sets.iter().find(|set| set.reserve()) {
            return Arc::clone(free);
        }
        let new = Arc::new(Counters::default());
        new.reserve();
        sets.push(Arc::clone(&new));
        new
    }

    #[inline]
    pub(crate) fn nanoseconds(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }
}
