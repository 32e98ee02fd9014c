//! A disk with layers around each of its queues: an added latency ([`delayed`](crate::queue::delayed)), and around that counters
//! ([`metered`](crate::queue::metered)). A layer that is not used has no overhead.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::disk::{Allocation, Disk, Identity, MapMemory};
use crate::contract::error::{IoError, OpenError};
use crate::contract::info::DiskInfo;
use crate::contract::metrics::Metrics;
use crate::contract::queue::{DiskQueue, QueueConfig};
use crate::queue::delayed::{DelayedQueue, Latency};
use crate::queue::metered::MeteredQueue;

/// Another disk with layers around each of its queues.
pub struct Layered {
    disk: Arc<dyn Disk>,
    latency: Option<Latency>,
    metrics: Option<Metrics>,
}

impl Layered {
    /// `disk`, without layers yet.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, latency: None, metrics: None }
    }

    /// With `delay` added to the latency of each request, to measure the effect of slow storage on adapters and guests. The
    /// delay starts when the layer sees the disk's completion; for disks that complete at once, at submission.
    #[must_use]
    pub fn delayed(self, delay: Duration) -> Self {
        Self { latency: Some(Latency { delay, spread: false, count: 0 }), ..self }
    }

    /// As [`delayed`](Self::delayed), but the delays are spread evenly from 0.5 to 1.5 times `mean`. Requests pushed together
    /// then complete one after another, as on real storage.
    #[must_use]
    pub fn spread(self, mean: Duration) -> Self {
        Self { latency: Some(Latency { delay: mean, spread: true, count: 0 }), ..self }
    }

    /// With counters for each queue, for statistics in operation. `ticks_per_second` is the frequency of the time-stamp counter, by
    /// which latencies are converted; on machines other than x86-64, 10⁹.
    #[must_use]
    pub fn metered(self, ticks_per_second: u64) -> Self {
        Self { metrics: Some(Metrics::new(ticks_per_second)), ..self }
    }
}

impl Disk for Layered {
    fn info(&self) -> &DiskInfo {
        self.disk.info()
    }

    fn identity(&self) -> Identity {
        self.disk.identity()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        // The disk checks the depth, from which the layers allocate.
        let mut queue = self.disk.queue(config)?;
        if let Some(latency) = self.latency {
            let refused = OpenError::os(self.info().kind.format, "cannot make a timer");
            queue = Box::new(DelayedQueue::new(queue, latency, config.depth as usize).map_err(refused)?);
        }
        if let Some(metrics) = &self.metrics {
            queue = Box::new(MeteredQueue::new(queue, metrics, config.depth));
        }
        Ok(queue)
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.disk.status(offset, limit)
    }

    fn map_memory(&self) -> Option<MapMemory> {
        self.disk.map_memory()
    }

    fn metrics(&self) -> Option<Metrics> {
        self.metrics.clone().or_else(|| self.disk.metrics())
    }

    fn uncache(&self) -> Result<(), IoError> {
        self.disk.uncache()
    }

    fn rescan(&self) -> Result<u64, OpenError> {
        self.disk.rescan()
    }

    fn grow(&self, capacity: u64) -> Result<u64, OpenError> {
        self.disk.grow(capacity)
    }
}
