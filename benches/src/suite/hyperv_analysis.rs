//! The published comparison of Hyper-V's virtual disks and adapters: sequential accesses of 512 bytes and random ones of 8 KiB, compared
//! with the bare disk, on the host and in a guest behind each of Hyper-V's adapters.

use facts::disk::DiskFacts;
use facts::names::Adapter;

use super::published::{HYPERV_SOURCE, IDE_NOTE, IDE_STATEMENT, LOOPBACK_STATEMENT};
use super::report::Report;
use super::view::{View, Wanted, cell, ratio_cell};
use crate::axes::Access;
use crate::bed::{Bed, BedError};
use crate::compare::{Baseline, Comparison, Metric};
use crate::grid::{Grid, left, right};
use crate::matrix::{Candidate, Combination, Matrix};
use crate::result::{Document, Ratio, RunResult};
use crate::svg::{Chart, Key, Panel, Style};
use crate::table::{grouped, micros};

/// Runs of each combination.
pub(super) const RUNS: u32 = 5;

/// Bytes of each disk.
const WORKING_SET: u64 = 256 << 20;
const SEQUENTIAL: u32 = 512;
const RANDOM: u32 = 8192;
/// The published loads, and their names.
pub(super) const LOADS: [(Access, u32, &str); 4] = [
    (Access::Read, SEQUENTIAL, "512 B sequential read"),
    (Access::Write, SEQUENTIAL, "512 B sequential write"),
    (Access::RandRead, RANDOM, "8 KiB random read"),
    (Access::RandWrite, RANDOM, "8 KiB random write"),
];
/// Accesses in flight of the one worker.
const DEPTH: u32 = 8;
/// On the host, and behind each adapter.
pub(super) const SUBJECTS: [&str; 3] = ["native", Adapter::Storvsc.as_str(), Adapter::Ide.as_str()];
/// The first disk is the bare device. The last is a differencing disk, which is only read, because writes would change its structure.
const BARE: usize = 0;
const DIFFERENCING: usize = 3;
/// Number of disks.
pub(super) const DISKS: usize = DIFFERENCING + 1;
const METRICS: &[Metric] = &[Metric::Iops, Metric::Cycles];

/// Each disk over the bare one, and emulated IDE over the synthetic controller.
pub(super) fn comparisons(disks: usize) -> Vec<Comparison> {
    let disks = (0..disks).map(|disk| (disk != BARE).then_some(BARE)).collect();
    vec![
        Comparison { baseline: Baseline::Disk(disks), metrics: METRICS },
        Comparison {
            baseline: Baseline::Candidate(|candidate| match candidate {
                Candidate::Adapter(Adapter::Ide, policy) => {
                    Some(Candidate::Adapter(Adapter::Storvsc, policy))
                }
                _ => None,
            }),
            metrics: METRICS,
        },
    ]
}

pub(super) fn bed() -> Result<Bed, BedError> {
    Bed::hyperv(WORKING_SET)
}

/// Whether a load is a published one.
fn published(Combination { load, .. }: &Combination) -> bool {
    let reads = matches!(load.access, Access::Read | Access::RandRead);
    LOADS.iter().any(|(access, block_size, _)| (*access, *block_size) == (load.access, load.block_size))
        && (reads || load.disk != DIFFERENCING)
}

pub(super) fn matrix(disks: usize) -> Matrix {
    Matrix {
        native: true,
        adapters: vec![Adapter::Storvsc, Adapter::Ide],
        access: LOADS.map(|(access, ..)| access).to_vec(),
        wanted: published,
        ..Matrix::random_reads(disks, &[SEQUENTIAL, RANDOM], &[DEPTH])
    }
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    for view in View::of(document) {
        report.grids.push(grid(view));
        report.charts.push((format!("iops-{}", view.engine), chart(view)));
        report.findings.extend(findings(view));
    }
    report.findings.push(format!("Published: {HYPERV_SOURCE}."));
    report.findings.push(IDE_NOTE.to_owned());
    report
}

fn find<'a>(view: View<'a>, disk: &DiskFacts, adapter: &str, load: usize) -> Option<&'a RunResult> {
    let (access, block_size, _) = *LOADS.get(load)?;
    view.find(&Wanted {
        adapter,
        disk,
        rw: Some(access.as_str()),
        block_size,
        queue_depth: DEPTH,
        workers: 1,
        coalescing: None,
    })
}

/// The ratio of a row to the row of the bare disk.
pub(super) fn over_bare<'a>(
    view: View<'a>,
    disk: &DiskFacts,
    adapter: &str,
    load: usize,
    metric: Metric,
) -> Option<&'a Ratio> {
    let bare = view.disks().get(BARE).and_then(|bare| find(view, bare, adapter, load));
    view.ratio(bare, find(view, disk, adapter, load), metric)
}

/// The ratio of emulated IDE to the synthetic controller.
pub(super) fn ide_over_storvsc<'a>(
    view: View<'a>,
    disk: &DiskFacts,
    load: usize,
    metric: Metric,
) -> Option<&'a Ratio> {
    let [storvsc, ide] =
        [Adapter::Storvsc, Adapter::Ide].map(|adapter| find(view, disk, adapter.as_str(), load));
    view.ratio(storvsc, ide, metric)
}

fn grid(view: View<'_>) -> Grid {
    let row = |load: usize, disk: &DiskFacts, adapter: &str| {
        let result = find(view, disk, adapter, load)?;
        Some(vec![
            LOADS[load].2.to_owned(),
            disk.name(),
            adapter.to_owned(),
            grouped(result.iops.median),
            micros(result.latency_us.p50),
            grouped(result.cycles_per_io.total.median),
            ratio_cell(over_bare(view, disk, adapter, load, Metric::Iops)),
            ratio_cell(over_bare(view, disk, adapter, load, Metric::Cycles)),
            cell(
                (adapter == Adapter::Ide.as_str())
                    .then(|| ide_over_storvsc(view, disk, load, Metric::Iops))
                    .flatten()
                    .map(|ratio| ratio.median),
                |ratio| format!("{ratio:.2}"),
            ),
        ])
    };
    let rows = (0..LOADS.len()).flat_map(|load| {
        let disks = view.disks().into_iter();
        disks.flat_map(move |disk| SUBJECTS.iter().filter_map(move |adapter| row(load, disk, adapter)))
    });
    let [counted, per_io, _] = view.counted();
    Grid {
        title: format!("Hyper-V's disks and adapters, engine {}: 1 worker, {DEPTH} in flight", view.engine),
        heads: vec![
            left(["load", ""]),
            left(["disk", ""]),
            left(["adapter", ""]),
            right(["IOPS", ""]),
            right(["p50", "us"]),
            right([counted, "/IO"]),
            right(["IOPS", "/ bare disk"]),
            right([per_io, "/ bare disk"]),
            right(["IOPS", "/ storvsc"]),
        ],
        rows: rows.collect(),
    }
}

/// Throughput by disk, a panel for each load.
fn chart(view: View<'_>) -> Chart {
    let line = |adapter: &str, load| {
        let disks = view.disks().into_iter();
        disks.map(|disk| find(view, disk, adapter, load).map(|result| result.iops)).collect()
    };
    Chart {
        title: format!("Throughput by disk ({})", view.engine),
        x_title: "disk",
        y_title: "IOPS",
        categories: view.disks().into_iter().map(DiskFacts::name).collect(),
        keys: SUBJECTS
            .iter()
            .zip([6, 0, 3])
            .map(|(adapter, colour)| Key { label: (*adapter).to_owned(), colour, style: Style::Points })
            .collect(),
        panels: (0..LOADS.len())
            .map(|load| Panel {
                title: LOADS[load].2.to_owned(),
                lines: SUBJECTS.iter().map(|adapter| line(adapter, load)).collect(),
            })
            .collect(),
        ..Chart::default()
    }
}

/// Whether the published statements hold here.
fn findings(view: View<'_>) -> Vec<String> {
    let loads = || (0..LOADS.len()).flat_map(|load| view.disks().into_iter().map(move |disk| (load, disk)));
    let worse = |ratio: &Ratio| ratio.median < 1.0;
    let ide: Vec<&Ratio> =
        loads().filter_map(|(load, disk)| ide_over_storvsc(view, disk, load, Metric::Iops)).collect();
    let fixed = |disk: &DiskFacts| disk.subformat.as_deref() == Some("fixed");
    let loopback: Vec<&Ratio> = loads()
        .filter(|(_, disk)| fixed(disk))
        .filter_map(|(load, disk)| over_bare(view, disk, SUBJECTS[0], load, Metric::Iops))
        .collect();
    let range = |ratios: &[&Ratio]| {
        let medians = || ratios.iter().map(|ratio| ratio.median);
        format!("{:.2} to {:.2}", medians().fold(f64::MAX, f64::min), medians().fold(0.0, f64::max))
    };
    let mut findings = Vec::new();
    if !ide.is_empty() {
        findings.push(format!(
            "{}: \"{IDE_STATEMENT}\": IDE's throughput is below the synthetic controller's in {} of {} rows ({}).",
            view.engine,
            ide.iter().filter(|ratio| worse(ratio)).count(),
            ide.len(),
            range(&ide)
        ));
    }
    if !loopback.is_empty() {
        let within = |ratio: &&&Ratio| (ratio.median - 1.0).abs() <= 0.01;
        findings.push(format!(
            "{}: \"{LOOPBACK_STATEMENT}\": a fixed VHD on the host is within 1% of the bare disk in {} of {} rows ({}).",
            view.engine,
            loopback.iter().filter(within).count(),
            loopback.len(),
            range(&loopback)
        ));
    }
    findings
}
