//! The loop of a running job. Its cost is part of every measured access, so it is kept short.

use crate::adapter::{Adapter, Completion, Op, Request};
use crate::platform::Platform;
use crate::workload::{Fault, Mode, Report, Shape};

use super::memory::{Buffers, Version, Versions};
use super::pattern::Stamp;
use super::plan::Plan;
use super::rng::Rng;

/// Which accesses are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// As the job's options say, until its limit.
    Load,
    /// A write to each block of the span.
    WriteAll,
    /// A read of each block of the span.
    ReadAll,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    submitted: u64,
    block: u64,
    /// What the block holds (a read), or will hold (a write).
    version: Version,
    stream: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Reading,
    Writing,
}

impl Slot {
    pub(super) const IDLE: Self =
        Self { submitted: 0, block: 0, version: Version::UNKNOWN, stream: 0, state: State::Idle };
}

/// A worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    rng: Rng,
    /// Next block of a sequential stream.
    cursor: u64,
}

impl Stream {
    pub(super) const IDLE: Self = Self { rng: Rng::new(0, 0), cursor: 0 };
}

struct Access {
    block: u64,
    write: bool,
    version: Version,
}

/// A job while it runs.
pub(super) struct Job<'a> {
    plan: &'a Plan,
    slots: &'a mut [Slot],
    streams: &'a mut [Stream],
    buffers: &'a Buffers,
    versions: Option<&'a Versions>,
    report: &'a mut Report,
    phase: Phase,
    /// Next block of a pass over the span.
    cursor: u64,
    /// Accesses that may still be started.
    left: u64,
    /// Ticks after which none is started any more.
    limit: u64,
    in_flight: u32,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        slots: &'a mut [Slot],
        streams: &'a mut [Stream],
        buffers: &'a Buffers,
        versions: Option<&'a Versions>,
        report: &'a mut Report,
    ) -> Self {
        for (index, stream) in streams.iter_mut().enumerate() {
            // Sequential streams start evenly spread over the span.
            let cursor = plan.blocks / u64::from(plan.workers) * index as u64 % plan.blocks;
            *stream = Stream { rng: Rng::new(plan.seed, index as u32), cursor };
        }
        for (index, slot) in slots.iter_mut().enumerate() {
            *slot = Slot { stream: (index % plan.workers as usize) as u8, ..Slot::IDLE };
        }
        let (left, limit) = (plan.ios, plan.ticks);
        Self {
            plan,
            slots,
            streams,
            buffers,
            versions,
            report,
            phase: Phase::Load,
            cursor: 0,
            left,
            limit,
            in_flight: 0,
        }
    }

    /// Run one phase to its end, with nothing in flight afterwards.
    pub(super) fn run<A: Adapter, P: Platform>(
        &mut self,
        adapter: &mut A,
        platform: &mut P,
        phase: Phase,
    ) -> Result<(), Fault> {
        self.phase = phase;
        let mut handled = platform.interrupts();
        // Acknowledge an earlier interrupt: a line that is still asserted would not interrupt again.
        adapter.interrupted(platform);
        while let Some(completion) = adapter.poll(platform) {
            let _ = self.complete(&completion, platform.ticks());
        }
        let start = platform.ticks();
        for slot in 0..self.plan.in_flight as usize {
            let now = platform.ticks();
            self.issue(adapter, platform, slot, now)?;
        }
        adapter.kick(platform);
        let mut last = start;
        while self.in_flight > 0 {
            while platform.interrupts() == handled {
                if platform.ticks().wrapping_sub(last) > platform.timeout_ticks() {
                    return Err(self.timed_out());
                }
                platform.wait_interrupt(handled);
            }
            handled = platform.interrupts();
            adapter.interrupted(platform);
            while let Some(completion) = adapter.poll(platform) {
                last = platform.ticks();
                if let Some(slot) = self.complete(&completion, last)
                    && last.wrapping_sub(start) < self.limit
                {
                    self.issue(adapter, platform, slot, last)?;
                }
            }
            adapter.kick(platform);
        }
        Ok(())
    }

    /// Run a load in bursts with pauses between them, until its limit.
    pub(super) fn run_bursts<A: Adapter, P: Platform>(
        &mut self,
        adapter: &mut A,
        platform: &mut P,
        shape: &Shape,
    ) -> Result<(), Fault> {
        let start = platform.ticks();
        let mut left = self.plan.ios;
        loop {
            let burst = left.min(shape.burst.into());
            self.left = burst;
            self.run(adapter, platform, Phase::Load)?;
            left -= burst - self.left;
            let spent = |platform: &mut P| platform.ticks().wrapping_sub(start);
            let time = self.plan.ticks.saturating_sub(spent(platform));
            if left == 0 || time == 0 {
                return Ok(());
            }
            platform.idle(shape.think.min(time));
            self.limit = self.plan.ticks.saturating_sub(spent(platform));
            if self.limit == 0 {
                return Ok(());
            }
        }
    }

    /// Start the next access with this slot, where there is one.
    #[inline]
    fn issue<A: Adapter, P: Platform>(
        &mut self,
        adapter: &mut A,
        platform: &mut P,
        index: usize,
        now: u64,
    ) -> Result<(), Fault> {
        let stream = usize::from(self.slots[index].stream);
        let Some(access) = self.next_access(stream) else { return Ok(()) };
        if self.plan.mode != Mode::Measure {
            let view = self.buffers.view(index);
            match self.stamp(access.block, access.version) {
                Some(stamp) if access.write => view.stamp(stamp),
                _ => view.spoil(),
            }
        }
        let slot = &mut self.slots[index];
        slot.submitted = now;
        slot.block = access.block;
        slot.version = access.version;
        slot.state = if access.write { State::Writing } else { State::Reading };
        let request = Request {
            tag: index as u32,
            target: self.plan.target,
            op: if access.write { Op::Write } else { Op::Read },
            lba: self.plan.offset(access.block) >> self.plan.lba_shift,
            blocks: self.plan.lbas,
            data: self.buffers.buffer(index),
        };
        if !adapter.submit(platform, &request) {
            // There are no more slots than ring entries: the adapter lost account of them.
            let found = self.in_flight.into();
            return Err(Fault {
                kind: Fault::SPURIOUS,
                offset: self.plan.offset(access.block),
                found,
                ..Fault::EMPTY
            });
        }
        self.in_flight += 1;
        Ok(())
    }

    #[inline]
    fn next_access(&mut self, stream: usize) -> Option<Access> {
        if self.phase != Phase::Load {
            return self.next_of_pass();
        }
        self.left = self.left.checked_sub(1)?;
        let plan = self.plan;
        let stream = &mut self.streams[stream];
        let mut block = plan.offsets.next(&mut stream.rng, &mut stream.cursor);
        let write = match plan.read_share {
            0 => true,
            0x1_0000_0000 => false,
            share => stream.rng.next() >> 32 >= share,
        };
        let mut version = Version::UNKNOWN;
        if let Some(versions) = self.versions {
            // Ends: there are no more accesses in flight than blocks.
            version = loop {
                match versions.take(block) {
                    Some(version) => break version,
                    None => block = if block + 1 == plan.blocks { 0 } else { block + 1 },
                }
            };
            if write {
                version = version.next();
            }
        }
        Some(Access { block, write, version })
    }

    fn next_of_pass(&mut self) -> Option<Access> {
        let block = self.cursor;
        if block == self.plan.blocks {
            return None;
        }
        self.cursor += 1;
        let version = self.versions.and_then(|versions| versions.take(block)).unwrap_or(Version::UNKNOWN);
        Some(Access { block, write: self.phase == Phase::WriteAll, version })
    }

    /// What a block of this version holds; `None` where that is not known.
    fn stamp(&self, block: u64, version: Version) -> Option<Stamp> {
        let writes = match self.versions {
            Some(_) => version.writes()?,
            None => 0,
        };
        Some(Stamp {
            offset: self.plan.offset(block),
            generation: self.plan.generation.wrapping_add(writes),
            seed: self.plan.seed.into(),
        })
    }

    /// Account for a completion; the slot that is free now.
    #[inline]
    fn complete(&mut self, completion: &Completion, now: u64) -> Option<usize> {
        let index = completion.tag as usize;
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.state != State::Idle) else {
            self.report.note(Fault { kind: Fault::SPURIOUS, found: completion.tag.into(), ..Fault::EMPTY });
            return None;
        };
        let Slot { block, version, state, submitted, .. } = *slot;
        slot.state = State::Idle;
        self.in_flight -= 1;
        self.report.ios += 1;
        self.report.latency.record(now.wrapping_sub(submitted));
        let good = completion.status == 0 && completion.transferred == u64::from(self.plan.block_size);
        if good {
            self.report.bytes += u64::from(self.plan.block_size);
        } else {
            self.report.note(Fault {
                kind: Fault::STATUS,
                status: completion.status,
                offset: self.plan.offset(block),
                expected: self.plan.block_size.into(),
                found: completion.transferred,
            });
        }
        if self.plan.mode != Mode::Measure {
            self.verify(index, block, version, state, good);
        }
        Some(index)
    }

    fn verify(&mut self, index: usize, block: u64, version: Version, state: State, good: bool) {
        if good
            && state == State::Reading
            && let Some(stamp) = self.stamp(block, version)
            && let Some(fault) = self.buffers.view(index).check(stamp)
        {
            self.report.note(fault);
        }
        if let Some(versions) = self.versions {
            let lost = state == State::Writing && !good;
            versions.put(block, if lost { Version::UNKNOWN } else { version });
        }
    }

    fn timed_out(&self) -> Fault {
        let oldest = self
            .slots
            .iter()
            .filter(|slot| slot.state != State::Idle)
            .min_by_key(|slot| slot.submitted)
            .map_or(0, |slot| self.plan.offset(slot.block));
        Fault { kind: Fault::TIMEOUT, offset: oldest, found: self.in_flight.into(), ..Fault::EMPTY }
    }
}
