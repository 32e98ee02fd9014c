//! `paradisk bench`: cycles per I/O.

pub(crate) mod progress;
pub(crate) mod signals;
mod suite;

use std::path::PathBuf;
use std::time::Duration;

use benches::axes::Engine;
use benches::bed::Bed;
use benches::compare::Comparison;
use benches::matrix::Matrix;
use benches::meter::{self, Rigs};
use benches::result::Document;
use benches::rigs::{HarnessRigs, KvmRigs, RigConfig};
use benches::suite::Suite;
use benches::{csv, html, table, verify};
use facts::SCHEMA;
use facts::disk::OpenDisk;
use facts::host::host;
use facts::names::{Adapter, Coalescing};

use self::progress::Bar;
use crate::coalescing::Thresholds;
use crate::disk_spec::DiskSpec;
use crate::failure::Failure;
use crate::load::Load;
use crate::{disk, output, units};

/// Accesses in flight at the most, over all workers: the limit of the load generator.
const MOST_IN_FLIGHT: u32 = 1024;
/// Length of a run over disks of the user; and over temporary disks, where the whole must end within a minute.
const DURATION: Duration = Duration::from_secs(2);
const BED_DURATION: Duration = Duration::from_millis(200);
/// Runs of each combination.
const RUNS: u32 = 5;

/// Measure what an I/O costs through each adapter over each disk, beside the same disk without any.
///
/// Without --disk, temporary disks are measured: RAM, null, a raw file, pass-through of a loop device (where one may be
/// made) and VHDs of each kind. Options that take a list are dimensions: all combinations run, interleaved round by round, each
/// beside the row `native`, which drives the same disk with no adapter and no guest.
///
/// Workloads that write (--rw randwrite, write, randrw, and --workload verify) OVERWRITE the disks given with --disk.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk bench
  paradisk bench --engine harness --disk null=1G --queue-depth 1,8,32,128 --html depth.html
  paradisk bench --disk path=/dev/sdb,readonly=on --block-size 512,4K,64K --json results.json
  paradisk bench --workload verify --disk scratch.vhd
  paradisk bench --suite pvscsi-vs-lsi --json results.json --plots plots")]
pub(crate) struct Args {
    /// What runs the guest: kvm, or harness (in this process, no virtual CPU) [default: kvm where /dev/kvm opens]
    #[arg(long)]
    engine: Option<Engine>,
    /// Adapters: pvscsi, lsi (LSI53C1030), lsi-posted (the same, requests do not leave the guest), lsi-sas (SAS1068),
    /// virtio-blk, virtio-scsi
    #[arg(long, value_delimiter = ',', default_value = "pvscsi,lsi,virtio-blk")]
    adapter: Vec<Adapter>,
    /// A disk, as a path or KEY=VALUE,...; may be repeated
    #[arg(long, value_name = "SPEC", long_help = DISK_HELP)]
    disk: Vec<DiskSpec>,
    /// verify: write every block with its address and generation, and check each on reading; by default at every power of two
    /// from 512 to 1M, over a whole disk of up to 32M, else over 16M at each of its ends
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rw", "read_percent", "workers", "duration", "runs", "csv", "html"])]
    workload: Option<Workload>,
    /// A published experiment with dimensions and disks of its own, on every engine that there is (or --engine), with plots;
    /// pvscsi-vs-lsi: cached random reads of 1K to 512K through both adapters, 4 minutes; coalescing: all policies at depths 1 to
    /// 256 on fast and slow storage, 8 minutes; chain: VHD and VHDX chains of 1 to 1,024 images, 3 minutes
    #[arg(long, value_name = "NAME", conflicts_with_all = ["adapter", "disk", "workload", "rw", "read_percent", "block_size", "queue_depth", "workers", "coalescing"])]
    suite: Option<Suite>,
    /// Where --suite writes its plots as SVG files [default: a folder of the suite's name]
    #[arg(long, value_name = "DIR", requires = "suite")]
    plots: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
    /// Independent streams of accesses, 1 to 16
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: Vec<u32>,
    /// Length of a run, as 500ms or 2s [default: 2s; 200ms without --disk, 300ms of a suite]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Runs of each combination [default: 5; 3 of --suite coalescing]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// When completions are signalled: off (each), batch (those reaped together once), oio (by outstanding I/Os),
    /// oio-iops (by both outstanding I/Os and rate)
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "oio-iops")]
    coalescing: Vec<Coalescing>,
    #[command(flatten)]
    thresholds: Thresholds,
    /// Write the results as JSON to FILE, or to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the results as one self-contained page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const DISK_HELP: &str = "A disk, as a path or KEY=VALUE,...; may be repeated

  path=FILE      image file or block device; FILE//: the image inside its disk, FILE//N: the one in partition N
  ram=SIZE       a disk in memory
  null=SIZE      a disk that completes at once and moves no data
  format=        auto (probed; a block device is passthrough), raw, passthrough, vhd
  readonly=      on, off
  direct=        on, off: O_DIRECT [default: on for passthrough]
  engine=        io_uring, threads: who moves the bytes
  adapter=       pvscsi, lsi, lsi-posted, lsi-sas, virtio-blk, virtio-scsi: the adapter that this disk is attached to
  serial=TEXT    serial number shown to the guest
  parent-dir=DIR where parents of a differencing disk may be, beside its own directory
  map-memory=    memory for the map of a VHD or VHDX at the most, as 256M [default: 64M]
  delay=TIME     ram, null: latency added to each request, as 100us or 5ms";

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    Verify,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(suite) = args.suite {
        return suite::run(args, suite);
    }
    check(args)?;
    let mut notes = Vec::new();
    let mut rigs = engine(args, &mut notes)?;
    let subjects = subjects(args, &mut notes)?;
    match args.workload {
        Some(Workload::Verify) => run_verify(args, &subjects, rigs.as_mut(), notes),
        None => run_meter(args, &subjects, rigs.as_mut(), notes),
    }
}

/// The engine of `--engine`; else KVM, or the harness with a note that says why.
fn engine(args: &Args, notes: &mut Vec<String>) -> Result<Box<dyn Rigs>, Failure> {
    let memory = guest_memory(&args.load.queue_depth, &args.workers, &block_sizes(args));
    let config = RigConfig { memory, thresholds: args.thresholds.get() };
    if args.engine != Some(Engine::Harness) {
        match (KvmRigs::new(config), args.engine) {
            (Ok(rigs), _) => return Ok(Box::new(rigs)),
            (Err(error), Some(_)) => return Err(no_kvm(&error)),
            (Err(error), None) => notes.push(format!("engine harness, for there is no KVM: {error}")),
        }
    }
    Ok(Box::new(HarnessRigs(config)))
}

fn no_kvm(error: &impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{error} (--engine harness needs no KVM)"))
}

/// Checks that clap cannot express.
fn check(args: &Args) -> Result<(), Failure> {
    args.load.check()?;
    for (depth, workers) in
        args.load.queue_depth.iter().flat_map(|depth| args.workers.iter().map(move |w| (depth, w)))
    {
        if depth * workers > MOST_IN_FLIGHT {
            return Err(Failure::Usage(format!(
                "--queue-depth {depth} x --workers {workers}: expected at most {MOST_IN_FLIGHT} accesses in flight"
            )));
        }
    }
    for disk in &args.disk {
        if let Some(adapter) = disk.adapter.filter(|adapter| !args.adapter.contains(adapter)) {
            return Err(Failure::Usage(format!(
                "disk {}: adapter={adapter} is not in --adapter",
                disk.source
            )));
        }
    }
    let writes = args.workload.is_some() || args.load.writes();
    match args.disk.iter().find(|disk| disk.read_only && writes) {
        Some(disk) => {
            Err(Failure::Usage(format!("disk {}: readonly=on, and the workload writes", disk.source)))
        }
        None => Ok(()),
    }
}

/// The disks of the user, or temporary ones.
fn subjects(args: &Args, notes: &mut Vec<String>) -> Result<Vec<OpenDisk>, Failure> {
    if args.disk.is_empty() {
        let bed = signals::held(Bed::make)?;
        notes.extend(bed.notes);
        return Ok(bed.subjects);
    }
    args.disk.iter().map(disk::open).collect()
}

/// Guest memory in bytes for the largest job: its buffers, those of the jobs before it (a driver never frees memory), and rings.
fn guest_memory(depths: &[u32], workers: &[u32], block_sizes: &[u32]) -> u64 {
    let [depth, workers, block] =
        [depths, workers, block_sizes].map(|values| u64::from(values.iter().max().copied().unwrap_or(0)));
    let jobs = depth * workers * block.next_multiple_of(4096);
    (64 << 20) + 2 * jobs.next_multiple_of(1 << 20)
}

fn block_sizes(args: &Args) -> Vec<u32> {
    args.load.block_sizes(|| match args.workload {
        None => vec![4096],
        Some(Workload::Verify) => verify::Plan::all_block_sizes(),
    })
}

fn run_meter(
    args: &Args,
    subjects: &[OpenDisk],
    rigs: &mut dyn Rigs,
    mut notes: Vec<String>,
) -> Result<(), Failure> {
    let matrix = Matrix {
        native: true,
        adapters: args.adapter.clone(),
        disks: subjects.len(),
        access: args.load.rw.clone(),
        read_percent: args.load.read_percent(),
        block_sizes: block_sizes(args),
        queue_depths: args.load.queue_depth.clone(),
        workers: args.workers.clone(),
        coalescing: args.coalescing.clone(),
    };
    let duration = args.duration.unwrap_or(if args.disk.is_empty() { BED_DURATION } else { DURATION });
    let comparisons = vec![Comparison::AGAINST_NATIVE];
    let plan = meter::Plan {
        matrix,
        span: None,
        duration,
        lead_in: Duration::ZERO,
        settle: false,
        runs: args.runs.unwrap_or(RUNS),
        comparisons,
    };
    let outcome = meter::run(&plan, subjects, rigs, host(), &mut Bar::new());
    notes.extend(outcome.notes);
    write_results(args, &outcome.document, "paradisk bench")?;
    output::conclude(&args.json, &table::render(&outcome.document, &notes), &notes, outcome.failed)
}

/// Write the JSON, CSV and HTML files of the options; their paths.
fn write_results(args: &Args, document: &Document, name: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    output::json(&args.json, document)?;
    written.extend(args.json.clone().filter(|_| !output::json_on_stdout(&args.json)));
    if let Some(path) = &args.csv {
        output::file(path, &csv::render(document))?;
        written.push(path.clone());
    }
    if let Some(path) = &args.html {
        output::file(path, &html::render(&[(name.to_owned(), document.clone())]))?;
        written.push(path.clone());
    }
    Ok(written)
}

fn run_verify(
    args: &Args,
    subjects: &[OpenDisk],
    rigs: &mut dyn Rigs,
    mut notes: Vec<String>,
) -> Result<(), Failure> {
    let depth = args.load.queue_depth.iter().max().copied().unwrap_or(1);
    let plan = verify::Plan {
        adapters: args.adapter.clone(),
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
    output::json(&args.json, &document)?;
    output::conclude(&args.json, &text, &notes, failed)
}
