//! The row `native`: the same disk and engine with no adapter and no guest, driven from one thread with host memory.
//! Its figures are the limit that hardware and kernel set.
//!
//! The load is the guest's: same pattern, same random numbers, same accesses in flight, one time stamp to a completion.

use std::io;
use std::time::Instant;

use facts::disk::OpenDisk;
use facts::tsc::{ticks, to_ticks};
use guest_driver::loadgen::{MAX_SLOTS, Rng};
use guest_driver::workload::Fault;
use guest_driver::{Mode, Report, Workload};
use guest_tests::rig::{CpuSplit, Measurement, Rig, RigError};
use paradisk_disk_formats::{Completion, DiskQueue, IoBuf, Op, QueueConfig, Request};

use crate::clock;
use crate::memory::Buffers;

/// A disk's queue, driven directly.
pub struct Native {
    subject: OpenDisk,
    capacity: u64,
    sector: u32,
    resources: Option<Resources>,
}

/// Queue and buffers of jobs of one depth and block size, reused while those stay the same.
struct Resources {
    depth: u32,
    block_size: u32,
    // Before `buffers`, so dropped first: its requests point to them.
    queue: Box<dyn DiskQueue>,
    buffers: Buffers,
}

impl Native {
    /// Over this disk.
    #[must_use]
    pub fn new(subject: OpenDisk) -> Self {
        let info = subject.disk.info();
        let (capacity, sector) = (info.capacity, info.logical_sector.bytes());
        Self { subject, capacity, sector, resources: None }
    }

    fn resources(&mut self, depth: u32, block_size: u32) -> Result<&mut Resources, RigError> {
        let old = self.resources.take().filter(|old| old.depth == depth && old.block_size == block_size);
        if let Some(same) = old {
            return Ok(self.resources.insert(same));
        }
        // Random data, because formats and file systems may store zeros in other ways.
        let buffers = Buffers::random(depth as usize, block_size as usize)
            .map_err(|source| RigError::Os { what: "payload memory", source })?;
        let queue = self.subject.disk.queue(&QueueConfig { depth, engine: self.subject.engine })?;
        Ok(self.resources.insert(Resources { depth, block_size, queue, buffers }))
    }
}

/// The accesses of a job.
struct Plan {
    random: bool,
    /// Reads in 2^32 accesses.
    read_share: u64,
    block_size: u64,
    start: u64,
    blocks: u64,
    ticks: u64,
    ios: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    stream: usize,
    submitted: u64,
    offset: u64,
    buffer: IoBuf,
}

struct Stream {
    rng: Rng,
    cursor: u64,
}

struct Job<'a> {
    plan: Plan,
    queue: &'a mut dyn DiskQueue,
    slots: Vec<Slot>,
    streams: Vec<Stream>,
    left: u64,
    report: Box<Report>,
}

impl Job<'_> {
    fn run(&mut self) {
        let start = ticks();
        for slot in 0..self.slots.len() {
            self.issue(slot, start);
        }
        let mut ended: Vec<Completion> = Vec::with_capacity(self.slots.len());
        let mut last = start;
        self.queue.submit();
        while self.queue.in_flight() > 0 {
            self.queue.reap(&mut ended);
            if ended.is_empty() {
                self.queue.wait();
                continue;
            }
            for completion in ended.drain(..) {
                last = ticks();
                let slot = completion.tag as usize;
                self.complete(slot, &completion, last);
                if last.wrapping_sub(start) < self.plan.ticks {
                    self.issue(slot, last);
                }
            }
            self.queue.submit();
        }
        self.report.ticks = last.wrapping_sub(start);
    }

    #[inline]
    fn issue(&mut self, index: usize, now: u64) {
        if self.left == 0 {
            return;
        }
        let slot = &mut self.slots[index];
        let stream = &mut self.streams[slot.stream];
        let block = if self.plan.random {
            stream.rng.below(self.plan.blocks)
        } else {
            let block = stream.cursor;
            stream.cursor = if block + 1 == self.plan.blocks { 0 } else { block + 1 };
            block
        };
        let write = match self.plan.read_share {
            0 => true,
            0x1_0000_0000 => false,
            share => stream.rng.next() >> 32 >= share,
        };
        slot.submitted = now;
        slot.offset = self.plan.start + block * self.plan.block_size;
        let request = Request {
            tag: index as u64,
            op: if write { Op::Write { fua: false } } else { Op::Read },
            offset: slot.offset,
            len: self.plan.block_size,
            bufs: &[slot.buffer],
        };
        if self.queue.push(&request).is_ok() {
            self.left -= 1;
        } else {
            // The depth of the queue is the number of slots.
            self.report.errors += 1;
        }
    }

    #[inline]
    fn complete(&mut self, index: usize, completion: &Completion, now: u64) {
        self.report.ios += 1;
        self.report.latency.record(now.wrapping_sub(self.slots[index].submitted));
        if completion.result.is_ok() {
            self.report.bytes += self.plan.block_size;
        } else {
            self.report.note(Fault { kind: Fault::STATUS, offset: self.slots[index].offset, ..Fault::EMPTY });
        }
    }
}

impl Rig for Native {
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError> {
        let invalid = |reason: String| RigError::Os {
            what: "native job",
            source: io::Error::new(io::ErrorKind::InvalidInput, reason),
        };
        let w = *workload;
        if w.mode != Mode::Measure {
            return Err(invalid("native rows measure only".into()));
        }
        if w.block_size == 0 || !w.block_size.is_multiple_of(self.sector) {
            return Err(invalid(format!(
                "block size {} is not whole sectors of {}",
                w.block_size, self.sector
            )));
        }
        if w.ticks == 0 && w.ios == 0 {
            return Err(invalid("no limit by time or number".into()));
        }
        let in_flight = w.queue_depth.saturating_mul(w.workers);
        if in_flight == 0 || in_flight > MAX_SLOTS as u32 {
            return Err(invalid(format!("{in_flight} accesses in flight, expected 1 to {MAX_SLOTS}")));
        }
        let available = self.capacity.saturating_sub(w.start);
        let span = if w.span == 0 { available } else { w.span.min(available) };
        let blocks = span / u64::from(w.block_size);
        if blocks == 0 {
            return Err(invalid(format!("block size {} does not fit a span of {span}", w.block_size)));
        }
        let no_limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let plan = Plan {
            random: w.random != 0,
            read_share: (u64::from(w.read_percent.min(100)) << 32) / 100,
            block_size: w.block_size.into(),
            start: w.start,
            blocks,
            ticks: no_limit(w.ticks),
            ios: no_limit(w.ios),
        };
        let (capacity, sector) = (self.capacity, self.sector);
        let Resources { queue, buffers, .. } = self.resources(in_flight, w.block_size)?;
        let workers = w.workers as usize;
        let streams = (0..w.workers)
            .map(|index| Stream {
                rng: Rng::new(w.seed, index),
                // Sequential streams start evenly spread over the span.
                cursor: blocks / u64::from(w.workers) * u64::from(index) % blocks,
            })
            .collect();
        let slots = (0..in_flight as usize)
            .map(|index| Slot {
                stream: index % workers,
                submitted: 0,
                offset: 0,
                buffer: buffers.get(index),
            })
            .collect();
        let report = Box::new(Report { capacity, sector, in_flight, ..Report::EMPTY });
        let left = plan.ios;
        let mut job = Job { plan, queue: queue.as_mut(), slots, streams, left, report };

        let before = Spent::now(job.queue);
        let begin = Instant::now();
        job.run();
        let wall = begin.elapsed();
        let cpu = Spent::now(job.queue).since(&before);
        Ok(Measurement { report: *job.report, cpu, exits: 0, interrupts: 0, doorbells: 0, wall })
    }
}

/// Clocks of CPU time at one moment.
struct Spent {
    wall: u64,
    thread: u64,
    process: u64,
    submits: u64,
}

impl Spent {
    fn now(queue: &dyn DiskQueue) -> Self {
        Self {
            wall: ticks(),
            thread: to_ticks(clock::thread_cpu()),
            process: to_ticks(clock::process_cpu()),
            submits: queue.stats().submit_ticks,
        }
    }

    /// Only the disk's queue has run, so all CPU time is device or kernel. The kernel's share on this thread is
    /// the time in system calls less the time asleep in them; what other threads took (the engine's workers) is kernel.
    fn since(&self, before: &Self) -> CpuSplit {
        let thread = self.thread.saturating_sub(before.thread);
        let total = self.process.saturating_sub(before.process).max(thread);
        let asleep = self.wall.wrapping_sub(before.wall).saturating_sub(thread);
        let in_calls = self.submits.wrapping_sub(before.submits).saturating_sub(asleep).min(thread);
        let device = thread - in_calls;
        CpuSplit { total, guest: 0, exit: 0, device, kernel: total - device }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paradisk_disk_formats::{EngineKind, OpenOptions, RamDisk, SectorSize};

    use super::*;

    const JOB: Workload = Workload {
        mode: Mode::Measure,
        target: 0,
        random: 1,
        read_percent: 100,
        block_size: 4096,
        queue_depth: 8,
        workers: 2,
        seed: 1,
        generation: 0,
        start: 0,
        span: 0,
        ticks: 0,
        ios: 1000,
    };

    fn native(disk: Arc<dyn paradisk_disk_formats::Disk>) -> Native {
        Native::new(OpenDisk {
            disk,
            engine: EngineKind::default(),
            path: None,
            adapter: None,
            serial: None,
            options: Vec::new(),
        })
    }

    fn ram() -> Native {
        native(Arc::new(RamDisk::new(1 << 20, SectorSize::B512).unwrap()))
    }

    #[test]
    fn a_job_makes_its_accesses_and_accounts_for_all_cpu_time() {
        let mut native = ram();
        for (job, bytes) in
            [(JOB, 4_096_000), (Workload { block_size: 512, read_percent: 30, ..JOB }, 512_000)]
        {
            let Measurement { report, cpu, .. } = native.run(&job).unwrap();
            assert_eq!((report.ios, report.bytes, report.errors, report.in_flight), (1000, bytes, 0, 16));
            assert_eq!((report.latency.count, report.capacity, report.sector), (1000, 1 << 20, 512));
            assert!(cpu.total > 0 && cpu.device + cpu.kernel == cpu.total);
        }
    }

    #[test]
    fn a_job_ends_by_time() {
        let ticks = to_ticks(std::time::Duration::from_millis(20));
        let Measurement { report, wall, .. } = ram().run(&Workload { ios: 0, ticks, ..JOB }).unwrap();
        assert!(report.ticks >= ticks && report.ios > 1000, "{} {}", report.ticks, report.ios);
        assert!(wall < std::time::Duration::from_secs(5));
    }

    #[test]
    fn sequential_writes_cover_the_span_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        std::fs::write(&path, vec![0xaa; 64 << 10]).unwrap();
        let job = Workload {
            random: 0,
            read_percent: 0,
            start: 16 << 10,
            span: 32 << 10,
            ios: 8,
            queue_depth: 2,
            ..JOB
        };
        let done = native(OpenOptions::new(&path).open().unwrap()).run(&job).unwrap();
        assert_eq!((done.report.ios, done.report.errors), (8, 0));
        let data = std::fs::read(&path).unwrap();
        for (number, block) in data.chunks(4096).enumerate() {
            let old = block.iter().filter(|byte| **byte == 0xaa).count();
            let zeros = block.iter().filter(|byte| **byte == 0).count();
            let written = (4..12).contains(&number);
            assert!(if written { old < 100 && zeros < 100 } else { old == 4096 }, "{number}: {old} {zeros}");
        }
    }

    #[test]
    fn failed_accesses_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        std::fs::write(&path, [0; 8192]).unwrap();
        let disk = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
        let report = native(disk).run(&Workload { read_percent: 0, ios: 20, ..JOB }).unwrap().report;
        assert_eq!((report.ios, report.errors, report.bytes, report.fault.kind), (20, 20, 0, Fault::STATUS));
    }

    #[test]
    fn jobs_that_make_no_sense_are_refused() {
        for job in [
            Workload { mode: Mode::Fill, ..JOB },
            Workload { block_size: 0, ..JOB },
            Workload { block_size: 1000, ..JOB },
            Workload { block_size: 2 << 20, ..JOB },
            Workload { queue_depth: 0, ..JOB },
            Workload { queue_depth: u32::MAX, ..JOB },
            Workload { workers: 0, ..JOB },
            Workload { ios: 0, ..JOB },
            Workload { start: 1 << 20, ..JOB },
        ] {
            assert!(ram().run(&job).is_err(), "{job:?}");
        }
    }
}
