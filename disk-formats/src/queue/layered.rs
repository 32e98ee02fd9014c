//! A disk with layers around each of its queues: an added latency, by holding each completion back for a configured time, and around that counters
//! ([`metered`](crate::queue::metered)). A layer that is not used has no overhead.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::contract::disk::{Allocation, Disk, Identity, MapMemory};
use crate::contract::error::{IoError, OpenError, PushError};
use crate::contract::info::DiskInfo;
use crate::contract::metrics::Metrics;
use crate::contract::queue::{Completion, DiskQueue, QueueConfig, QueueStats, Request};
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

/// The delay generator of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) delay: Duration,
    /// From 0.5 to 1.5 times `delay`.
    pub(crate) spread: bool,
    /// Delays generated so far.
    pub(crate) count: u32,
}

impl Latency {
    /// The delay of the next request. Multiples of the golden ratio modulo 1 are spread more evenly than random
    /// numbers: the mean is exact after a few requests, and all queues have the same delays.
    fn next(&mut self) -> Duration {
        if !self.spread {
            return self.delay;
        }
        self.count = self.count.wrapping_add(1);
        // 2^32 / golden ratio: the product modulo 2^32 is the fraction.
        let fraction = f64::from(self.count.wrapping_mul(0x9e37_79b9)) / 2f64.powi(32);
        self.delay.mul_f64(0.5 + fraction)
    }
}

pub(crate) struct DelayedQueue {
    /// The first field, so dropped first: its drop waits for the requests in flight.
    inner: Box<dyn DiskQueue>,
    latency: Latency,
    depth: usize,
    /// Scratch vector for [`Self::collect`].
    ended: Vec<Completion>,
    /// Completions with their due times, the earliest first.
    held: VecDeque<(Instant, Completion)>,
    timer: OwnedFd,
    /// The expiry time that the timer is set to.
    armed: Option<Instant>,
    timer_calls: u64,
    /// An epoll descriptor of the timer and the inner queue's event.
    event: OwnedFd,
}

impl DelayedQueue {
    /// A queue of at most `depth` requests around `inner`.
    pub(crate) fn new(inner: Box<dyn DiskQueue>, latency: Latency, depth: usize) -> Result<Self, Errno> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let event = epoll::create(CreateFlags::CLOEXEC)?;
        for fd in [timer.as_fd(), inner.event()] {
            epoll::add(&event, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self {
            inner,
            latency,
            depth,
            ended: Vec::with_capacity(depth),
            held: VecDeque::with_capacity(depth),
            timer,
            armed: None,
            timer_calls: 0,
            event,
        })
    }

    /// Hold the inner queue's completions back, and set the timer to the earliest due time.
    fn collect(&mut self) {
        self.inner.reap(&mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        let now = Instant::now();
        for completion in self.ended.drain(..) {
            let due = now + self.latency.next();
            // After all completions that are due no later. With a constant delay that is the end.
            let place = self.held.partition_point(|(other, _)| *other <= due);
            self.held.insert(place, (due, completion));
        }
        self.arm(now);
    }

    /// Set the timer to the earliest due time, or disarm it. No system call if the timer is already set so.
    fn arm(&mut self, now: Instant) {
        let due = self.held.front().map(|(due, _)| *due);
        if due == self.armed {
            return;
        }
        // A zero value would disarm the timer.
        let wait =
            due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now).max(Duration::from_nanos(1)));
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        // Fails only for invalid times.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        self.timer_calls += 1;
        self.armed = due;
    }
}

impl DiskQueue for DelayedQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if self.in_flight() >= self.depth {
            return Err(PushError::Full);
        }
        self.inner.push(request)
    }

    fn submit(&mut self) {
        self.inner.submit();
        self.collect();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.collect();
        if self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            out.extend(self.held.pop_front().map(|(_, completion)| completion));
        }
        // An expired timer stays readable until it is set again.
        self.arm(now);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wait(&mut self) {
        self.submit();
        if self.held.is_empty() && self.inner.in_flight() > 0 {
            self.inner.wait();
            self.collect();
        }
        if let Some((due, _)) = self.held.front() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    fn stats(&self) -> QueueStats {
        let inner = self.inner.stats();
        QueueStats { submits: inner.submits + self.timer_calls, ..inner }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::contract::disk::Disk;
    use crate::contract::error::IoError;
    use crate::contract::info::SectorSize;
    use crate::contract::queue::{Op, QueueConfig};
    use crate::disk::memory::NullDisk;
    use crate::queue::layered::Layered;

    const DELAY: Duration = Duration::from_millis(5);

    fn queue(delay: Duration, depth: u32) -> Box<dyn DiskQueue> {
        let disk = Layered::new(Arc::new(NullDisk::new(1 << 20, SectorSize::B512).unwrap())).delayed(delay);
        disk.queue(&QueueConfig { depth, ..QueueConfig::default() }).unwrap()
    }

    fn flush(tag: u64) -> Request<'static> {
        Request { tag, op: Op::Flush, offset: 0, len: 0, bufs: &[] }
    }

    fn readable(queue: &dyn DiskQueue, longest: Duration) -> bool {
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        poll(&mut [PollFd::from_borrowed_fd(queue.event(), PollFlags::IN)], Some(&longest)).unwrap() == 1
    }

    #[test]
    fn completions_come_in_order_and_not_too_early() {
        let mut queue = queue(DELAY, 8);
        let mut out = Vec::new();
        let start = Instant::now();
        for tag in 0..8 {
            queue.push(&flush(tag)).unwrap();
            queue.submit();
            std::thread::sleep(DELAY / 8);
        }
        assert_eq!(queue.push(&flush(9)), Err(PushError::Full));
        while out.len() < 8 {
            let before = out.len();
            queue.reap(&mut out);
            if out.len() > before {
                let earliest = DELAY + DELAY / 8 * (out.len() as u32 - 1);
                assert!(start.elapsed() >= earliest, "{} after {:?}", out.len(), start.elapsed());
            }
            assert!(out.len() == 8 || readable(&*queue, Duration::from_secs(60)));
        }
        assert!(out.iter().map(|completion| completion.tag).eq(0..8));
        assert_eq!(queue.in_flight(), 0);
        assert!(!readable(&*queue, Duration::ZERO), "nothing is left");
    }

    #[test]
    fn the_event_is_readable_when_something_is_due_and_not_before() {
        let mut out = Vec::new();
        let mut late = queue(Duration::from_secs(1000), 8);
        late.push(&flush(1)).unwrap();
        late.submit();
        late.reap(&mut out);
        assert!(out.is_empty() && !readable(&*late, Duration::ZERO));

        let mut queue = queue(DELAY, 8);
        queue.push(&flush(1)).unwrap();
        queue.submit();
        assert!(readable(&*queue, Duration::from_secs(60)));
        assert!(readable(&*queue, Duration::ZERO), "it is a level");
        queue.reap(&mut out);
        assert_eq!(out.len(), 1);
        assert!(!readable(&*queue, Duration::ZERO));
    }

    #[test]
    fn spread_latencies_come_one_after_another_with_the_mean_asked_for() {
        let mut latency = Latency { delay: DELAY, spread: true, count: 0 };
        let all: Vec<Duration> = (0..1000).map(|_| latency.next()).collect();
        let mean = all.iter().sum::<Duration>() / 1000;
        assert!(mean.abs_diff(DELAY) < DELAY / 100, "{mean:?}");
        for eighth in 0..8 {
            let from = DELAY / 2 + DELAY * eighth / 8;
            let inside = all.iter().filter(|latency| (from..from + DELAY / 8).contains(latency)).count();
            assert!((115..=135).contains(&inside), "{eighth}: {inside}");
        }
        assert!(!all[..8].is_sorted(), "{:?}", &all[..8]);

        let disk = Layered::new(Arc::new(NullDisk::new(1 << 20, SectorSize::B512).unwrap())).spread(DELAY);
        let mut queue = disk.queue(&QueueConfig { depth: 8, ..QueueConfig::default() }).unwrap();
        let start = Instant::now();
        (0..8).for_each(|tag| queue.push(&flush(tag)).unwrap());
        queue.submit();
        let mut out = Vec::new();
        while out.len() < 8 {
            queue.wait();
            queue.reap(&mut out);
            // Each completion is due: the n-th not before (n - 1) / 8 of the delay after half the delay, minus 1/8 of
            // tolerance.
            assert!(start.elapsed() + DELAY / 8 >= DELAY / 2 + DELAY * (out.len() as u32 - 1) / 8);
        }
        let mut tags: Vec<u64> = out.iter().map(|completion| completion.tag).collect();
        tags.sort_unstable();
        assert!(tags.into_iter().eq(0..8));
    }

    #[test]
    fn waiting_ends_with_the_first() {
        let mut queue = queue(DELAY, 8);
        queue.wait();
        let start = Instant::now();
        queue.push(&flush(1)).unwrap();
        queue.wait();
        assert!(start.elapsed() >= DELAY);
        let mut out = Vec::new();
        queue.reap(&mut out);
        assert_eq!((out.len(), queue.in_flight()), (1, 0));
        // Dropped with a request in flight.
        queue.push(&flush(2)).unwrap();
        queue.submit();
    }

    #[test]
    fn errors_pass() {
        let mut queue = queue(Duration::from_micros(10), 8);
        queue.push(&Request { tag: 1, op: Op::Discard, offset: 4 << 20, len: 512, bufs: &[] }).unwrap();
        queue.wait();
        let mut out = Vec::new();
        queue.reap(&mut out);
        assert_eq!(out, [Completion { tag: 1, result: Err(IoError::OutOfRange) }]);
    }
}
