//! The counters of a queue: one thread at a time writes, others read.

use std::sync::atomic::{AtomicBool, Ordering};

use super::histogram::{Counter, Filling, Histogram};
use crate::contract::queue::{Op, QueueStats};

/// Buckets of batch sizes: 1, 2, up to 4, up to 8 and so on up to 4,096 requests, the most that a queue holds.
const BATCH_BUCKETS: usize = 13;

/// A kind of requests with counters of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

impl Kind {
    pub(crate) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write { .. } => Self::Write,
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
            Op::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }
}

#[derive(Default)]
struct KindCounters {
    completed: Counter,
    errors: Counter,
    bytes: Counter,
    latency: Filling,
}

impl KindCounters {
    fn read(&self) -> KindMetrics {
        KindMetrics {
            completed: self.completed.get(),
            errors: self.errors.get(),
            bytes: self.bytes.get(),
            latency: self.latency.read(),
        }
    }
}

/// The counters of a queue. The alignment avoids false sharing: each queue's thread writes to its own cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// A queue uses these counters.
    active: AtomicBool,
    in_flight: Counter,
    max_in_flight: Counter,
    kinds: [KindCounters; 5],
    batches: [Counter; BATCH_BUCKETS],
    batched: Counter,
    submits: Counter,
    bounced: Counter,
    slow: Counter,
}

impl Counters {
    /// Reserve the counters for a new queue; `false` if a queue uses them.
    pub(crate) fn reserve(&self) -> bool {
        // Acquire pairs with the release in `end`: this thread sees the last values that the previous thread stored.
        !self.active.swap(true, Ordering::Acquire)
    }

    /// The queue is dropped.
    pub(crate) fn end(&self) {
        self.in_flight.set(0);
        self.active.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn in_flight(&self, count: u64) {
        self.in_flight.set(count);
        if count > self.max_in_flight.get() {
            self.max_in_flight.set(count);
        }
    }

    #[inline]
    pub(crate) fn completed(&self, kind: Kind, bytes: u64, good: bool) {
        let Some(kind) = self.kinds.get(kind as usize) else { return };
        kind.completed.add(1);
        if good {
            kind.bytes.add(bytes);
        } else {
            kind.errors.add(1);
        }
    }

    #[inline]
    pub(crate) fn latency(&self, kind: Kind, nanoseconds: u64) {
        if let Some(kind) = self.kinds.get(kind as usize) {
            kind.latency.add(nanoseconds);
        }
    }

    /// A batch of at least one request.
    #[inline]
    pub(crate) fn batch(&self, requests: u64) {
        let bucket = requests.saturating_sub(1).checked_ilog2().map_or(0, |power| power as usize + 1);
        if let Some(counter) = self.batches.get(bucket) {
            counter.add(1);
        }
        self.batched.add(requests);
    }

    /// What the inner queue has done from `before` to `now`.
    #[inline]
    pub(crate) fn system(&self, before: &QueueStats, now: &QueueStats) {
        self.submits.add(now.submits.wrapping_sub(before.submits));
        self.bounced.add(now.bounced.wrapping_sub(before.bounced));
        self.slow.add(now.slow.wrapping_sub(before.slow));
    }

    pub(crate) fn read(&self) -> QueueMetrics {
        let [read, write, flush, discard, write_zeroes] = self.kinds.each_ref().map(KindCounters::read);
        QueueMetrics {
            active: self.active.load(Ordering::Relaxed),
            read,
            write,
            flush,
            discard,
            write_zeroes,
            in_flight: self.in_flight.get(),
            max_in_flight: self.max_in_flight.get(),
            batches: self
                .batches
                .iter()
                .zip(0..)
                .map(|(counter, power)| (1 << power, counter.get()))
                .collect(),
            batched: self.batched.get(),
            submits: self.submits.get(),
            bounced: self.bounced.get(),
            slow: self.slow.get(),
        }
    }
}

/// The counters of a queue, as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueMetrics {
    /// A queue uses these counters. After it is dropped, the next queue continues them.
    pub active: bool,
    /// Reads.
    pub read: KindMetrics,
    /// Writes, with and without force unit access.
    pub write: KindMetrics,
    /// Flushes.
    pub flush: KindMetrics,
    /// Discards.
    pub discard: KindMetrics,
    /// Writes of zeros that carry no data.
    pub write_zeroes: KindMetrics,
    /// Requests pushed and not reaped.
    pub in_flight: u64,
    /// Maximum of `in_flight` so far.
    pub max_in_flight: u64,
    /// Histogram of batch sizes (a batch: the requests of one submit): for each bucket its largest batch size (1, 2, 4 and so on up to
    /// 4,096) and the number of batches.
    pub batches: Vec<(u64, u64)>,
    /// Requests in all batches.
    pub batched: u64,
    /// As [`QueueStats::submits`].
    pub submits: u64,
    /// As [`QueueStats::bounced`].
    pub bounced: u64,
    /// As [`QueueStats::slow`].
    pub slow: u64,
}

/// The counters of one kind of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindMetrics {
    /// Requests that have completed, those with errors included.
    pub completed: u64,
    /// Requests that have failed.
    pub errors: u64,
    /// Bytes of the requests that have succeeded.
    pub bytes: u64,
    /// Latencies from `push` to `reap`, errors included, of the requests that were measured.
    pub latency: Histogram,
}
