//! Verify mode: every block is written with its own address and generation, and checked when it is read.
//!
//! For each block size the guest fills a span, reads it back, and then reads and writes it at random while it checks
//! every read and at last the whole span. Of a large disk the first and the last part are verified.

use std::fmt::Write;

use facts::disk::DiskFacts;
use facts::disk::OpenDisk;
use facts::host::Host;
use facts::names::{Adapter, Coalescing};
use facts::units::format_size;
use guest_driver::workload::Fault;
use guest_driver::{Mode, Shape, Workload};
use guest_tests::rig::Rig;
use serde::{Deserialize, Serialize};

use crate::meter::Rigs;
use crate::progress::Progress;
use crate::row::fault_text;
use crate::table;

/// Smallest and largest block sizes, as powers of two.
const SHIFTS: std::ops::RangeInclusive<u32> = 9..=20;

/// What to verify.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Adapters.
    pub adapters: Vec<Adapter>,
    /// Coalescing policies.
    pub coalescing: Vec<Coalescing>,
    /// Bytes of an access.
    pub block_sizes: Vec<u32>,
    /// Accesses in flight.
    pub queue_depth: u32,
    /// Bytes at each end of the disk; a disk of no more than twice that is verified whole.
    pub span: u64,
}

impl Plan {
    /// Every power of two from 512 bytes to 1 MiB.
    #[must_use]
    pub fn all_block_sizes() -> Vec<u32> {
        SHIFTS.map(|shift| 1 << shift).collect()
    }
}

/// The result for one block size on one disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Adapter.
    pub adapter: String,
    /// Coalescing policy.
    pub coalescing: String,
    /// The disk.
    pub disk: DiskFacts,
    /// `kvm` or `harness`.
    pub engine: String,
    /// Bytes of an access.
    pub block_size: u32,
    /// Accesses made.
    pub ios: u64,
    /// Bytes written or read and checked.
    pub bytes: u64,
    /// Accesses that failed or held wrong data.
    pub errors: u64,
    /// The first fault.
    pub fault: Option<String>,
}

/// All verdicts of one invocation, as a JSON document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`](facts::SCHEMA).
    pub schema: u32,
    /// The host.
    pub host: Host,
    /// One for each adapter, policy, disk and block size.
    pub verify: Vec<Verdict>,
}

/// Verdicts, and notes for their reader.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One for each adapter, policy, disk and block size.
    pub verdicts: Vec<Verdict>,
    /// Disks that were skipped, and why.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Whether there was a fault.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.fault.is_some())
    }
}

/// Verify every disk through every adapter.
pub fn run(plan: &Plan, subjects: &[OpenDisk], rigs: &mut dyn Rigs, progress: &mut dyn Progress) -> Outcome {
    let mut outcome = Outcome::default();
    let jobs = subjects.len() * plan.adapters.len() * plan.coalescing.len() * plan.block_sizes.len();
    progress.begin(jobs);
    for subject in subjects {
        if subject.disk.info().kind.format == "null" {
            outcome.notes.push("SKIP: null: it keeps no data, so there is nothing to verify".to_owned());
            continue;
        }
        for &adapter in plan.adapters.iter().filter(|each| subject.adapter.is_none_or(|only| only == **each))
        {
            for &coalescing in &plan.coalescing {
                progress.job(&format!("verify {adapter} {coalescing} {}", subject.name()));
                let mut rig = rigs.rig(adapter, coalescing, subject).map_err(|error| error.to_string());
                for (index, &block_size) in plan.block_sizes.iter().enumerate() {
                    if !block_size.is_multiple_of(subject.disk.info().logical_sector.bytes()) {
                        continue;
                    }
                    let mut verdict = Verdict {
                        adapter: adapter.as_str().to_owned(),
                        coalescing: coalescing.as_str().to_owned(),
                        disk: subject.facts(),
                        engine: rigs.engine().as_str().to_owned(),
                        block_size,
                        ios: 0,
                        bytes: 0,
                        errors: 0,
                        fault: None,
                    };
                    match &mut rig {
                        Ok(rig) => verify(plan, subject, rig.as_mut(), index, &mut verdict),
                        Err(refused) => verdict.fault = Some(refused.clone()),
                    }
                    outcome.verdicts.push(verdict);
                    progress.done();
                }
            }
        }
    }
    progress.end();
    outcome
}

/// One block size on one disk: both ends of it.
fn verify(plan: &Plan, subject: &OpenDisk, rig: &mut dyn Rig, index: usize, verdict: &mut Verdict) {
    let (capacity, block) = (subject.disk.info().capacity, u64::from(verdict.block_size));
    if capacity < block {
        verdict.fault = Some(format!("the disk ({capacity} bytes) is smaller than a block"));
        return;
    }
    let whole = |bytes: u64| bytes / block * block;
    let spans = if capacity <= plan.span.saturating_mul(2) {
        vec![(0, whole(capacity))]
    } else {
        let span = whole(plan.span).max(block);
        // The last span ends at the end of the disk, also where that is no multiple of the block.
        vec![(0, span), (capacity - span, span)]
    };
    for (number, (start, span)) in spans.into_iter().enumerate() {
        for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
            let workload = Workload {
                mode,
                target: 0,
                random_percent: 100,
                read_percent: 50,
                block_size: verdict.block_size,
                queue_depth: plan.queue_depth,
                workers: 1,
                seed: (index * 2 + number) as u32 + 1,
                // Generations of different block sizes never overlap, even after Churn has incremented them.
                generation: (index as u64 + 1) << 32,
                start,
                span,
                ticks: 0,
                ios: if mode == Mode::Churn { (span / block).min(20_000) } else { 0 },
                shape: Shape::PLAIN,
            };
            let done = match rig.run(&workload) {
                Ok(measurement) => measurement.report,
                Err(error) => {
                    verdict.fault = Some(error.to_string());
                    return;
                }
            };
            verdict.ios += done.ios;
            verdict.bytes += done.bytes;
            verdict.errors += done.errors;
            let fell_short = mode != Mode::Churn && done.ios != span / block;
            if done.errors > 0 || done.fault.kind != Fault::NONE || fell_short {
                let what = fault_text(&done.fault)
                    .unwrap_or_else(|| format!("{} of {} blocks were accessed", done.ios, span / block));
                verdict.fault = Some(format!("{mode:?}: {what}"));
                return;
            }
        }
    }
}

/// One line for each adapter, policy and disk; faults and skipped disks below.
#[must_use]
pub fn render(outcome: &Outcome) -> String {
    let mut text = String::new();
    let heads = ["adapter", "coalescing", "engine", "disk", "block sizes", "accesses", "MB", "verdict"];
    let mut lines: Vec<[String; 8]> = vec![heads.map(str::to_owned)];
    let same = |a: &Verdict, b: &Verdict| {
        (&a.adapter, &a.coalescing, &a.disk) == (&b.adapter, &b.coalescing, &b.disk)
    };
    for group in outcome.verdicts.chunk_by(same) {
        let Some(first) = group.first() else { continue };
        let sizes = group.iter().map(|verdict| verdict.block_size);
        let (smallest, largest) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        let failed = group.iter().filter(|verdict| verdict.fault.is_some()).count();
        lines.push([
            first.adapter.clone(),
            first.coalescing.clone(),
            first.engine.clone(),
            first.disk.name(),
            format!("{} ({}-{})", group.len(), format_size(smallest.into()), format_size(largest.into())),
            table::grouped(group.iter().map(|verdict| verdict.ios).sum::<u64>() as f64),
            table::grouped(group.iter().map(|verdict| verdict.bytes).sum::<u64>() as f64 / 1e6),
            if failed == 0 { "passed".to_owned() } else { format!("{failed} FAILED") },
        ]);
    }
    let widths: Vec<usize> = (0..8)
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    for verdict in &outcome.verdicts {
        if let Some(fault) = &verdict.fault {
            let size = format_size(verdict.block_size.into());
            let disk = verdict.disk.path.clone().unwrap_or_else(|| verdict.disk.name());
            let _ = writeln!(text, "FAILED: {} over {disk}, {size}: {fault}", verdict.adapter);
        }
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}
