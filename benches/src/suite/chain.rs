//! Chains of differencing disks: cost over their length.

use facts::disk::DiskFacts;
use facts::names::{Adapter, Coalescing};

use super::report::Report;
use super::view::{View, Wanted, cell, ratio_cell};
use crate::axes::Access;
use crate::bed::{Bed, BedError};
use crate::compare::{Baseline, Comparison, Metric};
use crate::grid::{Grid, left, right};
use crate::matrix::Matrix;
use crate::result::{Document, Ratio, RunResult};
use crate::svg::{Chart, Key, Panel, Style};
use crate::table::{grouped, micros};

/// Runs of each combination.
pub(super) const RUNS: u32 = 5;

/// Images of each chain.
const DEPTHS: [usize; 5] = [1, 8, 64, 256, 1024];
const LONGEST: usize = DEPTHS[DEPTHS.len() - 1];
/// Bytes of each disk.
const WORKING_SET: u64 = 64 << 20;
const BLOCK_SIZE: u32 = 4096;
const QUEUE_DEPTH: u32 = 32;
/// The formats with chains.
const FORMATS: [(&str, Style); 2] = [("vhd", Style::Solid), ("vhdx", Style::Dashed)];
/// With no adapter, and with one.
const SUBJECTS: [&str; 2] = ["native", Adapter::Pvscsi.as_str()];

/// The chains of each format, and one more: the longest with its data spread.
pub(super) const DISKS: usize = FORMATS.len() * (DEPTHS.len() + 1);

/// Each chain over the single image of its format.
pub(super) fn comparisons(disks: usize) -> Vec<Comparison> {
    // One more: the longest, with its data spread.
    let per_format = DEPTHS.len() + 1;
    let single = |disk: usize| disk / per_format * per_format;
    let baselines = (0..disks).map(|disk| (disk != single(disk)).then_some(single(disk))).collect();
    vec![Comparison {
        baseline: Baseline::Disk(baselines),
        metrics: &[Metric::Iops, Metric::Cycles, Metric::LatencyP50],
    }]
}

pub(super) fn bed() -> Result<Bed, BedError> {
    Bed::chains(&DEPTHS, WORKING_SET)
}

pub(super) fn matrix(disks: usize) -> Matrix {
    Matrix {
        native: true,
        adapters: vec![Adapter::Pvscsi],
        disks,
        access: vec![Access::RandRead],
        read_percent: 100,
        random_percent: 50,
        mixes: Vec::new(),
        block_sizes: vec![BLOCK_SIZE],
        queue_depths: vec![QUEUE_DEPTH],
        workers: vec![1],
        coalescing: vec![Coalescing::OioIops],
        wanted: Matrix::every,
    }
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    for view in View::of(document) {
        report.grids.push(grid(view));
        report.charts.extend(charts(view));
    }
    report
}

fn find<'a>(view: View<'a>, disk: &DiskFacts, adapter: &str) -> Option<&'a RunResult> {
    view.find(&Wanted {
        adapter,
        disk,
        rw: None,
        block_size: BLOCK_SIZE,
        queue_depth: QUEUE_DEPTH,
        workers: 1,
        coalescing: None,
    })
}

/// A row over that of the first disk.
fn ratio<'a>(view: View<'a>, disk: &DiskFacts, adapter: &str, metric: Metric) -> Option<&'a Ratio> {
    let single = view.disks().into_iter().find(|other| other.format == disk.format);
    let single = single.and_then(|first| find(view, first, adapter));
    view.ratio(single, find(view, disk, adapter), metric)
}

fn grid(view: View<'_>) -> Grid {
    let row = |disk: &DiskFacts, adapter: &str| {
        let result = find(view, disk, adapter);
        // Rows without an adapter are of the engine `native`.
        result?;
        Some(vec![
            adapter.to_owned(),
            disk.name(),
            cell(result.map(|result| result.iops.median), grouped),
            cell(result.map(|result| result.latency_us.p50), micros),
            cell(result.map(|result| result.latency_us.p99), micros),
            cell(result.map(|result| result.cycles_per_io.total.median), grouped),
            ratio_cell(ratio(view, disk, adapter, Metric::Iops)),
            ratio_cell(ratio(view, disk, adapter, Metric::Cycles)),
        ])
    };
    let rows = SUBJECTS
        .iter()
        .flat_map(|adapter| view.disks().into_iter().filter_map(move |disk| row(disk, adapter)));
    Grid {
        title: format!(
            "Chains, engine {}: 4 KiB random read of 64M cached, {QUEUE_DEPTH} outstanding",
            view.engine
        ),
        heads: vec![
            left(["adapter", ""]),
            left(["disk", ""]),
            right(["IOPS", ""]),
            right(["p50", "us"]),
            right(["p99", "us"]),
            right(["cycles", "/IO"]),
            right(["IOPS", "/ depth 1"]),
            right(["cycles/IO", "/ depth 1"]),
        ],
        rows: rows.collect(),
    }
}

/// Both ratios over the chain's length.
fn charts(view: View<'_>) -> Vec<(String, Chart)> {
    let chart = |title: &str, metric| Chart {
        title: format!("{title} ({}, 4 KiB random read)", view.engine),
        x_title: "images in the chain",
        y_title: "chain / single image",
        categories: DEPTHS.iter().map(usize::to_string).chain([format!("{LONGEST} spread")]).collect(),
        shared: true,
        reference: Some(1.0),
        keys: SUBJECTS
            .iter()
            .zip([0, 3])
            .flat_map(|(adapter, colour)| {
                FORMATS.map(|(format, style)| Key { label: format!("{adapter}, {format}"), colour, style })
            })
            .collect(),
        panels: vec![Panel {
            title: "64 MiB in the page cache".to_owned(),
            lines: SUBJECTS
                .iter()
                .flat_map(|adapter| {
                    FORMATS.map(|(format, _)| {
                        let disks = view.disks().into_iter().filter(|disk| disk.format == format);
                        disks.map(|disk| ratio(view, disk, adapter, metric).map(Ratio::stat)).collect()
                    })
                })
                .collect(),
        }],
        ..Chart::default()
    };
    [
        ("iops", chart("Throughput by length of the chain", Metric::Iops)),
        ("cpio", chart("CPU cycles per I/O by length of the chain", Metric::Cycles)),
    ]
    .map(|(name, chart)| (format!("{name}-{}", view.engine), chart))
    .into()
}
