//! Chains of differencing disks: cost over their length, and the cost of a naive walk of the images instead of the
//! block map.

pub(super) mod dimensions;
mod naive;

use std::time::Duration;

use facts::disk::DiskFacts;

use self::dimensions::{
    BLOCK_SIZE, DEPTHS, FORMATS, QUEUE_DEPTH, SUBJECTS, WORKING_SET, categories, find, is_naive,
};
use super::report::Report;
use super::view::{View, cell, ratio_cell};
use crate::bed::{Bed, BedError};
use crate::compare::{Baseline, Comparison, Metric};
use crate::grid::{Grid, left, right};
use crate::matrix::{Candidate, Combination, Matrix};
use crate::result::{Document, Ratio};
use crate::svg::{Chart, Key, Panel};
use crate::table::{grouped, micros};

/// Runs of each combination.
pub(super) const RUNS: u32 = 5;

/// Time to make the chains; the longest take most of it.
pub(super) const PREPARATION: Duration = Duration::from_secs(40);

/// Number of chains of a format: the lengths, and the longest with its data spread.
const PER_FORMAT: usize = DEPTHS.len() + 1;
/// Number of chains read through the block map.
const FLAT: usize = FORMATS.len() * PER_FORMAT;
/// The same chains follow, read by a naive walk.
pub(super) const DISKS: usize = 2 * FLAT;

const METRICS: &[Metric] = &[Metric::Iops, Metric::Cycles, Metric::LatencyP50];

/// Each chain over the single image of its format, and the naive walk over the block map.
pub(super) fn comparisons(disks: usize) -> Vec<Comparison> {
    let single = |disk: usize| disk / PER_FORMAT * PER_FORMAT;
    let lengths = |disk: usize| (disk < FLAT && disk != single(disk)).then(|| single(disk));
    let naive = |disk: usize| disk.checked_sub(FLAT);
    let against = |disks| Comparison { baseline: Baseline::Disk(disks), metrics: METRICS };
    vec![against((0..disks).map(lengths).collect()), against((0..disks).map(naive).collect())]
}

/// Naive walks run without an adapter, because an adapter adds the same cost to both.
fn wanted(row: &Combination) -> bool {
    row.load.disk < FLAT || row.candidate == Candidate::Native
}

pub(super) fn bed() -> Result<Bed, BedError> {
    Bed::chains(&DEPTHS, WORKING_SET)
}

pub(super) fn matrix(disks: usize) -> Matrix {
    Matrix { native: true, wanted, ..Matrix::random_reads(disks, &[BLOCK_SIZE], &[QUEUE_DEPTH]) }
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    for view in View::of(document) {
        report.grids.push(grid(view));
        report.charts.extend(charts(view));
        report.findings.extend(naive::report(view, &mut report.grids, &mut report.charts));
    }
    report
}

/// The chains that are read through the block map.
fn flat<'a>(view: View<'a>) -> Vec<&'a DiskFacts> {
    view.disks().into_iter().filter(|disk| !is_naive(disk)).collect()
}

/// The ratio of a row to the row of the first disk.
pub(super) fn ratio<'a>(
    view: View<'a>,
    disk: &DiskFacts,
    adapter: &str,
    metric: Metric,
) -> Option<&'a Ratio> {
    let single = view.disks().into_iter().find(|other| other.format == disk.format);
    let single = single.and_then(|first| find(view, first, adapter));
    view.ratio(single, find(view, disk, adapter), metric)
}

fn grid(view: View<'_>) -> Grid {
    let row = |disk: &DiskFacts, adapter: &str| {
        let result = find(view, disk, adapter);
        // Rows without an adapter have the engine `native`.
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
    let rows =
        SUBJECTS.iter().flat_map(|adapter| flat(view).into_iter().filter_map(move |disk| row(disk, adapter)));
    let [counted, per_io, _] = view.counted();
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
            right([counted, "/IO"]),
            right(["IOPS", "/ depth 1"]),
            right([per_io, "/ depth 1"]),
        ],
        rows: rows.collect(),
    }
}

/// Both ratios over the length of the chain.
fn charts(view: View<'_>) -> Vec<(String, Chart)> {
    let [.., counted] = view.counted();
    let chart = |title: &str, metric| Chart {
        title: format!("{title} ({}, 4 KiB random read)", view.engine),
        x_title: "images in the chain",
        y_title: "chain / single image",
        categories: categories(),
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
                        let disks = flat(view).into_iter().filter(|disk| disk.format == format);
                        disks.map(|disk| ratio(view, disk, adapter, metric).map(Ratio::stat)).collect()
                    })
                })
                .collect(),
        }],
        ..Chart::default()
    };
    [
        ("iops", chart("Throughput by length of the chain", Metric::Iops)),
        ("cpio", chart(&format!("CPU {counted} by length of the chain"), Metric::Cycles)),
    ]
    .map(|(name, chart)| (format!("{name}-{}", view.engine), chart))
    .into()
}
