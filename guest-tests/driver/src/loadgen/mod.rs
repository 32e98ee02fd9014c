//! The load generator: keeps an adapter busy with a job's accesses, checks what it reads, and reports.
//!
//! It works as a kernel does: completions are looked for when an interrupt arrived, each is followed by the next access
//! of its stream, and with nothing to do it sleeps.

mod job;
mod memory;
mod offsets;
mod pattern;
mod plan;
mod rng;

pub use offsets::Offsets;
pub use pattern::{SECTOR, Stamp, View};
pub use plan::{MAX_SLOTS, MAX_WORKERS};
pub use rng::Rng;

use crate::adapter::Layout;
use crate::adapter::{Adapter, PAGE};
use crate::platform::Platform;
use crate::workload::{Fault, Mode, Report, Workload, field};
use job::{Job, Phase, Slot, Stream};
use memory::{Buffers, Memory, Versions};
use plan::Plan;

/// State that lives from job to job. It has 32 KiB: keep it in a static or on the heap, not on a small stack.
#[derive(Debug)]
pub struct LoadGenerator {
    slots: [Slot; MAX_SLOTS],
    streams: [Stream; MAX_WORKERS],
    memory: Memory,
}

impl Default for LoadGenerator {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadGenerator {
    /// A load generator without memory yet: it takes it from the platform with the first job, more with larger ones.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: [Slot::IDLE; MAX_SLOTS], streams: [Stream::IDLE; MAX_WORKERS], memory: Memory::EMPTY }
    }

    /// Bytes of DMA memory that a job takes, but for Churn's four bytes for each block of its span.
    #[must_use]
    pub fn memory_needed(in_flight: usize, block_size: usize, layout: Layout) -> usize {
        Buffers::size(in_flight, block_size, layout)
    }

    /// Run a job to its end. Everything that went wrong is in the report, the first fault in full.
    pub fn run<A: Adapter, P: Platform>(
        &mut self,
        adapter: &mut A,
        platform: &mut P,
        workload: &Workload,
        report: &mut Report,
    ) {
        *report = Report::EMPTY;
        if let Err(fault) = self.try_run(adapter, platform, workload, report) {
            report.note(fault);
            if fault.kind == Fault::TIMEOUT
                && let Err(fault) = adapter.reset(platform)
            {
                report.note(fault);
            }
        }
    }

    fn try_run<A: Adapter, P: Platform>(
        &mut self,
        adapter: &mut A,
        platform: &mut P,
        workload: &Workload,
        report: &mut Report,
    ) -> Result<(), Fault> {
        let geometry = adapter.geometry(platform, workload.target)?;
        report.capacity = geometry.blocks.saturating_mul(u64::from(geometry.block_size));
        report.sector = geometry.block_size;
        let plan = Plan::new(workload, &geometry, adapter.slots())?;
        report.in_flight = plan.in_flight;
        let too_little = Fault { kind: Fault::BAD_WORKLOAD, found: field::MEMORY, ..Fault::EMPTY };
        let (count, layout) = (plan.in_flight as usize, adapter.layout());
        let buffer_bytes = Buffers::size(count, plan.block_size as usize, layout).next_multiple_of(PAGE);
        let version_bytes = if plan.mode == Mode::Churn { Versions::size(plan.blocks) } else { Some(0) };
        let all_bytes = version_bytes.and_then(|bytes| bytes.checked_add(buffer_bytes)).ok_or(too_little)?;
        let memory = self.memory.reserve(platform, all_bytes).ok_or(too_little)?;
        let buffers = Buffers::new(memory, count, plan.block_size, layout).ok_or(too_little)?;
        let versions = match plan.mode {
            Mode::Churn => {
                Some(Versions::new(memory.part(buffer_bytes, all_bytes - buffer_bytes).ok_or(too_little)?))
            }
            _ => None,
        };

        let before = (adapter.counters(), platform.interrupts());
        let mut job =
            Job::new(&plan, &mut self.slots, &mut self.streams, &buffers, versions.as_ref(), report);
        let start = platform.ticks();
        let outcome = match plan.mode {
            Mode::Measure if workload.shape.burst == 0 => job.run(adapter, platform, Phase::Load),
            Mode::Measure => job.run_bursts(adapter, platform, &workload.shape),
            Mode::Fill => job.run(adapter, platform, Phase::WriteAll),
            Mode::Check => job.run(adapter, platform, Phase::ReadAll),
            Mode::Churn => job
                .run(adapter, platform, Phase::Load)
                .and_then(|()| job.run(adapter, platform, Phase::ReadAll)),
        };
        report.ticks = platform.ticks().wrapping_sub(start);
        let after = adapter.counters();
        report.interrupts = platform.interrupts().wrapping_sub(before.1).into();
        report.doorbells = after.doorbells - before.0.doorbells;
        report.registers = after.registers - before.0.registers;
        outcome
    }
}

#[cfg(test)]
pub(crate) mod tests;
