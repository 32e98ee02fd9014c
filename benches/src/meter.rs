//! The meter: runs every combination in rounds and computes ratios.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use facts::disk::{DiskFacts, OpenDisk};
use facts::host::Host;
use facts::names::{Adapter, Coalescing};
use facts::tsc::to_ticks;
use guest_driver::{Mode, Shape, Workload};
use guest_tests::rig::{Measurement, Rig, RigError};

use crate::axes::Engine;
use crate::bed::fill;
use crate::compare::{self, Baseline, Comparison};
use crate::confidence;
use crate::journal::{Identity, Journal, Record, Run};
use crate::matrix::{Candidate, Combination, Load, Matrix, schedule};
use crate::mix::Mix;
use crate::native::Native;
use crate::progress::Progress;
use crate::result::{Document, Ratio, RunResult};
use crate::row::Row;
use crate::stat::{NoRatio, Stat, ratios as pairs};

/// An engine: starts guests.
pub trait Rigs {
    /// The engine.
    fn engine(&self) -> Engine;

    /// A guest with this adapter and this disk as target 0.
    ///
    /// # Errors
    /// [`RigError`] if the guest cannot be started.
    fn rig(
        &mut self,
        adapter: Adapter,
        coalescing: Coalescing,
        subject: &OpenDisk,
    ) -> Result<Box<dyn Rig>, RigError>;

    /// The same disk with no adapter.
    fn native(&mut self, subject: &OpenDisk) -> Box<dyn Rig> {
        Box::new(Native::new(subject.clone()))
    }
}

/// A measurement to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Dimensions.
    pub matrix: Matrix,
    /// Accesses stay within this number of bytes at the start of each disk; `None`: the whole disk.
    pub span: Option<u64>,
    /// Length of a run.
    pub duration: Duration,
    /// How long the load runs before each measured run: coalescing policies use the rate of the preceding time, and the guest was asleep
    /// while others ran.
    pub lead_in: Duration,
    /// The same for rows without an adapter.
    pub native_lead_in: Duration,
    /// Whether the disk is flushed after each run of writes, outside of the measurement. Otherwise the kernel would write the data back
    /// while others are measured.
    pub settle: bool,
    /// Rounds: runs of each combination.
    pub runs: u32,
    /// The comparisons.
    pub comparisons: Vec<Comparison>,
}

/// Maximum length of a combination's warm-up.
const WARM_UP: Duration = Duration::from_millis(100);

impl Plan {
    /// Add its dimensions and these disks to an identity, without paths, because those of temporary disks change.
    #[must_use]
    pub fn identify(&self, identity: Identity, subjects: &[OpenDisk]) -> Identity {
        let rows = self.matrix.combinations();
        let disks = subjects.iter().map(|subject| DiskFacts { path: None, ..subject.facts() });
        let disks: Vec<String> = disks.map(|disk| format!("{} of {}", disk.name(), disk.capacity)).collect();
        let distinct =
            |value: fn(&Combination) -> String| rows.iter().map(value).collect::<BTreeSet<String>>();
        identity
            .with("disks", &disks)
            .with("rows", &rows.len())
            .with("adapters", &distinct(|row| format!("{:?}", row.candidate)))
            .with("access", &distinct(|row| format!("{} {}%", row.load.access, row.load.read_percent)))
            .with("workloads", &self.matrix.mixes)
            .with("block sizes", &distinct(|row| row.load.block_size.to_string()))
            .with("queue depths", &distinct(|row| row.load.queue_depth.to_string()))
            .with("workers", &distinct(|row| row.load.workers.to_string()))
            .with("runs", &self.runs)
            .with("duration", &self.duration)
            .with("lead-in", &[self.lead_in, self.native_lead_in])
    }

    /// Expected time of all combinations: their runs, plus a quarter for overhead.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let rows = self.matrix.combinations();
        let time = |row: &Combination| {
            self.duration.min(WARM_UP) + (self.lead_in_of(row.candidate) + self.duration) * self.runs
        };
        rows.iter().map(time).sum::<Duration>().mul_f64(1.25)
    }

    const fn lead_in_of(&self, candidate: Candidate) -> Duration {
        match candidate {
            Candidate::Native => self.native_lead_in,
            Candidate::Adapter(..) => self.lead_in,
        }
    }
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The results.
    pub document: Document,
    /// Notes for the reader of the numbers.
    pub notes: Vec<String>,
    /// Whether anything failed: accesses, or whole rows.
    pub failed: bool,
}

/// Run everything that the journal does not have, and record it there.
pub fn run(
    plan: &Plan,
    subjects: &[OpenDisk],
    rigs: &mut dyn Rigs,
    host: Host,
    progress: &mut dyn Progress,
    journal: &mut Journal,
) -> Outcome {
    let attached =
        |combination: &Combination| match (combination.candidate, subjects.get(combination.load.disk)) {
            (Candidate::Adapter(adapter, _), Some(subject)) => {
                subject.adapter.is_none_or(|only| only == adapter)
            }
            _ => true,
        };
    let mut rows: Vec<Row> = plan.matrix.combinations().into_iter().filter(attached).map(Row::new).collect();
    let engine = rigs.engine();
    for run in journal.runs(engine) {
        // The runs of a row must be consecutive, because pairs are runs of the same round.
        let next =
            |row: &&mut Row| row.failure.is_none() && row.rounds() + 1 == run.round && run.round <= plan.runs;
        if let Some(row) = rows.get_mut(run.row).filter(next) {
            row.add(&run.measurement());
        }
    }
    let kept: Vec<u32> = rows.iter().map(Row::rounds).collect();
    let is_kept = |round: u32, index: usize| {
        let rounds = kept.get(index).copied().unwrap_or_default();
        // A complete row needs no warm-up.
        if round == 0 { rounds == plan.runs } else { round <= rounds }
    };
    let mut bench = Bench { plan, subjects, rigs, ready: HashMap::new() };
    progress.begin(rows.len() * (plan.runs as usize + 1));

    // Round 0 warms up caches, page tables and the guest's memory. It is not counted.
    for (round, index) in schedule(rows.len(), plan.runs + 1) {
        let Some(row) = rows.get_mut(index).filter(|row| row.failure.is_none()) else { continue };
        if is_kept(round, index) {
            progress.done();
            continue;
        }
        progress.job(&bench.describe(&row.combination));
        match bench.run(&row.combination, round, index) {
            Err(failure) => row.failure = Some(failure),
            Ok(measurement) if round > 0 => {
                row.add(&measurement);
                journal.add(&Record::Run(Run::new(engine, round, index, &measurement)));
            }
            Ok(_) => {}
        }
        progress.done();
        progress.rows(&|| conclude(plan, subjects, &rows, engine, host.clone()).document);
    }
    progress.end();
    conclude(plan, subjects, &rows, engine, host)
}

struct Bench<'a> {
    plan: &'a Plan,
    subjects: &'a [OpenDisk],
    rigs: &'a mut dyn Rigs,
    /// Started once; a guest without a job sleeps.
    ready: HashMap<(usize, Candidate), Box<dyn Rig>>,
}

impl Bench<'_> {
    fn run(&mut self, combination: &Combination, round: u32, index: usize) -> Result<Measurement, String> {
        let Combination { candidate, load } = *combination;
        let subject = self.subjects.get(load.disk).ok_or("no such disk")?;
        let warm_up = round == 0;
        let duration = if warm_up { self.plan.duration.min(WARM_UP) } else { self.plan.duration };
        let mix = self.plan.matrix.mix_of(&load);
        let workload = workload(&load, mix, subject, self.plan.span, seed(round, index), duration)?;
        let rig = match self.ready.entry((load.disk, candidate)) {
            Entry::Occupied(ready) => ready.into_mut(),
            Entry::Vacant(slot) => slot.insert(match candidate {
                Candidate::Native => self.rigs.native(subject),
                Candidate::Adapter(adapter, coalescing) => {
                    self.rigs.rig(adapter, coalescing, subject).map_err(|error| error.to_string())?
                }
            }),
        };
        let lead_in = self.plan.lead_in_of(candidate);
        if !warm_up && !lead_in.is_zero() {
            let lead_in = Workload { ticks: to_ticks(lead_in).max(1), ..workload };
            rig.run(&lead_in).map_err(|error| error.to_string())?;
        }
        let measurement = rig.run(&workload).map_err(|error| error.to_string())?;
        if self.plan.settle && load.access.writes() {
            fill::flush(subject.disk.as_ref()).map_err(|error| format!("cannot be flushed: {error}"))?;
        }
        Ok(measurement)
    }

    fn describe(&self, combination: &Combination) -> String {
        let Combination { candidate, load } = combination;
        let what = self.plan.matrix.mix_of(load).map_or(load.access.as_str(), |mix| mix.name.as_str());
        let disk = self.subjects.get(load.disk).map_or("", |subject| subject.disk.info().kind.format);
        let adapter = match candidate {
            Candidate::Native => "native",
            Candidate::Adapter(adapter, _) => adapter.as_str(),
        };
        format!("{adapter} {disk} {what} {}", facts::units::format_size(load.block_size.into()))
    }
}

/// The seed of a run's random offsets: another one for each row and round. With equal offsets, the first row of a round, which is `native`,
/// would fill the page cache for the others.
const fn seed(round: u32, index: usize) -> u32 {
    (index as u32) << 16 | (round + 1)
}

fn workload(
    load: &Load,
    mix: Option<&Mix>,
    subject: &OpenDisk,
    span: Option<u64>,
    seed: u32,
    duration: Duration,
) -> Result<Workload, String> {
    let info = subject.disk.info();
    let (block, sector) = (u64::from(load.block_size), info.logical_sector.bytes());
    if !load.block_size.is_multiple_of(sector) {
        return Err(format!("block size {block} is not whole sectors of {sector} bytes"));
    }
    if let Some(align) = mix.and_then(|mix| mix.alignment).filter(|align| !align.is_multiple_of(sector)) {
        return Err(format!("alignment {align} is not whole sectors of {sector} bytes"));
    }
    let of_mix = mix.and_then(|mix| mix.working_set).unwrap_or(u64::MAX);
    let available = span.unwrap_or(u64::MAX).min(info.capacity).min(of_mix);
    let span = available / block * block;
    if span == 0 {
        return Err(format!("block size {block} is larger than the disk ({available} bytes)"));
    }
    if load.access.writes() && info.read_only {
        return Err(format!("{} writes, and the disk is read-only", load.access));
    }
    Ok(Workload {
        mode: Mode::Measure,
        target: 0,
        random_percent: load.random_percent,
        read_percent: load.read_percent,
        block_size: load.block_size,
        queue_depth: load.queue_depth,
        workers: load.workers,
        seed,
        generation: 0,
        start: 0,
        span,
        ticks: to_ticks(duration).max(1),
        ios: 0,
        shape: mix.map_or(Shape::PLAIN, |mix| mix.shape(span)),
    })
}

fn conclude(plan: &Plan, subjects: &[OpenDisk], rows: &[Row], engine: Engine, host: Host) -> Outcome {
    let mut notes = Vec::new();
    let mut failed = false;
    let mut results: Vec<Option<RunResult>> = Vec::new();
    for row in rows {
        let result = subjects
            .get(row.combination.load.disk)
            .and_then(|subject| {
                row.result(subject, engine.as_str(), plan.matrix.mix_of(&row.combination.load))
            })
            .filter(|_| row.failure.is_none());
        if let Some(problem) = row.failure.clone().or_else(|| row.errors()) {
            failed = true;
            notes.push(format!("FAILED: {}: {problem}", name(row, subjects)));
        }
        results.push(result);
    }
    let mut ratios = Vec::new();
    let mut single_run = false;
    for comparison in &plan.comparisons {
        for (row, result) in rows.iter().zip(&results) {
            let Some(wanted) = comparison.baseline.of(&row.combination) else { continue };
            let baseline = rows.iter().zip(&results).find(|(row, _)| row.combination == wanted);
            let (Some(result), Some((base, Some(baseline)))) = (result, baseline) else { continue };
            let disk = result.disk.name();
            let name_of_ratio = match comparison.baseline {
                Baseline::Candidate(_) => {
                    let compared = compare::name(row.combination.candidate, wanted.candidate);
                    format!("{compared}, {disk}")
                }
                Baseline::Disk(_) => format!("{disk} against {}", baseline.disk.name()),
            };
            for &metric in comparison.metrics {
                match pairs(&base.values(metric), &row.values(metric)) {
                    Ok(pairs) => {
                        let confidence = confidence::paired(&pairs, metric.criterion());
                        let Some(Stat { median, min, max }) = Stat::of(pairs) else { continue };
                        ratios.push(Ratio {
                            name: name_of_ratio.clone(),
                            baseline: baseline.label(),
                            candidate: result.label(),
                            metric: metric.as_str().to_owned(),
                            median,
                            min,
                            max,
                            confidence,
                        });
                    }
                    Err(NoRatio::SingleRun) => single_run = true,
                    Err(reason) => {
                        notes.push(format!(
                            "no ratio of {} for {}: {reason}",
                            metric.as_str(),
                            name(row, subjects)
                        ));
                    }
                }
            }
        }
    }
    if single_run {
        notes.push(format!("no ratios: {} (--runs {})", NoRatio::SingleRun, plan.runs));
    }
    notes.extend(confidence::note(ratios.iter().filter_map(|ratio| ratio.confidence.as_ref())));
    let results = results.into_iter().flatten().collect();
    let document = Document { results, ratios, ..Document::empty(None, host) };
    Outcome { document, notes, failed }
}

fn name(row: &Row, subjects: &[OpenDisk]) -> String {
    let Combination { candidate, load } = row.combination;
    let disk = subjects.get(load.disk).map(OpenDisk::name).unwrap_or_default();
    let adapter = match candidate {
        Candidate::Native => "native".to_owned(),
        Candidate::Adapter(adapter, coalescing) => format!("{adapter} ({coalescing})"),
    };
    let (access, depth, workers) = (load.access, load.queue_depth, load.workers);
    let size = facts::units::format_size(load.block_size.into());
    format!("{adapter} over {disk}, {access} {size}, depth {depth}, workers {workers}")
}

#[cfg(test)]
pub(crate) mod tests;
