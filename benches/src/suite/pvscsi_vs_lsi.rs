//! The published experiment: random reads of cached data by block size, PVSCSI against LSI Logic.

use facts::disk::DiskFacts;
use facts::names::Adapter;
use facts::units::format_size;

use super::published::{CPIO, SOURCE, THROUGHPUT};
use super::report::Report;
use super::view::{View, Wanted, cell, ratio_cell};
use crate::compare::{Baseline, Comparison, Metric};
use crate::grid::{Grid, left, right};
use crate::matrix::{Candidate, Matrix};
use crate::result::{Document, Ratio, RunResult};
use crate::stat::Stat;
use crate::svg::{Band, Chart, Key, Panel, Scale, Style};
use crate::table::grouped;

/// Bytes of the disk, all of it in the page cache.
pub(super) const WORKING_SET: u64 = 100 << 20;
/// Runs of each combination.
pub(super) const RUNS: u32 = 5;

const BLOCK_SIZES: [u32; 10] =
    [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
const WORKERS: [u32; 2] = [1, 2];
/// I/Os that each worker keeps outstanding.
const OUTSTANDING: u32 = 32;

/// PVSCSI over LSI Logic.
pub(super) const COMPARISONS: [Comparison; 1] = [Comparison {
    baseline: Baseline::Candidate(|candidate| match candidate {
        Candidate::Adapter(Adapter::Pvscsi, coalescing) => Some(Candidate::Adapter(Adapter::Lsi, coalescing)),
        _ => None,
    }),
    metrics: &[Metric::Iops, Metric::Cycles, Metric::LatencyP50, Metric::Interrupts],
}];

pub(super) fn matrix(disks: usize) -> Matrix {
    Matrix {
        adapters: vec![Adapter::Lsi, Adapter::Pvscsi],
        workers: WORKERS.to_vec(),
        ..Matrix::random_reads(disks, &BLOCK_SIZES, &[OUTSTANDING])
    }
}

/// Both adapters at one block size.
pub(super) struct Pair<'a> {
    block_size: u32,
    workers: u32,
    pvscsi: Option<&'a RunResult>,
    lsi: Option<&'a RunResult>,
    pub(super) throughput: Option<&'a Ratio>,
    pub(super) cpio: Option<&'a Ratio>,
}

impl<'a> Pair<'a> {
    fn of(view: View<'a>, disk: &DiskFacts, block_size: u32, workers: u32) -> Self {
        let find = |adapter: Adapter| {
            let adapter = adapter.as_str();
            let queue_depth = OUTSTANDING;
            view.find(&Wanted { adapter, disk, rw: None, block_size, queue_depth, workers, coalescing: None })
        };
        let (pvscsi, lsi) = (find(Adapter::Pvscsi), find(Adapter::Lsi));
        let ratio = |metric| view.ratio(lsi, pvscsi, metric);
        let (throughput, cpio) = (ratio(Metric::Iops), ratio(Metric::Cycles));
        Self { block_size, workers, pvscsi, lsi, throughput, cpio }
    }

    pub(super) fn published_throughput(&self) -> Option<f64> {
        THROUGHPUT.iter().find(|(size, _)| *size == self.block_size).map(|(_, ratio)| *ratio)
    }
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    for view in View::of(document) {
        for disk in view.disks() {
            let pairs = pairs(view, disk);
            report.grids.push(grid(view, disk, &pairs));
            let [throughput, ratio, cpio] = charts(view, disk, &pairs);
            let named = [("throughput", throughput), ("throughput-ratio", ratio), ("cpio", cpio)];
            report.charts.extend(named.map(|(name, chart)| (format!("{name}-{}", view.engine), chart)));
        }
    }
    report.findings.push(format!("Published: {SOURCE}."));
    report
}

/// For each number of workers, both adapters at each block size.
pub(super) fn pairs<'a>(view: View<'a>, disk: &DiskFacts) -> Vec<Vec<Pair<'a>>> {
    let of = |workers| BLOCK_SIZES.iter().map(move |&size| Pair::of(view, disk, size, workers)).collect();
    WORKERS.iter().map(|&workers| of(workers)).collect()
}

fn grid(view: View<'_>, disk: &DiskFacts, pairs: &[Vec<Pair<'_>>]) -> Grid {
    let [_, counted, _] = view.counted();
    let row = |pair: &Pair<'_>| {
        let both = |value: fn(&RunResult) -> f64| {
            [pair.pvscsi, pair.lsi].map(|result| cell(result.map(value), grouped))
        };
        let iops = both(|result| result.iops.median);
        let rate = both(|result| result.mb_per_s.median);
        let cycles = both(|result| result.cycles_per_io.total.median);
        let mut cells = vec![format_size(pair.block_size.into()), pair.workers.to_string()];
        cells.extend(iops.into_iter().chain(rate));
        cells.push(ratio_cell(pair.throughput));
        cells.push(cell(pair.published_throughput(), |ratio| format!("{ratio:.2}")));
        cells.extend(cycles);
        cells.push(ratio_cell(pair.cpio));
        cells.extend(CPIO.iter().map(|range| format!("{:.2}-{:.2}", range.low, range.high)));
        cells
    };
    Grid {
        title: format!(
            "PVSCSI against LSI Logic, engine {}: 100% random read of {} cached ({}), {OUTSTANDING} outstanding I/Os per worker",
            view.engine,
            format_size(disk.capacity),
            disk.name()
        ),
        heads: vec![
            right(["block", ""]),
            right(["work-", "ers"]),
            right(["IOPS", "pvscsi"]),
            right(["IOPS", "lsi"]),
            right(["MB/s", "pvscsi"]),
            right(["MB/s", "lsi"]),
            right(["throughput", "pvscsi/lsi"]),
            right(["pub-", "lished"]),
            right([counted, "pvscsi"]),
            right([counted, "lsi"]),
            right([counted, "pvscsi/lsi"]),
            left(["published", "FC"]),
            left(["published", "iSCSI"]),
        ],
        rows: pairs.iter().flatten().map(row).collect(),
    }
}

/// Throughput, and both ratios, each with a panel for each number of workers.
pub(super) fn charts(view: View<'_>, disk: &DiskFacts, pairs: &[Vec<Pair<'_>>]) -> [Chart; 3] {
    let [.., counted] = view.counted();
    let key = |label: &str, colour, style| Key { label: label.to_owned(), colour, style };
    let chart = |title: &str, y_title, scale, keys, lines: fn(&[Pair<'_>]) -> Vec<Vec<Option<Stat>>>| Chart {
        title: format!("{title} ({}, {})", view.engine, disk.name()),
        x_title: "block size (bytes)",
        y_title,
        categories: BLOCK_SIZES.iter().map(|&bytes| format_size(bytes.into())).collect(),
        scale,
        shared: true,
        keys,
        panels: WORKERS
            .iter()
            .zip(pairs)
            .map(|(workers, pairs)| Panel {
                title: format!(
                    "{workers} worker{}, {OUTSTANDING} outstanding each",
                    if *workers == 1 { "" } else { "s" }
                ),
                lines: lines(pairs),
            })
            .collect(),
        ..Chart::default()
    };
    let adapters = || vec![key("pvscsi", 0, Style::Solid), key("lsi", 3, Style::Dashed)];
    let throughput = chart("Throughput of random reads", "MB/s", Scale::Log, adapters(), |pairs| {
        let rate = |result: Option<&RunResult>| result.map(|result| result.mb_per_s);
        vec![
            pairs.iter().map(|pair| rate(pair.pvscsi)).collect(),
            pairs.iter().map(|pair| rate(pair.lsi)).collect(),
        ]
    });
    let keys = vec![
        key("measured: median, min to max", 0, Style::Solid),
        key("published (VMware, 2010)", 1, Style::Points),
    ];
    let mut ratio =
        chart("Throughput of PVSCSI over LSI Logic", "pvscsi / lsi", Scale::Auto, keys, |pairs| {
            vec![
                pairs.iter().map(|pair| pair.throughput.map(Ratio::stat)).collect(),
                pairs.iter().map(|pair| pair.published_throughput().map(Stat::at)).collect(),
            ]
        });
    ratio.reference = Some(1.0);
    let keys = vec![key("measured: median, min to max", 0, Style::Solid)];
    let mut cpio = chart(
        &format!("CPU {counted} of PVSCSI, normalised to LSI Logic"),
        "pvscsi / lsi",
        Scale::Auto,
        keys,
        |pairs| vec![pairs.iter().map(|pair| pair.cpio.map(Ratio::stat)).collect()],
    );
    cpio.reference = Some(1.0);
    cpio.bands = CPIO
        .iter()
        .zip([2, 1])
        .map(|(range, colour)| Band {
            label: format!("published, {}", range.storage),
            colour,
            low: range.low,
            high: range.high,
        })
        .collect();
    [throughput, ratio, cpio]
}
