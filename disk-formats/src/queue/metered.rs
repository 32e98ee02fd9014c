//! A queue that counts the requests of another queue, for statistics in operation.
//!
//! Each queue owns a set of counters. Only the thread that uses the queue writes them, with plain loads and stores (relaxed atomics, no
//! locked instruction), so that any thread may read them at any time. A request is counted when its completion is reaped. Its latency is
//! the time from `push` to `reap`, and is measured only while [`Metrics::time_requests`] is on: that takes two reads of the time-stamp
//! counter.
//!
//! ```text
//! caller -> push -> slot (tag, kind, bytes, start) -> inner queue
//! caller <- reap <- counters, histogram            <- inner queue
//!                        |
//!             Metrics::queues (any thread)
//! ```
//!
//! Each request is also an event of the crate `tracing` at its start and at its end, at level `TRACE`.
//!
//! When a queue is dropped, the next queue of the disk continues its counters. So totals never decrease, and there are only as many sets
//! as there were queues at the same time.

#[cfg(test)]
mod tests;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::contract::error::{IoError, PushError};
use crate::contract::metrics::counters::{Counters, Kind};
use crate::contract::metrics::{Metrics, Shared};
use crate::contract::queue::{Completion, DiskQueue, QueueStats, Request};
use crate::host::sys;

/// A request in flight.
#[derive(Clone, Copy)]
struct Slot {
    /// The caller's tag.
    tag: u64,
    len: u64,
    /// Ticks at `push`; 0: its latency is not measured.
    started: u64,
    kind: Kind,
}

pub(crate) struct MeteredQueue {
    /// The first field, so dropped first: its drop waits for the requests in flight.
    inner: Box<dyn DiskQueue>,
    counters: Arc<Counters>,
    shared: Arc<Shared>,
    /// Indexed by the tag that the inner queue gets. The caller's tags may not be unique.
    slots: Box<[Slot]>,
    free: Vec<u32>,
    in_flight: u64,
    /// Requests since the last submit.
    pushed: u64,
    /// The inner queue's statistics as of the last call of `count_stats`.
    reported: QueueStats,
}

impl MeteredQueue {
    /// A queue of at most `depth` requests around `inner`.
    pub(crate) fn new(inner: Box<dyn DiskQueue>, metrics: &Metrics, depth: u32) -> Self {
        let unused = Slot { tag: 0, len: 0, started: 0, kind: Kind::Read };
        let shared = Arc::clone(metrics.shared());
        Self {
            inner,
            counters: shared.take(),
            shared,
            slots: vec![unused; depth as usize].into(),
            free: (0..depth).rev().collect(),
            in_flight: 0,
            pushed: 0,
            reported: QueueStats::default(),
        }
    }

    fn ticks(&self) -> u64 {
        // 0 stands for no time.
        if self.shared.is_timed() { sys::ticks().max(1) } else { 0 }
    }

    /// Count the requests that are about to be submitted together.
    fn count_batch(&mut self) {
        if self.pushed > 0 {
            self.counters.batch(std::mem::take(&mut self.pushed));
        }
    }

    fn count_stats(&mut self) {
        let now = self.inner.stats();
        self.counters.system(&self.reported, &now);
        self.reported = now;
    }
}

impl DiskQueue for MeteredQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        let index = self.free.pop().ok_or(PushError::Full)?;
        let slot =
            Slot { tag: request.tag, len: request.len, started: self.ticks(), kind: Kind::of(request.op) };
        if let Err(full) = self.inner.push(&Request { tag: index.into(), ..*request }) {
            self.free.push(index);
            return Err(full);
        }
        tracing::trace!(slot = index, op = ?request.op, offset = request.offset, len = request.len, "request starts");
        if let Some(place) = self.slots.get_mut(index as usize) {
            *place = slot;
        }
        self.pushed += 1;
        self.in_flight += 1;
        self.counters.in_flight(self.in_flight);
        Ok(())
    }

    fn submit(&mut self) {
        self.count_batch();
        self.inner.submit();
        self.count_stats();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let before = out.len();
        self.inner.reap(out);
        let ended = out.get_mut(before..).unwrap_or_default();
        if ended.is_empty() {
            return;
        }
        let now = self.ticks();
        for completion in ended {
            let index = completion.tag;
            let Some(slot) = self.slots.get(index as usize) else { continue };
            completion.tag = slot.tag;
            match &completion.result {
                Ok(()) => tracing::trace!(slot = index, "request ends"),
                Err(error) => tracing::trace!(slot = index, %error, "request ends"),
            }
            self.counters.completed(slot.kind, slot.len, completion.result.is_ok());
            if slot.started != 0 && now != 0 {
                // The time-stamp counters of two processors may differ slightly.
                let latency = self.shared.nanoseconds(now.saturating_sub(slot.started));
                self.counters.latency(slot.kind, latency);
            }
            self.in_flight = self.in_flight.saturating_sub(1);
            self.free.push(index as u32);
        }
        self.counters.in_flight(self.in_flight);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn allow_blocking(&mut self) {
        self.inner.allow_blocking();
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.inner.event()
    }

    fn eventfd(&mut self) -> Result<OwnedFd, IoError> {
        self.inner.eventfd()
    }

    fn wait(&mut self) {
        self.count_batch();
        self.inner.wait();
        self.count_stats();
    }

    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    fn stats(&self) -> QueueStats {
        self.inner.stats()
    }
}

impl Drop for MeteredQueue {
    fn drop(&mut self) {
        // Requests in flight still complete, but are not reaped, so they are not counted.
        self.counters.end();
    }
}
