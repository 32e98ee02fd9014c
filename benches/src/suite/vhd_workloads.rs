//! The study of VHD performance: raw disks and files, VHDs and VHDX files of each kind under sequential, random and application loads
//! at depths 1 to 256, on the host, without a guest.
//!
//! A disk's peak is its best depth, by throughput. Peaks are compared round by round: the best depth of each round by itself.

use facts::units::format_size;

use super::form::Form;
use super::published::{VHD_ORDER, VHD_SOURCE};
use super::report::Report;
use crate::bed::{Bed, BedError};
use crate::compare::Metric;
use crate::confidence;
use crate::grid::{Grid, Head, left, right};
use crate::matrix::Matrix;
use crate::mix::{self, Mix};
use crate::result::{Document, Ratio, RunResult};
use crate::stat::{Stat, ratios};
use crate::svg::{Chart, Key, Panel, Style};
use crate::table::{grouped, micros};

/// Bytes of each disk.
const WORKING_SET: u64 = 1 << 30;
const QUICK_WORKING_SET: u64 = 64 << 20;
const DEPTHS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const QUICK_DEPTHS: [u32; 3] = [1, 8, 32];
const SEQUENTIAL: [u32; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];
const RANDOM: [u32; 4] = [4 << 10, 8 << 10, 32 << 10, 64 << 10];
/// [`Ratio::metric`] of peaks.
const PEAK: &str = "peak iops";

/// The targets, in the order of [`Bed::vhd_study`]: format, subformat, and their column.
const TARGETS: [(&str, Option<&str>, [&str; 2]); 8] = [
    ("passthrough", None, ["raw", "device"]),
    ("raw", None, ["raw", "file"]),
    ("vhd", Some("fixed"), ["VHD", "fixed"]),
    ("vhd", Some("dynamic"), ["VHD", "dynamic"]),
    ("vhd", Some("differencing"), ["VHD", "differencing"]),
    ("vhdx", Some("fixed"), ["VHDX", "fixed"]),
    ("vhdx", Some("dynamic"), ["VHDX", "dynamic"]),
    ("vhdx", Some("differencing"), ["VHDX", "differencing"]),
];
const DEVICE: usize = 0;
const VHD_FIXED: usize = 2;
const VHDX_FIXED: usize = 5;

/// Number of disks.
pub(super) const DISKS: usize = TARGETS.len();
/// Runs of each combination.
pub(super) const RUNS: u32 = 3;

/// The disk whose peak another's is compared with.
const fn baseline(target: usize) -> usize {
    if target > VHDX_FIXED { VHDX_FIXED } else { VHD_FIXED }
}

/// A part of the loads.
struct Group {
    title: &'static str,
    file: &'static str,
    mixes: Vec<Mix>,
    /// Whether throughput is told in MB/s.
    bytes: bool,
}

fn groups() -> [Group; 3] {
    let plain = |sizes: [u32; 4], random: u32, word: &str| {
        [(100, "read"), (0, "write")]
            .into_iter()
            .flat_map(|(reads, access)| {
                sizes.map(|size| {
                    let name = format!("{word} {access} {}", format_size(size.into()));
                    Mix::plain(name, size, reads, random)
                })
            })
            .collect()
    };
    [
        Group {
            title: "Sequential",
            file: "sequential",
            mixes: plain(SEQUENTIAL, 0, "sequential"),
            bytes: true,
        },
        Group { title: "Random", file: "random", mixes: plain(RANDOM, 100, "random"), bytes: false },
        Group { title: "Applications", file: "applications", mixes: mix::all_shipped(), bytes: false },
    ]
}

pub(super) fn bed(form: Form) -> Result<Bed, BedError> {
    Bed::vhd_study(if form == Form::Quick { QUICK_WORKING_SET } else { WORKING_SET })
}

pub(super) fn matrix(form: Form, disks: usize) -> Matrix {
    let [sequential, random, applications] = groups().map(|group| group.mixes);
    Matrix {
        native: true,
        adapters: Vec::new(),
        disks,
        access: Vec::new(),
        read_percent: 50,
        random_percent: 50,
        mixes: [sequential, random, applications].concat(),
        block_sizes: Vec::new(),
        queue_depths: if form == Form::Quick { QUICK_DEPTHS.to_vec() } else { DEPTHS.to_vec() },
        workers: vec![1],
        coalescing: Vec::new(),
        wanted: Matrix::every,
    }
}

/// The rows of a load over a target, one for each depth.
fn rows<'a>(document: &'a Document, target: usize, mix: &str) -> Vec<&'a RunResult> {
    let (format, subformat, _) = TARGETS[target];
    let wanted = |result: &&RunResult| {
        result.workload.as_deref() == Some(mix)
            && result.disk.format == format
            && result.disk.subformat.as_deref() == subformat
    };
    document.results.iter().filter(wanted).collect()
}

/// The row with the best median throughput.
fn peak<'a>(document: &'a Document, target: usize, mix: &str) -> Option<&'a RunResult> {
    rows(document, target, mix).into_iter().max_by(|a, b| a.iops.median.total_cmp(&b.iops.median))
}

/// The best throughput of each round.
fn peaks(rows: &[&RunResult]) -> Vec<f64> {
    let rounds = rows.iter().map(|row| row.values.iops.len()).min().unwrap_or(0);
    let best = |round: usize| rows.iter().map(|row| row.values.iops[round]).fold(0.0, f64::max);
    (0..rounds).map(best).collect()
}

/// Add the ratios of peaks to the document.
pub(super) fn conclude(document: &mut Document) {
    let mut all = Vec::new();
    for mix in groups().iter().flat_map(|group| &group.mixes) {
        for target in (0..DISKS).filter(|target| baseline(*target) != *target) {
            let fixed = baseline(target);
            let pair = [fixed, target].map(|target| rows(document, target, &mix.name));
            let labels = [fixed, target].map(|target| peak(document, target, &mix.name));
            let [Some(base), Some(candidate)] = labels else { continue };
            let [from, to] = pair.map(|rows| peaks(&rows));
            let Ok(pairs) = ratios(&from, &to) else { continue };
            let confidence = confidence::paired(&pairs, Metric::Iops.criterion());
            let Some(Stat { median, min, max }) = Stat::of(pairs) else { continue };
            all.push(Ratio {
                name: format!("{}: {} against {}", mix.name, candidate.disk.name(), base.disk.name()),
                baseline: base.label(),
                candidate: candidate.label(),
                metric: PEAK.to_owned(),
                median,
                min,
                max,
                confidence,
            });
        }
    }
    document.ratios.extend(all);
}

/// The ratio of a target's peak to that of the fixed disk.
fn ratio<'a>(document: &'a Document, target: usize, mix: &str) -> Option<&'a Ratio> {
    let (base, candidate) = (peak(document, baseline(target), mix)?, peak(document, target, mix)?);
    let (base, candidate) = (base.label(), candidate.label());
    let of = |ratio: &&Ratio| ratio.metric == PEAK && ratio.candidate == candidate && ratio.baseline == base;
    document.ratios.iter().find(of)
}

pub(super) fn report(document: &Document) -> Report {
    let mut report = Report::default();
    let groups = groups();
    for group in &groups {
        let unit = if group.bytes { "MB/s" } else { "IOPS" };
        report.grids.push(grid(group, &format!("peak {unit} @ its depth"), |target, mix| {
            peak(document, target, mix).map(|row| {
                let value = if group.bytes { row.mb_per_s.median } else { row.iops.median };
                format!("{} @{}", grouped(value), row.queue_depth)
            })
        }));
        report.grids.push(grid(
            group,
            "peak / peak of the fixed VHD (of VHDX: the fixed VHDX)",
            |target, mix| {
                ratio(document, target, mix).map(|ratio| {
                    let Ratio { median, min, max, .. } = ratio;
                    format!("{median:.2} ({min:.2}-{max:.2})")
                })
            },
        ));
        report.grids.push(grid(group, "mean latency at the peak, us", |target, mix| {
            peak(document, target, mix).map(|row| micros(row.latency_us.mean))
        }));
        let each = document.host.cycles_source.unit();
        report.grids.push(grid(group, &format!("{each} per I/O at the peak"), |target, mix| {
            peak(document, target, mix).map(|row| grouped(row.cycles_per_io.total.median))
        }));
        report.charts.push((group.file.to_owned(), over_depth(document, group)));
    }
    report.charts.push(("peaks".to_owned(), of_peaks(document, &groups)));
    report.findings = findings(document, &groups);
    report
}

fn grid(group: &Group, what: &str, cell: impl Fn(usize, &str) -> Option<String>) -> Grid {
    let heads: Vec<Head> =
        [left(["load", ""])].into_iter().chain(TARGETS.map(|(.., head)| right(head))).collect();
    let row = |mix: &Mix| {
        let cells = (0..DISKS).map(|target| cell(target, &mix.name).unwrap_or_else(|| "-".to_owned()));
        [mix.name.clone()].into_iter().chain(cells).collect()
    };
    let rows = group.mixes.iter().map(row).collect();
    Grid { title: format!("{}: {what}", group.title), heads, rows }
}

fn keys(names: impl Iterator<Item = String>, style: Style) -> Vec<Key> {
    names.enumerate().map(|(colour, label)| Key { label, colour, style }).collect()
}

/// Throughput over depth, a panel for each load.
fn over_depth(document: &Document, group: &Group) -> Chart {
    let mut depths: Vec<u32> = document.results.iter().map(|result| result.queue_depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let line = |target: usize, mix: &str| {
        let rows = rows(document, target, mix);
        let at = |depth: &u32| rows.iter().find(|row| row.queue_depth == *depth);
        let value = |row: &&RunResult| if group.bytes { row.mb_per_s } else { row.iops };
        depths.iter().map(|depth| at(depth).map(value)).collect()
    };
    Chart {
        title: format!("{} loads by depth", group.title),
        x_title: "accesses in flight",
        y_title: if group.bytes { "MB/s" } else { "IOPS" },
        categories: depths.iter().map(u32::to_string).collect(),
        keys: keys(TARGETS.iter().map(|(.., words)| words.join(" ")), Style::Solid),
        panels: group
            .mixes
            .iter()
            .map(|mix| Panel {
                title: mix.name.clone(),
                lines: (0..DISKS).map(|target| line(target, &mix.name)).collect(),
            })
            .collect(),
        ..Chart::default()
    }
}

/// Peaks over those of the fixed disks, a panel for each group of loads.
fn of_peaks(document: &Document, groups: &[Group; 3]) -> Chart {
    let most = groups.iter().map(|group| group.mixes.len()).max().unwrap_or(0);
    let line = |group: &Group, number: usize| {
        let of = |target: usize| ratio(document, target, &group.mixes.get(number)?.name).map(Ratio::stat);
        (0..DISKS).map(of).collect()
    };
    Chart {
        title: "Peaks over those of the fixed disk of the format".to_owned(),
        x_title: "disk",
        y_title: "peak / fixed",
        categories: TARGETS
            .iter()
            .map(|(.., words)| words.join(" ").replace("differencing", "diff."))
            .collect(),
        shared: true,
        reference: Some(1.0),
        keys: keys((1..=most).map(|number| format!("load {number}")), Style::Points),
        panels: groups
            .iter()
            .map(|group| Panel {
                title: format!("{} loads, in the order of the table", group.title),
                lines: (0..most).map(|number| line(group, number)).collect(),
            })
            .collect(),
        ..Chart::default()
    }
}

/// Whether the published order holds here.
fn findings(document: &Document, groups: &[Group; 3]) -> Vec<String> {
    let margin = 1.0 - Metric::Iops.criterion().margin;
    let mixes = || groups.iter().flat_map(|group| &group.mixes);
    let medians = |target: usize| -> Vec<f64> {
        mixes().filter_map(|mix| ratio(document, target, &mix.name)).map(|ratio| ratio.median).collect()
    };
    let mut findings = vec![format!("Published: {VHD_SOURCE}: {VHD_ORDER}.")];
    let device = medians(DEVICE);
    if !device.is_empty() {
        findings.push(format!(
            "Here: the raw device's peak is at least that of the fixed VHD (within 2%) in {} of {} loads.",
            device.iter().filter(|ratio| **ratio >= margin).count(),
            device.len()
        ));
    }
    for (name, others) in
        [("VHD", [VHD_FIXED + 1, VHD_FIXED + 2]), ("VHDX", [VHDX_FIXED + 1, VHDX_FIXED + 2])]
    {
        let all: Vec<f64> = others.into_iter().flat_map(medians).collect();
        if all.is_empty() {
            continue;
        }
        let of_fixed = all.iter().filter(|ratio| **ratio <= 1.0 / margin).count();
        let lowest = all.iter().copied().fold(f64::MAX, f64::min);
        findings.push(format!(
            "Here: the fixed {name}'s peak is at least that of the dynamic or differencing one (within 2%) in {of_fixed} of {} pairs; \
             the lowest of their peaks is {lowest:.2} of it.",
            all.len()
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::Access;
    use crate::result::tests::sample;

    #[test]
    fn peaks_are_those_of_each_round_and_name_their_depth() {
        let mut document = sample();
        let plain = document.results.remove(0);
        document.results.clear();
        document.ratios.clear();
        let mut row = |subformat: &str, queue_depth: u32, iops: [f64; 2]| {
            let mut row = plain.clone();
            row.disk.subformat = Some(subformat.into());
            (row.workload, row.queue_depth) = (Some("OLTP".into()), queue_depth);
            row.iops = Stat::of(iops).unwrap();
            row.values.iops = iops.to_vec();
            document.results.push(row);
        };
        row("fixed", 1, [100.0, 100.0]);
        row("fixed", 8, [200.0, 300.0]);
        row("dynamic", 1, [150.0, 260.0]);
        row("dynamic", 8, [180.0, 200.0]);
        conclude(&mut document);
        let [ratio] = &document.ratios[..] else { panic!("{:?}", document.ratios) };
        assert_eq!(
            (ratio.metric.as_str(), ratio.name.as_str()),
            (PEAK, "OLTP: vhd dynamic against vhd fixed")
        );
        // 180 / 200 and 260 / 300: the best depth of each round.
        assert!((ratio.min - 0.866_667).abs() < 1e-6 && (ratio.max - 0.9).abs() < 1e-9, "{ratio:?}");
        let report = report(&document);
        let texts: Vec<String> = report.grids.iter().map(|grid| grid.title.clone() + &grid.text()).collect();
        let applications = texts.iter().find(|text| text.starts_with("Applications: peak IOPS")).unwrap();
        let oltp = applications.lines().find(|line| line.starts_with("OLTP")).unwrap();
        assert!(oltp.contains("250 @8") && oltp.contains("205 @1"), "{oltp}");
        assert!(texts.iter().any(|text| text.contains("0.88 (0.87-0.90)")), "{texts:?}");
        assert!(report.findings.iter().any(|line| line.contains("the fixed VHD's peak is at least")));
    }

    #[test]
    fn all_loads_have_names_of_their_own_and_patterns_are_known() {
        let groups = groups();
        let names: std::collections::HashSet<_> =
            groups.iter().flat_map(|group| &group.mixes).map(|mix| &mix.name).collect();
        assert_eq!(names.len(), 8 + 8 + 12);
        assert_eq!(groups[0].mixes[0].access(), Access::Read);
        assert_eq!(groups[1].mixes[7].access(), Access::RandWrite);
        let full = matrix(Form::Full, DISKS).combinations();
        assert_eq!(full.len(), 28 * 9 * 8);
        assert_eq!((baseline(0), baseline(4), baseline(5), baseline(7)), (2, 2, 2, 5));
    }
}
