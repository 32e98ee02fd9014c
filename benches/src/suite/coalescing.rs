//! All coalescing policies over depth, on fast and slow storage.

use std::sync::Arc;
use std::time::Duration;

use facts::disk::DiskFacts;
use facts::disk::OpenDisk;
use facts::names::{Adapter, Coalescing};
use paradisk_disk_formats::{Layered, NullDisk, OpenError, SectorSize};

use super::published::{MANY_OUTSTANDING, SLOW_IOPS};
use super::report::Report;
use super::view::{View, Wanted, cell, short_ratio_cell};
use crate::bed::{self, Bed, BedError};
use crate::compare::{Baseline, Comparison, Metric};
use crate::grid::{Grid, left, right};
use crate::matrix::{Candidate, Matrix};
use crate::result::{Document, Ratio, RunResult};
use crate::stat::Stat;
use crate::svg::{Chart, Key, Panel, Scale, Style};
use crate::table::{grouped, micros};

/// Runs of each combination: as many as fit in a few minutes.
pub(super) const RUNS: u32 = 3;

pub(super) const DEPTHS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const BLOCK_SIZE: u32 = 4096;
const WORKERS: u32 = 1;
/// Bytes of each disk.
const WORKING_SET: u64 = 100 << 20;
/// Latencies of the slow disks.
const DELAYS: [Duration; 3] =
    [Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(5)];

/// The cached disk and the slow ones.
pub(super) const DISKS: usize = 1 + DELAYS.len();

/// Each policy over `off` and over `batch`.
pub(super) const COMPARISONS: [Comparison; 2] = [
    Comparison {
        baseline: Baseline::Candidate(|candidate| against(candidate, Coalescing::Off, &[Coalescing::Off])),
        metrics: &[
            Metric::Iops,
            Metric::Cycles,
            Metric::LatencyMean,
            Metric::LatencyP50,
            Metric::LatencyP99,
            Metric::Interrupts,
        ],
    },
    Comparison {
        baseline: Baseline::Candidate(|candidate| {
            against(candidate, Coalescing::Batch, &[Coalescing::Off, Coalescing::Batch])
        }),
        metrics: &[Metric::Iops, Metric::Cycles, Metric::LatencyP50, Metric::Interrupts],
    },
];

fn against(candidate: Candidate, baseline: Coalescing, without: &[Coalescing]) -> Option<Candidate> {
    match candidate {
        Candidate::Adapter(adapter, policy) if !without.contains(&policy) => {
            Some(Candidate::Adapter(adapter, baseline))
        }
        _ => None,
    }
}

/// Legend of the tables. Five ratios in a row leave no space for intervals.
const MARKS: &str = "Ratios: median (smallest-largest); ?: not decided at 95%. The intervals are in the JSON document and on the page.";

/// A latency has risen if the ratio of its mean to that of `off` is above 1 in every pair, and has at least this median.
///
/// With 8 I/Os outstanding, 7 are left when one has completed. Then `oio` delays one of five completions until the next one, which comes
/// after an eighth of the latency. That adds 2.5% to the mean; half of this is the threshold. The mean is compared because it is exact,
/// while percentiles have buckets of 6%.
const RISEN: f64 = 1.0 + 0.5 / (5.0 * 8.0);

pub(super) fn bed() -> Result<Bed, BedError> {
    let mut bed = Bed::cached(WORKING_SET)?;
    for delay in DELAYS {
        bed.subjects.push(delayed(delay)?);
    }
    Ok(bed)
}

/// A null disk with this mean latency. With a constant latency, accesses that were submitted together would always complete together, so no
/// policy could delay one until the next.
fn delayed(delay: Duration) -> Result<OpenDisk, OpenError> {
    let disk = Layered::new(Arc::new(NullDisk::new(WORKING_SET, SectorSize::B512)?)).spread(delay);
    Ok(OpenDisk { options: vec![format!("{delay:?}")], ..bed::subject(Arc::new(disk), None) })
}

pub(super) fn matrix(disks: usize) -> Matrix {
    Matrix {
        workers: vec![WORKERS],
        coalescing: Coalescing::ALL.to_vec(),
        ..Matrix::random_reads(disks, &[BLOCK_SIZE], &DEPTHS)
    }
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    for view in View::of(document) {
        report.grids.extend(view.disks().into_iter().map(|disk| grid(view, disk)));
        report.findings.push(finding(view));
        report.charts.extend(charts(view));
    }
    if !document.ratios.is_empty() {
        report.findings.push(MARKS.to_owned());
    }
    report
}

pub(super) fn find<'a>(
    view: View<'a>,
    disk: &DiskFacts,
    depth: u32,
    policy: Coalescing,
) -> Option<&'a RunResult> {
    view.find(&Wanted {
        adapter: Adapter::Pvscsi.as_str(),
        disk,
        rw: None,
        block_size: BLOCK_SIZE,
        queue_depth: depth,
        workers: WORKERS,
        coalescing: Some(policy.as_str()),
    })
}

fn grid(view: View<'_>, disk: &DiskFacts) -> Grid {
    let row = |depth: u32, policy: Coalescing| {
        let result = find(view, disk, depth, policy);
        let ratio = |baseline, metric| view.ratio(find(view, disk, depth, baseline), result, metric);
        let (off, batch) = (Coalescing::Off, Coalescing::Batch);
        vec![
            depth.to_string(),
            policy.to_string(),
            cell(result.map(|result| result.iops.median), grouped),
            cell(result.map(|result| result.latency_us.p50), micros),
            cell(result.map(|result| result.latency_us.p99), micros),
            cell(result.map(|result| result.interrupts_per_io), |rate| format!("{rate:.3}")),
            cell(result.map(|result| result.cycles_per_io.total.median), grouped),
            short_ratio_cell(ratio(off, Metric::Iops)),
            short_ratio_cell(ratio(off, Metric::Cycles)),
            short_ratio_cell(ratio(off, Metric::LatencyP50)),
            cell(ratio(off, Metric::Interrupts).map(|ratio| ratio.median), |ratio| format!("{ratio:.3}")),
            short_ratio_cell(ratio(batch, Metric::Iops)),
            short_ratio_cell(ratio(batch, Metric::Cycles)),
        ]
    };
    let rows = DEPTHS.iter().flat_map(|&depth| Coalescing::ALL.iter().map(move |&policy| (depth, policy)));
    Grid {
        title: format!(
            "PVSCSI by coalescing policy, engine {}, {}: 4 KiB random read",
            view.engine,
            disk.name()
        ),
        heads: vec![
            right(["depth", ""]),
            left(["coal-", "escing"]),
            right(["IOPS", ""]),
            right(["p50", "us"]),
            right(["p99", "us"]),
            right(["irqs", "/IO"]),
            right(["cycles", "/IO"]),
            right(["IOPS", "/ off"]),
            right(["cycles/IO", "/ off"]),
            right(["p50", "/ off"]),
            right(["irqs", "/ off"]),
            right(["IOPS", "/ batch"]),
            right(["cycles/IO", "/ batch"]),
        ],
        rows: rows.map(|(depth, policy)| row(depth, policy)).collect(),
    }
}

/// Whether `oio` has the published flaw of the first PVSCSI, and `oio-iops` does not. That PVSCSI coalesced by outstanding I/Os alone:
/// latency rises if many I/Os are outstanding but the storage completes few.
fn finding(view: View<'_>) -> String {
    let engine = view.engine;
    let condition = format!(
        "{MANY_OUTSTANDING} or more I/Os outstanding and storage that delivers fewer than {SLOW_IOPS} a second"
    );
    let (Some(oio), Some(both)) = (worst(view, Coalescing::Oio), worst(view, Coalescing::OioIops)) else {
        return format!(
            "{engine}: nothing to say about the published flaw of oio: no ratios with {condition}."
        );
    };
    let says = |policy: Coalescing, (slow, rise): (&RunResult, &Ratio)| {
        format!(
            "{policy} {}: mean latency at most {:.3} ({:.3}-{:.3}) of off's ({}, depth {}, {} IOPS)",
            if risen(rise) { "shows it" } else { "does not show it" },
            rise.median,
            rise.min,
            rise.max,
            slow.disk.name(),
            slow.queue_depth,
            grouped(slow.iops.median)
        )
    };
    format!(
        "{engine}: the published flaw of oio, latency that rises with {condition}: {}; {}.",
        says(Coalescing::Oio, oio),
        says(Coalescing::OioIops, both)
    )
}

/// The load on which a policy's mean latency rises most over that of `off`.
pub(super) fn worst<'a>(view: View<'a>, policy: Coalescing) -> Option<(&'a RunResult, &'a Ratio)> {
    let rises = slow_loads(view).into_iter().filter_map(|slow| {
        let rise = view.ratio(Some(slow), policy_at(view, slow, policy), Metric::LatencyMean)?;
        Some((slow, rise))
    });
    rises.max_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))
}

fn risen(rise: &Ratio) -> bool {
    rise.median >= RISEN && rise.min > 1.0
}

/// Whether the latency has risen, by the 95% interval. `None`: the interval does not decide.
pub(super) fn rises(rise: &Ratio) -> Option<bool> {
    let (low, high) = rise.confidence.map_or((rise.min, rise.max), |each| (each.low, each.high));
    match rise.median >= RISEN {
        true if low > 1.0 => Some(true),
        false if high < RISEN => Some(false),
        _ => None,
    }
}

/// Results of `off` with many I/Os outstanding and few completions per second.
fn slow_loads(view: View<'_>) -> Vec<&RunResult> {
    let disks = view.disks().into_iter();
    let all = disks
        .flat_map(|disk| DEPTHS.iter().filter_map(move |&depth| find(view, disk, depth, Coalescing::Off)));
    all.filter(|result| result.queue_depth >= MANY_OUTSTANDING && result.iops.median < SLOW_IOPS).collect()
}

/// The result with another policy on the same load.
fn policy_at<'a>(view: View<'a>, result: &RunResult, policy: Coalescing) -> Option<&'a RunResult> {
    find(view, &result.disk, result.queue_depth, policy)
}

/// CPIO, interrupts and latency over depth, each with a panel for each disk.
fn charts(view: View<'_>) -> Vec<(String, Chart)> {
    let chart = |title: &str, y_title, scale, lines: &[Shown]| Chart {
        title: format!("{title} by coalescing policy ({}, 4 KiB random read)", view.engine),
        x_title: "queue depth (I/Os)",
        y_title,
        categories: DEPTHS.iter().map(u32::to_string).collect(),
        scale,
        keys: lines.iter().flat_map(keys).collect(),
        panels: view
            .disks()
            .into_iter()
            .map(|disk| Panel {
                title: disk.name(),
                lines: lines.iter().flat_map(|shown| points(view, disk, shown.value)).collect(),
            })
            .collect(),
        ..Chart::default()
    };
    let shown = |name, style, value| Shown { name, style, value };
    let cycles = shown("", Style::Solid, |result| result.cycles_per_io.total);
    let interrupts = shown("", Style::Solid, |result| Stat::at(result.interrupts_per_io));
    let p50 = shown(" p50", Style::Solid, |result| Stat::at(result.latency_us.p50));
    let p99 = shown(" p99", Style::Dashed, |result| Stat::at(result.latency_us.p99));
    [
        ("cpio", chart("CPU cycles per I/O", "cycles per I/O", Scale::Log, &[cycles])),
        ("interrupts", chart("Interrupts per I/O", "interrupts per I/O", Scale::Log, &[interrupts])),
        ("latency", chart("Latency", "latency (us)", Scale::Log, &[p50, p99])),
    ]
    .map(|(name, chart)| (format!("{name}-{}", view.engine), chart))
    .into()
}

/// A metric of each policy in a chart.
struct Shown {
    /// What follows the policy's name in the legend.
    name: &'static str,
    style: Style,
    value: fn(&RunResult) -> Stat,
}

fn keys(shown: &Shown) -> Vec<Key> {
    let policies = Coalescing::ALL.iter().enumerate();
    policies
        .map(|(colour, policy)| Key { label: format!("{policy}{}", shown.name), colour, style: shown.style })
        .collect()
}

fn points(view: View<'_>, disk: &DiskFacts, value: fn(&RunResult) -> Stat) -> Vec<Vec<Option<Stat>>> {
    let line = |policy| DEPTHS.iter().map(|&depth| find(view, disk, depth, policy).map(value)).collect();
    Coalescing::ALL.iter().map(|&policy| line(policy)).collect()
}
