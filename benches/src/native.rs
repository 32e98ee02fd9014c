//! The row `native`: the same disk and engine without adapter and guest, driven by one thread with host memory. Its
//! figures are the limit of hardware and kernel.
//!
//! The load is that of the guest: same pattern, same generator of random numbers, same accesses in flight, one time stamp for each
//! completion.

use std::io;
use std::time::{Duration, Instant};

use facts::disk::OpenDisk;
use facts::tsc::{ticks, to_ticks, tsc_hz};
use guest_driver::loadgen::{MAX_SLOTS, Offsets, Rng};
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

/// Queue and buffers for jobs of one depth and block size, reused by jobs with the same values.
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
        // Random data, because formats and file systems may treat zeros specially.
        let buffers = Buffers::random(depth as usize, block_size as usize)
            .map_err(|source| RigError::Os { what: "payload memory", source })?;
        let queue = self.subject.disk.queue(&QueueConfig { depth, engine: self.subject.engine })?;
        Ok(self.resources.insert(Resources { depth, block_size, queue, buffers }))
    }
}

/// The accesses of a job.
struct Plan {
    offsets: Offsets,
    /// Share of reads, in units of 2^-32.
    read_share: u64,
    block_size: u64,
    ticks: u64,
    ios: u64,
    /// Accesses until a pause; 0: no pauses.
    burst: u64,
    /// Ticks of a pause.
    think: u64,
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
        let last = if self.plan.burst == 0 { self.load(start) } else { self.bursts(start) };
        self.report.ticks = last.wrapping_sub(start);
    }

    /// Run bursts with pauses between them until the job ends. Returns the time of the last completion.
    fn bursts(&mut self, start: u64) -> u64 {
        let mut left = self.plan.ios;
        loop {
            let burst = left.min(self.plan.burst);
            self.left = burst;
            let last = self.load(start);
            left -= burst - self.left;
            let time = self.plan.ticks.saturating_sub(last.wrapping_sub(start));
            if left == 0 || time == 0 {
                return last;
            }
            std::thread::sleep(Duration::from_secs_f64(self.plan.think.min(time) as f64 / tsc_hz() as f64));
            if ticks().wrapping_sub(start) >= self.plan.ticks {
                return last;
            }
        }
    }

    /// Run accesses without a pause until the job or the burst ends. Returns the time of the last completion.
    fn load(&mut self, start: u64) -> u64 {
        let mut last = ticks();
        for slot in 0..self.slots.len() {
            self.issue(slot, last);
        }
        let mut ended: Vec<Completion> = Vec::with_capacity(self.slots.len());
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
        last
    }

    #[inline]
    fn issue(&mut self, index: usize, now: u64) {
        if self.left == 0 {
            return;
        }
        let slot = &mut self.slots[index];
        let stream = &mut self.streams[slot.stream];
        let position = self.plan.offsets.next(&mut stream.rng, &mut stream.cursor);
        let write = match self.plan.read_share {
            0 => true,
            0x1_0000_0000 => false,
            share => stream.rng.next() >> 32 >= share,
        };
        slot.submitted = now;
        slot.offset = self.plan.offsets.byte(position);
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
        if !w.shape.align.is_multiple_of(self.sector) {
            return Err(invalid(format!(
                "alignment {} is not whole sectors of {}",
                w.shape.align, self.sector
            )));
        }
        let Some(offsets) = Offsets::new(&w, span) else {
            return Err(invalid(format!("block size {} does not fit a span of {span}", w.block_size)));
        };
        let blocks = offsets.positions();
        let no_limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let plan = Plan {
            offsets,
            read_share: (u64::from(w.read_percent.min(100)) << 32) / 100,
            block_size: w.block_size.into(),
            ticks: no_limit(w.ticks),
            ios: no_limit(w.ios),
            burst: w.shape.burst.into(),
            think: w.shape.think,
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

    /// Only the disk's queue has run, so all CPU time is device or kernel. On this thread, the kernel's share is the
    /// time in system calls minus the time asleep in them. The time of other threads (the engine's workers) is kernel.
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
mod tests;
