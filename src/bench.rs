//! `paradisk bench`: cycles per I/O.

mod all;
mod args;
mod compare;
mod guest;
mod list;
mod live;
pub(crate) mod progress;
mod results;
pub(crate) mod signals;
mod suite;
mod suites;
mod unfinished;
mod workload;

pub(crate) use self::args::Args;

use std::time::Duration;

use benches::axes::Engine;
use benches::bed::Bed;
use benches::compare::Comparison;
use benches::journal::Identity;
use benches::matrix::Matrix;
use benches::meter::{self, Rigs};
use benches::rigs::{HarnessRigs, KvmRigs, RigConfig};
use benches::{table, verify};
use facts::SCHEMA;
use facts::disk::OpenDisk;
use facts::host::host;

use self::args::Command;
use self::guest::{guest_memory, no_kvm};
use self::live::Shown;
use self::progress::Bar;
use self::results::write_results;
use self::suites::Suites;
use self::workload::Workload;
use crate::failure::Failure;
use crate::{disk, output};

/// Maximum number of accesses in flight over all workers: the limit of the load generator.
const MOST_IN_FLIGHT: u32 = 1024;
/// Length of a run over the user's disks, and over temporary disks, where the whole measurement must end within a
/// minute.
const DURATION: Duration = Duration::from_secs(2);
const BED_DURATION: Duration = Duration::from_millis(200);
/// Runs of each combination.
const RUNS: u32 = 5;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(Command::Compare(args)) = &args.command {
        return compare::run(args);
    }
    if let Some(Suites::One(suite)) = args.suite {
        args.check_suite(suite)?;
    }
    if args.list {
        return output::print(&list::render(args)?);
    }
    match args.suite {
        Some(Suites::One(suite)) => return suite::run(args, suite),
        Some(Suites::All) => return all::run(args),
        None => {}
    }
    if let Some(Workload::List) = args.workload {
        return output::print(&workload::list());
    }
    check(args)?;
    let mut notes = args.fio.as_ref().map(|jobs| jobs.notes.clone()).unwrap_or_default();
    let mut rigs = engine(args, &mut notes)?;
    let subjects = subjects(args, &mut notes)?;
    match args.workload {
        Some(Workload::Verify) => run_verify(args, &subjects, rigs.as_mut(), notes),
        _ => run_meter(args, &subjects, rigs.as_mut(), notes),
    }
}

/// The engine of `--engine`; without it KVM, or the harness with a note of the reason.
fn engine(args: &Args, notes: &mut Vec<String>) -> Result<Box<dyn Rigs>, Failure> {
    let matrix = matrix(args, 1);
    let (block_size, in_flight) = matrix.largest();
    let memory = guest_memory(in_flight, block_size);
    let config = RigConfig { memory, thresholds: args.thresholds.get() };
    if args.engine != Some(Engine::Harness) {
        match (KvmRigs::new(config), args.engine) {
            (Ok(rigs), _) => return Ok(Box::new(rigs)),
            (Err(error), Some(_)) => return Err(no_kvm(&error)),
            (Err(error), None) => {
                notes.push(format!("engine harness, because KVM is not available: {error}"))
            }
        }
    }
    Ok(Box::new(HarnessRigs(config)))
}

/// Checks that clap cannot express.
fn check(args: &Args) -> Result<(), Failure> {
    args.load.check()?;
    args.check_workload()?;
    let workers = args.workers();
    for (depth, workers) in
        args.load.queue_depth.iter().flat_map(|depth| workers.iter().map(move |w| (depth, w)))
    {
        if depth * workers > MOST_IN_FLIGHT {
            return Err(Failure::Usage(format!(
                "--queue-depth {depth} x --workers {workers}: expected at most {MOST_IN_FLIGHT} accesses in flight"
            )));
        }
    }
    for disk in &args.disk {
        if let Some(adapter) = disk.adapter.filter(|adapter| !args.adapters().contains(adapter)) {
            return Err(Failure::Usage(format!(
                "disk {}: adapter={adapter} is not in --adapter",
                disk.source
            )));
        }
        if disk.queues.is_some() || disk.threads.is_some() {
            let text = format!(
                "disk {}: queues and threads are for `paradisk run`: this guest drives one queue",
                disk.source
            );
            return Err(Failure::Usage(text));
        }
    }
    let writes = match args.workload {
        Some(Workload::Verify) => true,
        _ if args.mixes().is_empty() => args.load.writes(),
        _ => args.mixes().iter().any(|mix| mix.access().writes()),
    };
    match args.disk.iter().find(|disk| disk.read_only && writes) {
        Some(disk) => {
            Err(Failure::Usage(format!("disk {}: readonly=on, and the workload writes", disk.source)))
        }
        None => Ok(()),
    }
}

/// The user's disks, or temporary ones.
fn subjects(args: &Args, notes: &mut Vec<String>) -> Result<Vec<OpenDisk>, Failure> {
    if args.disk.is_empty() {
        let bed = signals::held(Bed::make)?;
        notes.extend(bed.notes);
        return Ok(bed.subjects);
    }
    args.disk.iter().map(disk::open).collect()
}

fn block_sizes(args: &Args) -> Vec<u32> {
    args.load.block_sizes(|| match args.workload {
        Some(Workload::Verify) => verify::Plan::all_block_sizes(),
        _ => vec![4096],
    })
}

/// The dimensions of the options.
fn matrix(args: &Args, disks: usize) -> Matrix {
    let mixes = args.mixes().to_vec();
    Matrix {
        native: true,
        adapters: args.adapters().to_vec(),
        disks,
        access: if mixes.is_empty() { args.load.rw.clone() } else { Vec::new() },
        read_percent: args.load.read_percent(),
        random_percent: args.load.random_percent(),
        mixes,
        block_sizes: block_sizes(args),
        queue_depths: args.load.queue_depth.clone(),
        workers: args.workers(),
        coalescing: args.coalescing.clone(),
        wanted: Matrix::every,
    }
}

fn run_meter(
    args: &Args,
    subjects: &[OpenDisk],
    rigs: &mut dyn Rigs,
    mut notes: Vec<String>,
) -> Result<(), Failure> {
    let matrix = matrix(args, subjects.len());
    let of_jobs = args.fio.as_ref().and_then(|jobs| jobs.runtime);
    let duration =
        args.duration.or(of_jobs).unwrap_or(if args.disk.is_empty() { BED_DURATION } else { DURATION });
    let comparisons = vec![Comparison::AGAINST_NATIVE];
    let plan = meter::Plan {
        matrix,
        span: None,
        duration,
        lead_in: Duration::ZERO,
        native_lead_in: Duration::ZERO,
        settle: false,
        runs: args.runs.unwrap_or(RUNS),
        comparisons,
    };
    let mut shown = Shown::new(args.serve, "paradisk bench")?;
    let mut journal = unfinished::journal(&unfinished::Target::of(args), || {
        let here =
            Identity::of(&host()).with("engine", &rigs.engine()).with("disks of the command", &args.disk);
        plan.identify(here.with("thresholds", &args.thresholds.get()), subjects)
    })?;
    let outcome = meter::run(&plan, subjects, rigs, host(), &mut shown, &mut journal);
    notes.extend(outcome.notes);
    notes.extend(journal.notes());
    write_results(args, &outcome.document, &notes, "paradisk bench")?;
    unfinished::end(journal)?;
    output::conclude(args.json(), &table::render(&outcome.document, &notes), &notes, outcome.failed)
}

fn run_verify(
    args: &Args,
    subjects: &[OpenDisk],
    rigs: &mut dyn Rigs,
    mut notes: Vec<String>,
) -> Result<(), Failure> {
    let depth = args.load.queue_depth.iter().max().copied().unwrap_or(1);
    let plan = verify::Plan {
        adapters: args.adapters().to_vec(),
        coalescing: args.coalescing.clone(),
        block_sizes: block_sizes(args),
        queue_depth: depth,
        span: 16 << 20,
    };
    let mut outcome = verify::run(&plan, subjects, rigs, &mut Bar::new());
    notes.append(&mut outcome.notes);
    outcome.notes = notes.clone();
    let (text, failed) = (verify::render(&outcome), outcome.failed());
    let document = verify::Document { schema: SCHEMA, host: host(), verify: outcome.verdicts };
    output::json(args.json(), &document)?;
    output::conclude(args.json(), &text, &notes, failed)
}
