//! The counters agree with what was requested.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::contract::disk::Disk;
use crate::contract::info::SectorSize;
use crate::contract::metrics::counters::QueueMetrics;
use crate::contract::metrics::histogram::Histogram;
use crate::contract::queue::{Op, QueueConfig};
use crate::disk::memory::{NullDisk, RamDisk};
use crate::queue::conformance::{Guest, Random};
use crate::queue::layered::Layered;

const CAPACITY: u64 = 1 << 20;
const DEPTH: u32 = 16;

/// A tick counts as a nanosecond: tests compare latencies with ticks.
const TICKS_PER_SECOND: u64 = 1_000_000_000;

fn metered(disk: Arc<dyn Disk>) -> Layered {
    Layered::new(disk).metered(TICKS_PER_SECOND)
}

fn queue(disk: &Layered) -> Box<dyn DiskQueue> {
    disk.queue(&QueueConfig { depth: DEPTH, ..QueueConfig::default() }).unwrap()
}

/// Reap until nothing is in flight.
fn drain(queue: &mut dyn DiskQueue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait();
        queue.reap(&mut done);
    }
    done
}

/// A random load, and the counters that it should have left.
fn load(queue: &mut dyn DiskQueue, random: &mut Random, expected: &mut QueueMetrics) {
    let guest = Guest::new(64 << 10);
    let (mut done, mut in_flight, mut pushed) = (Vec::new(), 0, 0);
    for _ in 0..3000 {
        let len = (1 + random.below(64)) * 512;
        // One in eight is beyond the end.
        let offset = if random.below(8) == 0 { CAPACITY } else { random.below(1024) * 512 };
        let bufs = [guest.buf(0, len as usize)];
        let (op, kind) = match random.below(5) {
            0 => (Op::Read, &mut expected.read),
            1 => (Op::Write { fua: random.below(2) == 0 }, &mut expected.write),
            2 => (Op::Flush, &mut expected.flush),
            3 => (Op::Discard, &mut expected.discard),
            _ => (Op::WriteZeroes { may_unmap: random.below(2) == 0 }, &mut expected.write_zeroes),
        };
        let (bufs, len) = match op {
            Op::Read | Op::Write { .. } => (&bufs[..], len),
            Op::Flush => (&[][..], 0),
            _ => (&[][..], len),
        };
        // The caller may use one tag twice.
        let request = Request { tag: random.below(4), op, offset, len, bufs };
        match queue.push(&request) {
            Err(PushError::Full) => assert_eq!(in_flight, u64::from(DEPTH)),
            Ok(()) => {
                pushed += 1;
                in_flight += 1;
                kind.completed += 1;
                if op != Op::Flush && offset == CAPACITY {
                    kind.errors += 1;
                } else {
                    kind.bytes += len;
                }
            }
        }
        expected.max_in_flight = expected.max_in_flight.max(in_flight);
        if random.below(6) == 0 || in_flight == u64::from(DEPTH) {
            if pushed > 0 {
                expected.batched += pushed;
                let bucket = expected.batches.iter_mut().find(|(most, _)| pushed <= *most);
                bucket.unwrap().1 += 1;
                pushed = 0;
            }
            match random.below(2) {
                0 => queue.submit(),
                _ => queue.wait(),
            }
            queue.reap(&mut done);
            assert!(done.iter().all(|completion| completion.tag < 4), "the caller's tags come back");
            in_flight -= done.len() as u64;
            done.clear();
            assert_eq!(queue.in_flight() as u64, in_flight);
        }
    }
    if pushed > 0 {
        expected.batched += pushed;
        expected.batches.iter_mut().find(|(most, _)| pushed <= *most).unwrap().1 += 1;
    }
    assert_eq!(drain(queue).len() as u64, in_flight);
}

/// Without what the load does not know: latencies and system calls.
fn comparable(mut metrics: QueueMetrics) -> QueueMetrics {
    (metrics.submits, metrics.bounced, metrics.slow) = (0, 0, 0);
    let QueueMetrics { read, write, flush, discard, write_zeroes, .. } = &mut metrics;
    for kind in [read, write, flush, discard, write_zeroes] {
        kind.latency = Histogram::default();
    }
    metrics
}

fn nothing() -> QueueMetrics {
    QueueMetrics { batches: (0..13).map(|power| (1 << power, 0)).collect(), ..QueueMetrics::default() }
}

#[test]
fn counts_are_exact_after_random_loads() {
    let ram = || Arc::new(RamDisk::new(CAPACITY, SectorSize::B512).unwrap());
    let later = || Arc::new(Layered::new(ram()).spread(Duration::from_micros(100)));
    let disks: [Arc<dyn Disk>; 2] = [ram(), later()];
    for (disk, timed) in disks.into_iter().flat_map(|disk| [(Arc::clone(&disk), false), (disk, true)]) {
        let disk = metered(disk);
        let metrics = disk.metrics().unwrap();
        metrics.time_requests(timed);
        assert_eq!((metrics.times_requests(), metrics.queues()), (timed, Vec::new()));
        let mut expected = QueueMetrics { active: true, ..nothing() };
        let mut random = Random(7);
        let mut queue = queue(&disk);
        load(&mut *queue, &mut random, &mut expected);
        assert!(expected.read.errors > 0 && expected.max_in_flight == u64::from(DEPTH));
        let [found] = &metrics.queues()[..] else { panic!("one queue") };
        assert_eq!(comparable(found.clone()), expected);
        // Every request, or none, has a latency.
        for kind in [&found.read, &found.write, &found.flush, &found.discard, &found.write_zeroes] {
            assert_eq!(kind.latency.count(), if timed { kind.completed } else { 0 });
        }
        // The next queue goes on with the counters of the one before.
        drop(queue);
        expected.active = false;
        assert_eq!(metrics.queues().into_iter().map(comparable).collect::<Vec<_>>(), [expected.clone()]);
        let mut queue = self::queue(&disk);
        expected.active = true;
        load(&mut *queue, &mut random, &mut expected);
        assert_eq!(metrics.queues().into_iter().map(comparable).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn queues_at_the_same_time_have_counters_of_their_own() {
    let disk = metered(Arc::new(NullDisk::new(CAPACITY, SectorSize::B512).unwrap()));
    let flush = Request { tag: 0, op: Op::Flush, offset: 0, len: 0, bufs: &[] };
    let metrics = disk.metrics().unwrap();
    let flushes = || -> Vec<_> {
        metrics.queues().iter().map(|queue| (queue.active, queue.flush.completed, queue.in_flight)).collect()
    };
    let mut queues = [queue(&disk), queue(&disk)];
    for (count, queue) in [1, 2].into_iter().zip(&mut queues) {
        (0..count).for_each(|_| queue.push(&flush).unwrap());
        drain(&mut **queue);
    }
    assert_eq!(flushes(), [(true, 1, 0), (true, 2, 0)]);
    let [first, mut second] = queues;
    second.push(&flush).unwrap();
    assert_eq!(flushes(), [(true, 1, 0), (true, 2, 1)]);
    drop((first, second));
    // The request in flight is not counted: its completion was not reaped.
    assert_eq!(flushes(), [(false, 1, 0), (false, 2, 0)]);
    let both = [queue(&disk), queue(&disk), queue(&disk)];
    assert_eq!(flushes(), [(true, 1, 0), (true, 2, 0), (true, 0, 0)]);
    drop((both, disk));
    assert_eq!(flushes().len(), 3, "counters outlive the disk");
}

#[test]
fn latencies_are_those_of_the_disk() {
    let delay = Duration::from_millis(5);
    let null = Arc::new(NullDisk::new(CAPACITY, SectorSize::B512).unwrap());
    let disk = Layered::new(null).delayed(delay).metered(TICKS_PER_SECOND);
    let metrics = disk.metrics().unwrap();
    let mut queue = queue(&disk);
    let flush = Request { tag: 0, op: Op::Flush, offset: 0, len: 0, bufs: &[] };
    // Pushed before the measurement begins: it has no start.
    queue.push(&flush).unwrap();
    metrics.time_requests(true);
    let first = sys::ticks();
    (0..4).for_each(|_| queue.push(&flush).unwrap());
    let (pushed, begin) = (sys::ticks(), Instant::now());
    queue.submit();
    // All are due.
    while begin.elapsed() < delay {
        std::thread::sleep(delay);
    }
    let due = sys::ticks();
    drain(&mut *queue);
    let end = sys::ticks();
    let [found] = &metrics.queues()[..] else { panic!("one queue") };
    let latency = &found.flush.latency;
    assert_eq!((found.flush.completed, latency.count()), (5, 4));
    let mean = latency.sum() / 4;
    let range = Duration::from_nanos(due - pushed)..=Duration::from_nanos(end - first);
    assert!(range.contains(&mean), "{mean:?}, not {range:?}");
    // The bound of its bucket.
    assert!(latency.quantile(0.0).unwrap() >= *range.start(), "{latency:?}");
    // Pushed while it goes on, and reaped afterwards: not measured.
    queue.push(&flush).unwrap();
    metrics.time_requests(false);
    drain(&mut *queue);
    let [found] = &metrics.queues()[..] else { panic!("one queue") };
    assert_eq!((found.flush.completed, found.flush.latency.count()), (6, 4));
}
