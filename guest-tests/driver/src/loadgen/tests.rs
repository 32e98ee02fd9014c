//! The load generator over an adapter that is a byte array, and that can be told to misbehave.
#![allow(unsafe_code, reason = "host memory stands in for DMA memory")]

extern crate std;

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::adapter::{Completion, Counters, Geometry, Op, Request};
use crate::platform::DmaRegion;
use crate::workload::Shape;

/// A machine whose interrupts are those that [`Ram`] raises when the driver waits.
pub(crate) struct Host {
    interrupts: u32,
    ticks: core::cell::Cell<u64>,
    memory: usize,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self { interrupts: 0, ticks: core::cell::Cell::new(0), memory: 64 << 20 }
    }
}

impl Platform for Host {
    fn config_read(&mut self, _: u16) -> u32 {
        u32::MAX
    }
    fn config_write(&mut self, _: u16, _: u32) {}
    fn read(&mut self, _: u8, _: u64, _: usize) -> u32 {
        u32::MAX
    }
    fn write(&mut self, _: u8, _: u64, _: usize, _: u32) {}
    fn dma(&mut self, len: usize, align: usize) -> Option<DmaRegion> {
        self.memory = self.memory.checked_sub(len)?;
        let words = Box::leak(vec![0u64; (len + align) / 8].into_boxed_slice());
        let base = words.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(align));
        // SAFETY: leaked memory with space for the alignment, never touched otherwise.
        Some(unsafe { DmaRegion::new(base, base as u64, len) })
    }
    fn msi_message(&self) -> (u64, u32) {
        (0, 0)
    }
    fn interrupts(&self) -> u32 {
        self.interrupts
    }
    fn wait_interrupt(&mut self, _: u32) {
        self.interrupts += 1;
    }
    fn ticks(&self) -> u64 {
        self.ticks.set(self.ticks.get() + 1);
        self.ticks.get()
    }
    fn timeout_ticks(&self) -> u64 {
        10_000
    }
}

/// What goes wrong with access number `.0` (counted from 0).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mischief {
    None,
    /// A write that goes nowhere.
    LostWrite(u64),
    /// A write of the first half only.
    TornWrite(u64),
    /// An access one block off.
    Misplaced(u64),
    /// One flipped bit in the last byte read.
    Flip(u64),
    /// A failed access.
    Fail(u64),
    /// A good status with half of the data.
    Short(u64),
    /// A completion that never comes.
    Silence(u64),
    /// A completion that comes twice.
    Twice(u64),
}

struct Ram {
    data: Vec<u8>,
    queue: Vec<Request>,
    done: Vec<Completion>,
    layout: Layout,
    accesses: u64,
    deepest: usize,
    resets: u32,
    mischief: Mischief,
}

impl Ram {
    fn new(len: usize, layout: Layout, mischief: Mischief) -> Self {
        let (queue, done) = (Vec::new(), Vec::new());
        Self { data: vec![0; len], queue, done, layout, accesses: 0, deepest: 0, resets: 0, mischief }
    }

    fn perform(&mut self, request: &Request) {
        let number = self.accesses;
        self.accesses += 1;
        let hit = |which: u64| which == number;
        let mut offset = request.lba as usize * 512;
        let mut len = request.data.len as usize;
        let mut completion = Completion { tag: request.tag, status: 0, transferred: len as u64 };
        match self.mischief {
            Mischief::LostWrite(n) if hit(n) => len = 0,
            Mischief::TornWrite(n) if hit(n) => len /= 2,
            Mischief::Misplaced(n) if hit(n) => offset = (offset + len) % self.data.len(),
            Mischief::Fail(n) if hit(n) => completion.status = 2,
            Mischief::Short(n) if hit(n) => completion.transferred /= 2,
            Mischief::Silence(n) if hit(n) => return,
            Mischief::Twice(n) if hit(n) => self.done.push(completion),
            _ => {}
        }
        let mut left = len;
        for (address, part) in request.data.segments() {
            let part = (part as usize).min(left);
            left -= part;
            let (disk, memory) = (&mut self.data[offset..offset + part], address as *mut u8);
            offset += part;
            // SAFETY: the driver's buffer, which `dma` leaked.
            let memory = unsafe { core::slice::from_raw_parts_mut(memory, part) };
            match request.op {
                Op::Read => memory.copy_from_slice(disk),
                Op::Write => disk.copy_from_slice(memory),
                Op::Flush => {}
            }
            if self.mischief == Mischief::Flip(number) && left == 0 && part != 0 {
                memory[part - 1] ^= 0x10;
            }
        }
        self.done.push(completion);
    }
}

impl Adapter for Ram {
    fn slots(&self) -> u32 {
        64
    }
    fn layout(&self) -> Layout {
        self.layout
    }
    fn geometry<P: Platform>(&mut self, _: &mut P, _: u32) -> Result<Geometry, Fault> {
        Ok(Geometry { blocks: self.data.len() as u64 / 512, block_size: 512 })
    }
    fn submit<P: Platform>(&mut self, _: &mut P, request: &Request) -> bool {
        self.queue.push(*request);
        self.deepest = self.deepest.max(self.queue.len());
        true
    }
    fn kick<P: Platform>(&mut self, _: &mut P) {}
    fn interrupted<P: Platform>(&mut self, _: &mut P) {
        // Backwards, so that the order of completions is another than that of requests.
        for request in core::mem::take(&mut self.queue).iter().rev() {
            self.perform(request);
        }
    }
    fn poll<P: Platform>(&mut self, _: &mut P) -> Option<Completion> {
        self.done.pop()
    }
    fn reset<P: Platform>(&mut self, _: &mut P) -> Result<(), Fault> {
        self.resets += 1;
        self.queue.clear();
        self.done.clear();
        Ok(())
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

const JOB: Workload = Workload { queue_depth: 8, workers: 2, ..Workload::FILL };

fn run(ram: &mut Ram, host: &mut Host, job: Workload) -> Report {
    let mut report = Report::EMPTY;
    LoadGenerator::new().run(ram, host, &job, &mut report);
    report
}

/// Fill, then the mischief in a pass or a churn; the first fault's kind.
fn fault_of(mischief: impl Fn(u64) -> Mischief, jobs: &[Mode]) -> (u32, u64) {
    let (mut ram, mut host) = (Ram::new(1 << 20, Layout::Contiguous, Mischief::None), Host::new());
    assert_eq!(run(&mut ram, &mut host, JOB).errors, 0);
    ram.mischief = mischief(ram.accesses + 100);
    let mut last = Report::EMPTY;
    for &mode in jobs {
        let generation = if mode == Mode::Churn || jobs.len() == 1 { 1 } else { 2 };
        last = run(&mut ram, &mut host, Workload { mode, generation, ios: 2000, ..JOB });
        if last.errors != 0 {
            break;
        }
    }
    (last.fault.kind, last.errors)
}

#[test]
fn every_size_layout_and_span_verifies() {
    for layout in [Layout::Contiguous, Layout::Scattered] {
        for shift in 9..=18 {
            let (mut ram, mut host) = (Ram::new(4 << 20, layout, Mischief::None), Host::new());
            let block_size = 1u32 << shift;
            let span = JOB.block_size.max(block_size * 8).into();
            let job = Workload { block_size, start: 512, span, ..JOB };
            for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
                let report = run(&mut ram, &mut host, Workload { mode, ios: 500, ..job });
                assert_eq!(
                    (report.errors, report.fault),
                    (0, Fault::EMPTY),
                    "{layout:?} {block_size} {mode:?}"
                );
                let blocks = span / u64::from(block_size);
                let wanted = if mode == Mode::Churn { 500 + blocks } else { blocks };
                assert_eq!((report.ios, report.bytes), (wanted, wanted * u64::from(block_size)));
                assert_eq!(report.latency.count, wanted);
            }
            assert!(ram.data[..512].iter().all(|&byte| byte == 0), "nothing before the span is touched");
            assert!(ram.data[512 + span as usize..].iter().all(|&byte| byte == 0), "nor behind it");
        }
    }
}

#[test]
fn a_check_tells_what_it_expects_from_what_it_finds() {
    let (mut ram, mut host) = (Ram::new(1 << 20, Layout::Contiguous, Mischief::None), Host::new());
    assert_eq!(run(&mut ram, &mut host, JOB).errors, 0);
    let check = Workload { mode: Mode::Check, ..JOB };
    let other = run(&mut ram, &mut host, Workload { generation: 2, ..check });
    assert_eq!((other.fault.kind, other.errors), (Fault::WRONG_GENERATION, 256));
    assert_eq!((other.fault.expected, other.fault.found), (2, 1));
    assert_eq!(run(&mut ram, &mut host, Workload { seed: 4, ..check }).fault.kind, Fault::WRONG_GENERATION);
    ram.data.fill(0);
    assert_eq!(run(&mut ram, &mut host, check).errors, 256);
}

#[test]
fn nothing_wrong_stays_unnoticed() {
    let pass = &[Mode::Fill, Mode::Check];
    assert_eq!(fault_of(Mischief::LostWrite, pass), (Fault::WRONG_GENERATION, 1));
    assert_eq!(fault_of(Mischief::TornWrite, pass), (Fault::WRONG_GENERATION, 1));
    assert_eq!(fault_of(Mischief::Misplaced, &[Mode::Check]), (Fault::WRONG_ADDRESS, 1));
    assert_eq!(fault_of(Mischief::Flip, &[Mode::Check]), (Fault::WRONG_BODY, 1));
    assert_eq!(
        fault_of(Mischief::LostWrite, &[Mode::Check]),
        (Fault::WRONG_ADDRESS, 1),
        "a read without data"
    );
    assert_eq!(fault_of(Mischief::TornWrite, &[Mode::Check]), (Fault::WRONG_ADDRESS, 1), "a read of half");
    assert_eq!(fault_of(Mischief::Fail, &[Mode::Check]), (Fault::STATUS, 1));
    assert_eq!(fault_of(Mischief::Short, &[Mode::Check]), (Fault::STATUS, 1));
    assert_eq!(fault_of(|n| Mischief::Twice(n + 155), &[Mode::Check]), (Fault::SPURIOUS, 1), "the last one");
    assert_eq!(
        fault_of(Mischief::Twice, &[Mode::Check]).0,
        Fault::WRONG_ADDRESS,
        "taken for the next access"
    );
    assert_eq!(fault_of(Mischief::Silence, &[Mode::Check]), (Fault::TIMEOUT, 1));
    for mischief in [Mischief::LostWrite, Mischief::TornWrite, Mischief::Misplaced] {
        // Near the end of the churn: earlier, a later write may heal the block before it is read.
        let (kind, errors) = fault_of(|n| mischief(n + 1890), &[Mode::Churn]);
        assert!(kind != Fault::NONE && errors > 0, "churn notices");
    }
}

#[test]
fn a_job_ends_by_number_or_by_time_and_keeps_its_depth() {
    let (mut ram, mut host) = (Ram::new(1 << 20, Layout::Contiguous, Mischief::None), Host::new());
    let job = Workload { mode: Mode::Measure, ios: 1000, ..JOB };
    let report = run(&mut ram, &mut host, job);
    assert_eq!((report.ios, report.errors, report.in_flight, ram.deepest), (1000, 0, 16, 16));
    assert_eq!((report.capacity, report.sector), (1 << 20, 512));
    let report = run(&mut ram, &mut host, Workload { ios: 0, ticks: 5000, ..job });
    assert!(report.ticks >= 5000 && report.ticks < 6000, "{}", report.ticks);
    let report = run(&mut ram, &mut host, Workload { workers: 16, queue_depth: 256, ..job });
    assert_eq!((report.in_flight, ram.deepest), (64, 64), "no more than the adapter's slots");
}

#[test]
fn bursts_end_before_a_pause_and_the_job_goes_on_where_it_was() {
    let (mut ram, mut host) = (Ram::new(1 << 20, Layout::Contiguous, Mischief::None), Host::new());
    let shape = Shape { burst: 4, think: 500, ..Shape::PLAIN };
    let job = Workload {
        mode: Mode::Measure,
        random_percent: 0,
        read_percent: 0,
        workers: 1,
        ios: 62,
        shape,
        ..JOB
    };
    ram.data.fill(0xff);
    let report = run(&mut ram, &mut host, job);
    assert_eq!((report.ios, report.errors, ram.deepest), (62, 0, 4), "no more in flight than a burst has");
    assert!(ram.data[..62 * 4096].iter().all(|&byte| byte == 0), "62 blocks, one after the other");
    assert!(report.ticks > 15 * 500 && report.ticks < 16 * 600, "15 pauses: {}", report.ticks);
    let report = run(&mut ram, &mut host, Workload { ios: 0, ticks: 1200, ..job });
    assert!(report.ios > 8 && report.ios <= 12 && report.ticks < 1300, "{} {}", report.ios, report.ticks);
}

#[test]
fn sequential_streams_walk_from_their_own_starts() {
    let (mut ram, mut host) = (Ram::new(1 << 20, Layout::Contiguous, Mischief::None), Host::new());
    let job =
        Workload { mode: Mode::Measure, random_percent: 0, read_percent: 0, ios: 256, workers: 4, ..JOB };
    ram.data.fill(0xff);
    let report = run(&mut ram, &mut host, job);
    assert_eq!(report.errors, 0);
    assert!(ram.data.iter().all(|&byte| byte == 0), "four streams of 64 blocks cover all 256");
}

#[test]
fn a_job_that_cannot_be_is_refused_and_a_silent_adapter_is_reset() {
    let (mut ram, mut host) = (Ram::new(1 << 20, Layout::Contiguous, Mischief::None), Host::new());
    host.memory = 16 * 4096 - 1;
    let report = run(&mut ram, &mut host, JOB);
    assert_eq!((report.fault.kind, report.fault.found), (Fault::BAD_WORKLOAD, field::MEMORY));
    assert_eq!(ram.accesses, 0, "{:?}", report.fault);
    host.memory = 1 << 20;
    ram.mischief = Mischief::Silence(20);
    let report = run(&mut ram, &mut host, JOB);
    assert_eq!((report.fault.kind, report.fault.found, ram.resets), (Fault::TIMEOUT, 1, 1));
    assert_eq!(run(&mut ram, &mut host, JOB).errors, 0, "works again afterwards");
}
