//! `paradisk image bench`: the cost of disks without an adapter, compared with a raw file.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use benches::bed::{self, BedError, OpenMode};
use benches::compare::{Baseline, Comparison, Metric};
use benches::journal::Journal;
use benches::matrix::Matrix;
use benches::meter::{self, Plan};
use benches::rigs::{HarnessRigs, RigConfig};
use benches::{csv, table};
use facts::disk::OpenDisk;
use facts::host::host;
use paradisk_disk_formats::{FormatName, Sectors, escaped, outermost};

use crate::bench::progress::Bar;
use crate::bench::signals;
use crate::disk_spec::{DiskSpec, Source};
use crate::failure::Failure;
use crate::load::Load;
use crate::{disk, output, units};

/// Default limit on the size of the temporary raw file.
const RAW_SIZE: u64 = 1 << 30;
/// The size of the temporary raw file is a multiple of this sector size, so that direct I/O works on every file system.
const RAW_SECTOR: u64 = 4096;

/// Measure disks without adapter and guest, compared with a raw file in the same run.
///
/// One thread drives each disk's queue. The raw file is temporary, fully written, on the first FILE's file system, and opened like the disk
/// (direct=, engine=); or it is --raw. All accesses stay within the size of the smallest disk. Each round runs every disk once, and ratios
/// to raw are computed for each round.
///
/// Workloads that write (--rw randwrite, write, randrw) and --fill OVERWRITE the disks, and need --destroy.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk image bench disk.vhd
  paradisk image bench path=fixed.vhd,direct=on path=dynamic.vhd,direct=on --queue-depth 1,32 --json results.json
  paradisk image bench scratch.vhd --raw scratch.img --rw randwrite --destroy")]
pub(super) struct Args {
    /// Disks, each a path or KEY=VALUE,... as for --disk of `paradisk bench`; opened read-only unless they are written
    #[arg(required = true, value_name = "FILE")]
    disks: Vec<DiskSpec>,
    #[command(flatten)]
    load: Load,
    /// Length of a run, such as 500ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    duration: Duration,
    /// Runs of each combination
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// The raw file or block device to compare with, in place of a temporary one
    #[arg(long, value_name = "FILE", conflicts_with = "raw_size")]
    raw: Option<PathBuf>,
    /// Maximum size of the temporary raw file: accesses stay inside it [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    raw_size: Option<u64>,
    /// Allow --rw and --fill to overwrite the disks, and the file of --raw
    #[arg(long)]
    destroy: bool,
    /// Write the accessed range before the measurement, as for the temporary raw file (needs --destroy)
    #[arg(long)]
    fill: bool,
    /// Write the results as JSON to FILE, or to standard output in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = output::json_target())]
    json: Option<PathBuf>,
    /// Write the results as CSV
    #[arg(long, value_name = "FILE", value_parser = output::csv_target())]
    csv: Option<PathBuf>,
}

impl Args {
    /// The given option that writes to the disks, if any.
    fn writer(&self) -> Option<String> {
        let pattern = self.load.rw.iter().find(|rw| rw.writes()).map(|rw| format!("--rw {rw}"));
        pattern.or(self.fill.then(|| "--fill".to_owned()))
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    check(args)?;
    let disks = args.disks.iter().map(|spec| open(args, spec)).collect::<Result<Vec<_>, _>>()?;
    let (modes, baselines) = modes(&args.disks, &disks);
    let raws = raws(args, &modes, smallest(&disks))?;
    let span = smallest(&raws).min(smallest(&disks));
    let mut against = vec![None; raws.len()];
    against.extend(baselines.into_iter().map(Some));
    let subjects = [raws, disks].concat();
    all_differ(&subjects)?;
    let mut notes = Vec::new();
    for (index, (subject, baseline)) in subjects.iter().zip(&against).enumerate() {
        let mode = modes.get(baseline.unwrap_or(index));
        let cached = mode.is_some_and(|mode| mode.direct != Some(true));
        let fill = args.fill && (baseline.is_some() || args.raw.is_some());
        notes.extend(prepare(subject, cached, fill, span)?);
    }

    let plan = Plan {
        matrix: matrix(args, subjects.len()),
        span: Some(span),
        duration: args.duration,
        lead_in: Duration::ZERO,
        native_lead_in: Duration::ZERO,
        settle: true,
        runs: args.runs,
        comparisons: vec![Comparison {
            baseline: Baseline::Disk(against),
            metrics: &[Metric::Cycles, Metric::Iops],
        }],
    };
    // It starts no guest: the matrix has no adapters.
    let mut rigs = HarnessRigs(RigConfig { memory: 0, thresholds: paradisk_devices::Coalescing::default() });
    let outcome = meter::run(&plan, &subjects, &mut rigs, host(), &mut Bar::new(), &mut Journal::none());
    notes.extend(outcome.notes);
    output::json(&args.json, &outcome.document)?;
    if let Some(path) = &args.csv {
        output::file(path, &csv::render(&outcome.document))?;
    }
    let text = table::render_disks(&outcome.document, &notes);
    output::conclude(&args.json, &text, &notes, outcome.failed)
}

/// Checks that clap cannot express.
fn check(args: &Args) -> Result<(), Failure> {
    args.load.check()?;
    let wrong =
        |disk: &DiskSpec, reason: &str| Err(Failure::Usage(format!("disk {}: {reason}", disk.source)));
    for disk in &args.disks {
        if disk.adapter.is_some() || disk.serial.is_some() {
            return wrong(disk, "adapter and serial are for disks that a guest sees; there is none here");
        }
        if let Some(writer) = args.writer().filter(|_| disk.read_only) {
            return wrong(disk, &format!("readonly=on, and {writer} writes"));
        }
    }
    match args.writer().filter(|_| !args.destroy) {
        Some(writer) => Err(Failure::Usage(format!(
            "{writer} overwrites the content of the disks: allow it with --destroy"
        ))),
        None => Ok(()),
    }
}

/// Open a disk, read-only unless the load writes.
fn open(args: &Args, spec: &DiskSpec) -> Result<OpenDisk, Failure> {
    disk::open(&DiskSpec { read_only: spec.read_only || args.writer().is_none(), ..spec.clone() })
}

fn smallest(subjects: &[OpenDisk]) -> u64 {
    subjects.iter().map(|subject| subject.disk.info().capacity).min().unwrap_or(0)
}

/// The distinct modes in which the disks are opened, and for each disk the index of its mode.
fn modes(specs: &[DiskSpec], disks: &[OpenDisk]) -> (Vec<OpenMode>, Vec<usize>) {
    let mut modes: Vec<OpenMode> = Vec::new();
    let mut number = |(spec, disk): (&DiskSpec, &OpenDisk)| {
        let passthrough = disk.disk.info().kind.format == FormatName::Passthrough.as_str();
        // Direct I/O is the default for block devices.
        let direct = spec.direct.or(passthrough.then_some(true));
        let mode = OpenMode { direct, engine: spec.engine };
        let same = |other: &OpenMode| {
            (other.direct.unwrap_or(false), other.engine) == (mode.direct.unwrap_or(false), mode.engine)
        };
        modes.iter().position(same).unwrap_or_else(|| {
            modes.push(mode);
            modes.len() - 1
        })
    };
    let numbers = specs.iter().zip(disks).map(&mut number).collect();
    (modes, numbers)
}

/// The raw files to compare with, one for each mode: the user's, or temporary ones of at most `capacity` bytes.
fn raws(args: &Args, modes: &[OpenMode], capacity: u64) -> Result<Vec<OpenDisk>, Failure> {
    if let Some(path) = &args.raw {
        return modes.iter().map(|mode| open(args, &as_raw(path, mode)?)).collect();
    }
    let folder = folder(&args.disks)?;
    let size = capacity.min(args.raw_size.unwrap_or(RAW_SIZE));
    let size = if size > RAW_SECTOR { size - size % RAW_SECTOR } else { size };
    let failed = |error: Failure| match error {
        Failure::Failed(error) => {
            Failure::Failed(format!("no raw file to compare with (--raw FILE names another): {error}"))
        }
        other => other,
    };
    let files = signals::held(|| bed::raw_files(&folder, size, modes)).map_err(failed)?;
    let write = |file| bed::write_through(file, size).map_err(|error| Failure::Failed(error.to_string()));
    files.iter().try_for_each(write).map_err(failed)?;
    Ok(files)
}

/// The user's raw file or block device, opened in this mode.
fn as_raw(path: &Path, mode: &OpenMode) -> Result<DiskSpec, Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::on(path, "cannot open", error))?;
    let device = metadata.file_type().is_block_device();
    Ok(DiskSpec {
        source: Source::Path(path.to_owned()),
        format: Some(if device { FormatName::Passthrough } else { FormatName::Raw }),
        read_only: false,
        direct: mode.direct.or(device.then_some(false)),
        engine: mode.engine,
        adapter: None,
        serial: None,
        delay: None,
        sectors: Sectors::default(),
        parent: None,
        parent_dir: None,
        map_memory: None,
        queues: None,
        threads: None,
    })
}

/// The folder of the first disk that is a file.
fn folder(disks: &[DiskSpec]) -> Result<PathBuf, Failure> {
    let folder = |disk: &DiskSpec| match &disk.source {
        Source::Path(path) => {
            let file = outermost(path);
            if file.is_file() { Some(fs::canonicalize(file).ok()?.parent()?.to_owned()) } else { None }
        }
        _ => None,
    };
    disks.iter().find_map(folder).ok_or_else(|| {
        Failure::Usage(
            "no disk is a file, so there is no folder for a raw file: name one with --raw FILE".to_owned(),
        )
    })
}

/// Refuse disks with equal facts: results are identified by them.
fn all_differ(subjects: &[OpenDisk]) -> Result<(), Failure> {
    let facts: Vec<_> = subjects.iter().map(OpenDisk::facts).collect();
    match facts
        .iter()
        .enumerate()
        .find(|(index, disk)| facts.iter().skip(index + 1).any(|other| other == *disk))
    {
        Some((_, disk)) => {
            let name = escaped(disk.path.as_ref().unwrap_or(&disk.format));
            Err(Failure::Usage(format!("disk {name}: given twice with the same options")))
        }
        None => Ok(()),
    }
}

/// Prepare the disk for the measurement: with `fill`, write it; with `cached`, read it into the page cache. Returns a note on unallocated
/// data.
fn prepare(subject: &OpenDisk, cached: bool, fill: bool, span: u64) -> Result<Option<String>, Failure> {
    if subject.path.is_none() {
        return Ok(None);
    }
    let failed = |error: BedError| Failure::Failed(error.to_string());
    if fill {
        bed::write_through(subject, span).map_err(failed)?;
    }
    // Probing the format has read a part of the disk into the page cache.
    subject.disk.uncache().map_err(|error| Failure::Failed(format!("{}: {error}", subject.name())))?;
    // Before reading: preallocated, unwritten extents count as data once they are in the page cache.
    let unallocated = bed::unallocated(&*subject.disk, span);
    if cached {
        bed::read_through(subject, span).map_err(failed)?;
    }
    let percent = unallocated as f64 * 100.0 / span as f64;
    Ok((unallocated > 0).then(|| {
        let name = subject.name();
        format!("{name}: {percent:.1}% is not written: reads there move no data, first writes there allocate")
    }))
}

fn matrix(args: &Args, disks: usize) -> Matrix {
    Matrix {
        native: true,
        adapters: Vec::new(),
        disks,
        access: args.load.rw.clone(),
        read_percent: args.load.read_percent(),
        random_percent: args.load.random_percent(),
        mixes: Vec::new(),
        block_sizes: args.load.block_sizes(|| vec![4096]),
        queue_depths: args.load.queue_depth.clone(),
        workers: vec![1],
        coalescing: Vec::new(),
        wanted: Matrix::every,
    }
}
