//! Disks in use: requests through a queue, with each engine.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use super::super::crash::stamped;
use super::super::faults::{Fault, Host};
use super::images::{Kind, Template, values};
use super::inline::Inline;
use super::oracle::{Oracle, Places, UNIT};
use super::{Outcome, Runs};
use crate::contract::error::IoError;
use crate::contract::queue::{DiskQueue, EngineKind, Op, QueueConfig, Request};
use crate::formats::findings::Severity;
use crate::formats::open::OpenOptions;
use crate::host::effort::effort;
use crate::map::format::Format;
use crate::queue::conformance::{Driver, Guest, Random};
use crate::queue::file_queue::{file_queue, file_queue_with};

/// Size of the guest's memory in bytes.
const MEMORY: usize = 64 << 10;
/// Maximum number of requests in flight.
const DEPTH: u32 = 2;

/// An operation on the disk.
#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        len: u64,
        fua: bool,
    },
    /// Concurrent writes that do not overlap.
    Writes(Vec<(u64, u64)>),
    Read {
        offset: u64,
        len: u64,
    },
    Flush,
    Discard {
        offset: u64,
        len: u64,
    },
    Zero {
        offset: u64,
        len: u64,
        may_unmap: bool,
    },
    /// Close the disk, and open it again.
    Reopen,
}

fn program(places: &Places, block: u64, length: u64, random: &mut Random) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..length).map(|_| step(places, block, random)).collect();
    // The first flush may report a loss. The second must not hide it.
    let (offset, len) = close(places, random);
    steps.extend([Step::Flush, Step::Write { offset, len, fua: false }, Step::Flush]);
    steps
}

fn step(places: &Places, block: u64, random: &mut Random) -> Step {
    let (offset, len) = close(places, random);
    match random.below(18) {
        0..6 => Step::Write { offset, len, fua: false },
        6..8 => Step::Write { offset, len, fua: true },
        8 => {
            let mut writes: Vec<_> = (0..DEPTH).map(|_| close(places, random)).collect();
            writes.sort_unstable();
            writes.dedup_by(|next, before| next.0 < before.0 + before.1);
            Step::Writes(writes)
        }
        9 => Step::Read { offset, len },
        10..14 => Step::Flush,
        14 => {
            let (offset, len) = wide(places, block, random);
            Step::Discard { offset, len }
        }
        15..17 => {
            let (offset, len) =
                if random.below(2) == 0 { (offset, len) } else { wide(places, block, random) };
            Step::Zero { offset, len, may_unmap: random.below(2) == 0 }
        }
        _ => Step::Reopen,
    }
}

/// Some sectors of one run.
fn close(places: &Places, random: &mut Random) -> (u64, u64) {
    let run = &places.runs[random.below(places.runs.len() as u64) as usize];
    let sectors = (run.end - run.start) / UNIT;
    let first = random.below(sectors);
    let count = 1 + random.below((sectors - first).min(24));
    (run.start + first * UNIT, count * UNIT)
}

/// One or two blocks.
fn wide(places: &Places, block: u64, random: &mut Random) -> (u64, u64) {
    let start = random.below(places.size.div_ceil(block)) * block;
    (start, ((1 + random.below(2)) * block).min(places.size - start))
}

/// The I/O engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Ring,
    Threads,
    Inline,
}

impl Engine {
    /// Only few runs use the engines of the crate, which need threads.
    fn of(seed: u64) -> Self {
        match seed % 10 {
            0 => Self::Ring,
            5 => Self::Threads,
            _ => Self::Inline,
        }
    }

    fn queue(self, format: &Arc<dyn Format>) -> Box<dyn DiskQueue> {
        let engine = if self == Self::Threads { EngineKind::Threads } else { EngineKind::IoUring };
        let config = QueueConfig { depth: DEPTH, engine };
        match self {
            Self::Inline => file_queue_with(format, &config, |_| Inline::new(format.files())),
            Self::Ring | Self::Threads => file_queue(format, &config),
        }
        .expect("a queue")
    }
}

/// A program for a disk, and its images.
struct Scenario<'a> {
    kind: Kind,
    engine: Engine,
    places: &'a Places,
    template: &'a Template,
    initial: &'a [u64],
    steps: &'a [Step],
}

/// An open disk.
struct Session<'a> {
    scenario: &'a Scenario<'a>,
    host: &'a Host,
    path: PathBuf,
    driver: Option<Driver>,
    memory: Guest,
    oracle: Oracle,
    next: u64,
    /// A flush has failed since the disk was opened: everything except reads may fail, too.
    flush_failed: bool,
}

impl Scenario<'_> {
    fn run(&self, host: &Host, fault: Option<(usize, Fault)>) -> Result<Outcome, String> {
        self.template.restore(host);
        let mut session = Session {
            scenario: self,
            host,
            path: self.kind.path(host.folder()),
            driver: None,
            memory: Guest::new(MEMORY),
            oracle: Oracle::new(self.initial),
            next: 1,
            flush_failed: false,
        };
        host.arm(fault);
        session.open()?;
        for (number, step) in self.steps.iter().enumerate() {
            session.step(step).map_err(|why| format!("step {number}, {step:x?}: {why}"))?;
        }
        session.close();
        let calls = host.disarm();
        let missed = fault.is_some() && !host.hit();
        let oracle = session.oracle.clone();
        // A check takes as long as the rest of a run, so each run checks only once.
        let checked = fault.map_or(0, |(index, _)| index % 2);
        self.verify(host, &oracle, false, checked == 0).map_err(|why| format!("in the cache: {why}"))?;
        if host.evict() {
            let verified = self.verify(host, &oracle, true, checked == 0);
            verified.map_err(|why| format!("after an eviction: {why}"))?;
        }
        if host.power_loss() {
            let verified = self.verify(host, &oracle, true, checked == 1);
            verified.map_err(|why| format!("after a power failure: {why}"))?;
        }
        Ok(if missed { Outcome::Missed } else { Outcome::Done(calls) })
    }

    /// Check that the disk has permitted values and no damage.
    fn verify(&self, host: &Host, oracle: &Oracle, after: bool, check: bool) -> Result<(), String> {
        let path = self.kind.path(host.folder());
        oracle.check(self.places, &values(&path, self.places)?, after)?;
        if !check {
            return Ok(());
        }
        let reports = self.kind.check(host.folder(), false).map_err(|error| error.to_string())?;
        match reports.iter().find(|report| report.worst() == Some(Severity::Damage)) {
            Some(report) => Err(format!("its content is good, and check says {:?}", report.findings)),
            None => Ok(()),
        }
    }
}

impl Session<'_> {
    fn open(&mut self) -> Result<(), String> {
        let before = self.host.hit();
        let open = || OpenOptions::new(&self.path).open_format();
        let disk = match open() {
            Err(_) if !before && self.host.hit() => open(),
            opened => opened,
        };
        let disk = disk.map_err(|error| format!("cannot open: {error}"))?;
        self.driver = Some(Driver { queue: self.scenario.engine.queue(&disk), done: Vec::new() });
        self.flush_failed = false;
        self.lost(before);
        Ok(())
    }

    fn close(&mut self) {
        let before = self.host.hit();
        self.driver = None;
        // The result of closing a disk is not guaranteed.
        if !before && self.host.hit() {
            self.oracle.flush_failed();
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Write { offset, len, fua } => {
                let done = self.request(Op::Write { fua: *fua }, *offset, *len)?;
                let acknowledged = done.is_ok();
                self.wrote(*offset, *len, acknowledged);
                if *fua {
                    match done {
                        Ok(()) => self.oracle.flushed(Some(self.scenario.places.of(*offset, *len))),
                        Err(_) => self.flush_failed(),
                    }
                }
            }
            Step::Writes(writes) => self.writes(writes)?,
            Step::Read { offset, len } => {
                if self.request(Op::Read, *offset, *len)?.is_ok() {
                    self.look(*offset, *len)?;
                }
            }
            Step::Flush => match self.request(Op::Flush, 0, 0)? {
                Ok(()) => self.oracle.flushed(None),
                Err(_) => self.flush_failed(),
            },
            Step::Discard { offset, len } => {
                // The range reads as old data or zeros.
                let _ = self.request(Op::Discard, *offset, *len)?;
                self.oracle.wrote(self.scenario.places.of(*offset, *len), |_| 0, false);
            }
            Step::Zero { offset, len, may_unmap } => {
                let done = self.request(Op::WriteZeroes { may_unmap: *may_unmap }, *offset, *len)?;
                self.oracle.wrote(self.scenario.places.of(*offset, *len), |_| 0, done.is_ok());
            }
            Step::Reopen => {
                self.close();
                self.oracle.reopened();
                self.open()?;
            }
        }
        Ok(())
    }

    /// Record a flush failure since `before`, even if it happened inside of another operation.
    fn lost(&mut self, before: bool) {
        if let (false, Some(Fault::Loses(_) | Fault::LosesLater(_))) = (before, self.host.fault()) {
            self.flush_failed();
        }
    }

    fn flush_failed(&mut self) {
        self.oracle.flush_failed();
        self.flush_failed = true;
    }

    /// Make a request with buffers at the start of the memory.
    fn request(&mut self, op: Op, offset: u64, len: u64) -> Result<Result<(), IoError>, String> {
        let before = self.host.hit();
        let moves = matches!(op, Op::Read | Op::Write { .. });
        if let Op::Write { .. } = op {
            self.prepare(0, offset, len);
        }
        // Two buffers if the request has more than one sector.
        let first = if len > UNIT { (len / UNIT / 2 * UNIT) as usize } else { len as usize };
        let bufs = [self.memory.buf(0, first), self.memory.buf(first, len as usize - first)];
        let bufs = if moves { &bufs[..if first < len as usize { 2 } else { 1 }] } else { &[] };
        let driver = self.driver.as_mut().ok_or("no disk")?;
        let done = driver.run(op, offset, len, bufs);
        self.judge(op, before, done)
    }

    /// A request may fail only if the host has failed, or after a failed flush.
    fn judge(
        &mut self,
        op: Op,
        before: bool,
        done: Result<(), IoError>,
    ) -> Result<Result<(), IoError>, String> {
        let hit = self.host.fault();
        if let (Err(error), false, Some(Fault::Short | Fault::Fails(Errno::INTR))) = (done, before, hit) {
            return Err(format!("is not repeated: {error}"));
        }
        let struck = !before && hit.is_some();
        self.lost(before);
        let excused = struck || self.flush_failed && op != Op::Read;
        match done {
            Err(IoError::Unsupported) if op == Op::Discard => Ok(done),
            // Metadata that may not be on the medium are not read again.
            Err(IoError::FlushLost { .. }) if self.flush_failed => Ok(done),
            Err(error) if !excused => Err(format!("fails: {error}")),
            Err(IoError::Damaged(what)) => Err(format!("calls the image damaged: {what}")),
            _ => Ok(done),
        }
    }

    /// Write new values to the memory.
    fn prepare(&self, at: usize, offset: u64, len: u64) {
        for (number, unit) in self.scenario.places.of(offset, len).enumerate() {
            self.memory.put(at + number * UNIT as usize, &stamped(self.value(unit)));
        }
    }

    fn value(&self, unit: usize) -> u64 {
        self.next << 16 | unit as u64
    }

    fn wrote(&mut self, offset: u64, len: u64, acknowledged: bool) {
        let next = self.next;
        let units = self.scenario.places.of(offset, len);
        self.oracle.wrote(units, |unit| next << 16 | unit as u64, acknowledged);
        self.next += 1;
    }

    fn writes(&mut self, writes: &[(u64, u64)]) -> Result<(), String> {
        let before = self.host.hit();
        let op = Op::Write { fua: false };
        let mut at = 0;
        for (tag, (offset, len)) in writes.iter().enumerate() {
            self.prepare(at, *offset, *len);
            let bufs = [self.memory.buf(at, *len as usize)];
            let request = Request { tag: tag as u64, op, offset: *offset, len: *len, bufs: &bufs };
            let driver = self.driver.as_mut().ok_or("no disk")?;
            driver.queue.push(&request).map_err(|error| error.to_string())?;
            at += *len as usize;
        }
        let driver = self.driver.as_mut().ok_or("no disk")?;
        driver.done.clear();
        driver.drain();
        let mut done = driver.done.clone();
        done.sort_unstable_by_key(|done| done.tag);
        if done.len() != writes.len() {
            return Err(format!("{} requests, {} completions", writes.len(), done.len()));
        }
        let next = self.next;
        for ((offset, len), done) in writes.iter().zip(done) {
            let done = self.judge(op, before, done.result)?;
            let units = self.scenario.places.of(*offset, *len);
            self.oracle.wrote(units, |unit| next << 16 | unit as u64, done.is_ok());
        }
        self.next += 1;
        Ok(())
    }

    /// Check that the values read are permitted.
    fn look(&self, offset: u64, len: u64) -> Result<(), String> {
        let data = self.memory.get(0, len as usize);
        self.oracle.check_range(self.scenario.places, offset, &data)
    }
}

/// Programs for one kind of image.
fn programs(kind: Kind, seeds: std::ops::Range<u64>, length: u64) {
    let host = Host::new();
    let initial = kind.make(host.folder());
    let template = Template::of(&host);
    let (places, block) = (kind.places(), kind.sizes().1);
    let mut runs = Runs::new();
    for seed in seeds.start..seeds.start + (seeds.end - seeds.start) * effort() {
        let mut random = Random(seed << 8 | 1);
        random.next();
        let steps = program(&places, block, length, &mut random);
        let engine = Engine::of(seed);
        let scenario =
            Scenario { kind, engine, places: &places, template: &template, initial: &initial, steps: &steps };
        let name = format!("{kind:?}, seed {seed}, {engine:?}, {steps:x?}");
        runs.every_fault(&host, &name, |host, fault| scenario.run(host, fault));
    }
    runs.end(&format!("{kind:?}"));
}

#[test]
fn raw() {
    programs(Kind::Raw, 0..8, 14);
}

#[test]
fn vhd_fixed() {
    programs(Kind::VhdFixed, 0..8, 14);
}

#[test]
fn vhd_dynamic() {
    programs(Kind::VhdDynamic, 0..6, 12);
}

#[test]
fn vhd_differencing() {
    programs(Kind::VhdDifferencing, 0..4, 12);
}

#[test]
fn vhdx_fixed() {
    programs(Kind::VhdxFixed, 0..3, 10);
}

#[test]
fn vhdx_dynamic() {
    programs(Kind::VhdxDynamic, 0..3, 10);
}

#[test]
fn vhdx_differencing() {
    programs(Kind::VhdxDifferencing, 0..3, 10);
}

#[test]
fn vhd_in_vhdx() {
    programs(Kind::VhdInVhdx, 0..3, 10);
}

#[test]
fn vhdx_in_vhd() {
    programs(Kind::VhdxInVhd, 0..3, 10);
}
