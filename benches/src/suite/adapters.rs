//! All adapters on one disk: the cycles of an access by component, over the number of accesses in flight.

use std::sync::Arc;

use facts::disk::DiskFacts;
use facts::names::Adapter;
use paradisk_disk_formats::{NullDisk, SectorSize};

use super::published::IDE_NOTE;
use super::report::Report;
use super::view::{View, Wanted, cell, ratio_cell};
use crate::bed::{self, Bed, BedError};
use crate::compare::{Baseline, Comparison, Metric};
use crate::grid::{Grid, left, right};
use crate::matrix::{Candidate, Matrix};
use crate::result::{Cycles, Document, RunResult};
use crate::stat::Stat;
use crate::svg::{Chart, Key, Panel, Style};
use crate::table::{grouped, micros};

/// Runs of each combination.
pub(super) const RUNS: u32 = 5;

/// Bytes of the null disk.
const CAPACITY: u64 = 128 << 20;
const BLOCK_SIZE: u32 = 4096;
pub(super) const DEPTHS: [u32; 3] = [1, 8, 32];
/// Cycles of the smallest component that a chart shows.
const LEAST: f64 = 1.0;
/// A component of the cycles.
type Part = fn(&Cycles) -> Stat;
/// The components.
const PARTS: [(&str, Part); 4] = [
    ("guest: driver and load", |cycles| cycles.guest),
    ("exits", |cycles| cycles.exit),
    ("device", |cycles| cycles.device),
    ("host kernel", |cycles| cycles.kernel),
];

/// The total only: where instructions are counted, the split is not exact (KVM's instructions count as the guest's).
const WHOLE: [(&str, Part); 1] = [("all of the process", |cycles| cycles.total)];

/// Each adapter over PVSCSI.
pub(super) const COMPARISONS: [Comparison; 1] = [Comparison {
    baseline: Baseline::Candidate(|candidate| match candidate {
        Candidate::Adapter(Adapter::Pvscsi, _) | Candidate::Native => None,
        Candidate::Adapter(_, coalescing) => Some(Candidate::Adapter(Adapter::Pvscsi, coalescing)),
    }),
    metrics: &[Metric::Iops, Metric::Cycles],
}];

/// The adapters. `ide-native` is `ide` at other ports.
pub(super) fn adapters() -> impl Iterator<Item = Adapter> {
    Adapter::ALL.iter().copied().filter(|adapter| *adapter != Adapter::IdeNative)
}

pub(super) fn bed() -> Result<Bed, BedError> {
    let disk = Arc::new(NullDisk::new(CAPACITY, SectorSize::B512)?);
    Ok(Bed { subjects: vec![bed::subject(disk, None)], notes: Vec::new() })
}

pub(super) fn matrix(disks: usize) -> Matrix {
    Matrix { adapters: adapters().collect(), ..Matrix::random_reads(disks, &[BLOCK_SIZE], &DEPTHS) }
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    for view in View::of(document) {
        for disk in view.disks() {
            report.grids.push(grid(view, disk));
            report.charts.push((format!("adapters-{}", view.engine), chart(view, disk)));
        }
    }
    report.findings.push(IDE_NOTE.to_owned());
    report
}

fn find<'a>(view: View<'a>, disk: &DiskFacts, adapter: Adapter, queue_depth: u32) -> Option<&'a RunResult> {
    let adapter = adapter.as_str();
    view.find(&Wanted {
        adapter,
        disk,
        rw: None,
        block_size: BLOCK_SIZE,
        queue_depth,
        workers: 1,
        coalescing: None,
    })
}

fn grid(view: View<'_>, disk: &DiskFacts) -> Grid {
    let row = |adapter: Adapter, depth: u32| {
        let result = find(view, disk, adapter, depth);
        let ratio = |metric| view.ratio(find(view, disk, Adapter::Pvscsi, depth), result, metric);
        let cycles = |part: Part| cell(result.map(|result| part(&result.cycles_per_io).median), grouped);
        let mut cells = vec![adapter.to_string(), depth.to_string()];
        cells.push(cell(result.map(|result| result.iops.median), grouped));
        cells.push(cell(result.map(|result| result.latency_us.p50), micros));
        cells.push(cycles(|cycles| cycles.total));
        if view.has_parts() {
            cells.extend(PARTS.map(|(_, part)| cycles(part)));
        }
        cells.push(ratio_cell(ratio(Metric::Cycles)));
        let each = |value: fn(&RunResult) -> f64| cell(result.map(value), |value| format!("{value:.3}"));
        cells.push(each(|result| result.exits_per_io));
        cells.push(each(|result| result.interrupts_per_io));
        cells
    };
    let [counted, per_io, _] = view.counted();
    let mut heads = vec![
        left(["adapter", ""]),
        right(["depth", ""]),
        right(["IOPS", ""]),
        right(["p50", "us"]),
        right([counted, "/IO"]),
    ];
    if view.has_parts() {
        heads.extend(["guest", "exits", "device", "kernel"].map(|part| right([part, "/IO"])));
    }
    heads.extend([right([per_io, "/ pvscsi"]), right(["exits", "/IO"]), right(["interrupts", "/IO"])]);
    Grid {
        title: format!("Adapters, engine {}: 4 KiB random read over {}", view.engine, disk.name()),
        heads,
        rows: DEPTHS.iter().flat_map(|depth| adapters().map(move |adapter| row(adapter, *depth))).collect(),
    }
}

/// Total cycles of an access.
pub(super) fn total(view: View<'_>, disk: &DiskFacts, adapter: Adapter, queue_depth: u32) -> Option<f64> {
    find(view, disk, adapter, queue_depth).map(|result| result.cycles_per_io.total.median)
}

/// Each adapter's cycles by component, or only their total if the split is not exact. A panel for each depth. A component of less than
/// [`LEAST`] has no point, and one without points no key: a logarithmic axis has no zero.
pub(super) fn chart(view: View<'_>, disk: &DiskFacts) -> Chart {
    let parts: &[(&str, Part)] = if view.has_parts() { &PARTS } else { &WHOLE };
    let line = |depth, part: Part| -> Vec<Option<Stat>> {
        let found = |adapter| find(view, disk, adapter, depth).map(|result| part(&result.cycles_per_io));
        adapters().map(|adapter| found(adapter).filter(|cycles| cycles.median >= LEAST)).collect()
    };
    let has_points = |part| DEPTHS.iter().any(|depth| line(*depth, part).iter().any(Option::is_some));
    let parts: Vec<_> =
        parts.iter().copied().enumerate().filter(|(_, (_, part))| has_points(*part)).collect();
    let [.., counted] = view.counted();
    Chart {
        title: format!("CPU {counted} by adapter ({}, {}, 4 KiB random read)", view.engine, disk.name()),
        x_title: "adapter",
        y_title: counted,
        categories: adapters().map(|adapter| adapter.to_string()).collect(),
        keys: parts
            .iter()
            .map(|&(colour, (label, _))| Key { label: label.to_owned(), colour, style: Style::Points })
            .collect(),
        panels: DEPTHS
            .iter()
            .map(|&depth| Panel {
                title: format!("{depth} in flight"),
                lines: parts.iter().map(|(_, (_, part))| line(depth, *part)).collect(),
            })
            .collect(),
        ..Chart::default()
    }
}
