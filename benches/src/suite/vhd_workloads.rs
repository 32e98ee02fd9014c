//! The study of VHD performance: raw disks and files, VHDs and VHDX files of each kind under sequential, random and application loads
//! at depths 1 to 256 on the host, and at some of these depths in a guest.
//!
//! A disk's peak is the throughput at its best depth. Ratios of peaks use the best depth of each round.

mod guests;
pub(super) mod study;

use std::time::Duration;

use facts::names::{Adapter, Coalescing};

use self::study::{
    DEVICE, DISKS, Group, TARGETS, VHD_FIXED, VHDX_FIXED, best, grid, groups, is_of, short_name,
};
use super::form::Form;
use super::published::{VHD_ORDER, VHD_SOURCE};
use super::report::Report;
use crate::bed::{Bed, BedError};
use crate::compare::{Comparison, Metric};
use crate::confidence::{self, Confidence};
use crate::matrix::{Candidate, Combination, Matrix};
use crate::mix::Mix;
use crate::result::{Document, NATIVE, Ratio, RunResult};
use crate::stat::{Stat, ratios};
use crate::svg::{Chart, Key, Panel, Style};
use crate::table::{grouped, micros};

/// Bytes of each disk.
const WORKING_SET: u64 = 1 << 30;
const QUICK_WORKING_SET: u64 = 64 << 20;
const DEPTHS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const QUICK_DEPTHS: [u32; 2] = [1, 32];
/// Depths of the rows in a guest.
const GUEST_DEPTHS: [u32; 2] = [1, 32];
const QUICK_GUEST_DEPTHS: [u32; 1] = [32];
/// [`Ratio::metric`] of peaks.
const PEAK: &str = "peak iops";

/// Runs of each combination.
pub(super) const RUNS: u32 = 3;
/// Length of a run: shorter than other suites', because there are thousands.
pub(super) const DURATION: Duration = Duration::from_millis(200);
/// Time of filling and reading the disks.
pub(super) const PREPARATION: Duration = Duration::from_secs(30);

/// A guest over the host.
pub(super) const COMPARISONS: [Comparison; 1] = [Comparison {
    metrics: &[Metric::Iops, Metric::LatencyMean, Metric::Cycles],
    ..Comparison::AGAINST_NATIVE
}];

/// The disk whose peak another's is compared with.
const fn baseline(target: usize) -> usize {
    if target > VHDX_FIXED { VHDX_FIXED } else { VHD_FIXED }
}

pub(super) fn bed(form: Form) -> Result<Bed, BedError> {
    Bed::vhd_study(if form == Form::Quick { QUICK_WORKING_SET } else { WORKING_SET })
}

pub(super) fn matrix(form: Form, disks: usize, adapters: &[Adapter]) -> Matrix {
    let [sequential, random, applications] = groups().map(|group| group.mixes);
    Matrix {
        native: true,
        adapters: adapters.to_vec(),
        disks,
        access: Vec::new(),
        read_percent: 50,
        random_percent: 50,
        mixes: [sequential, random, applications].concat(),
        block_sizes: Vec::new(),
        queue_depths: if form == Form::Quick { QUICK_DEPTHS.to_vec() } else { DEPTHS.to_vec() },
        workers: vec![1],
        coalescing: vec![Coalescing::OioIops],
        wanted: if form == Form::Quick { wanted_quickly } else { wanted },
    }
}

fn wanted(row: &Combination) -> bool {
    row.candidate == Candidate::Native || GUEST_DEPTHS.contains(&row.load.queue_depth)
}

fn wanted_quickly(row: &Combination) -> bool {
    row.candidate == Candidate::Native || QUICK_GUEST_DEPTHS.contains(&row.load.queue_depth)
}

/// The rows of a load over a target on the host, one for each depth.
fn rows<'a>(document: &'a Document, target: usize, mix: &str) -> Vec<&'a RunResult> {
    let wanted = |result: &&RunResult| result.adapter == NATIVE && is_of(result, target, mix);
    document.results.iter().filter(wanted).collect()
}

/// The best of [`rows`].
fn peak<'a>(document: &'a Document, target: usize, mix: &str) -> Option<&'a RunResult> {
    best(rows(document, target, mix))
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

/// Ratios of a target's peaks to those of the fixed disk: the geometric mean over all loads of a group, in each round. `None`: fewer than
/// two rounds.
pub(super) fn over_fixed(document: &Document, group: &Group, target: usize) -> Option<(Stat, Confidence)> {
    let of_mix = |mix: &Mix| {
        let [from, to] = [baseline(target), target].map(|target| peaks(&rows(document, target, &mix.name)));
        ratios(&from, &to).ok()
    };
    let all: Vec<Vec<f64>> = group.mixes.iter().filter_map(of_mix).collect();
    let rounds = all.iter().map(Vec::len).min()?;
    let mean = |round: usize| all.iter().map(|pairs| pairs[round].ln()).sum::<f64>() / all.len() as f64;
    let means: Vec<f64> = (0..rounds).map(|round| mean(round).exp()).collect();
    Some((Stat::of(means.iter().copied())?, confidence::paired(&means, Metric::Iops.criterion())?))
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
    // The summary comes first.
    report.charts.insert(0, ("peaks".to_owned(), of_peaks(document, &groups)));
    report.findings = findings(document, &groups);
    guests::report(document, &groups, &mut report);
    report
}

/// Each kind of disk has a colour; lines of VHDX are dashed.
fn keys() -> Vec<Key> {
    let key = |(target, (.., words)): (usize, &(_, _, [&str; 2]))| {
        let vhdx = target >= VHDX_FIXED;
        Key {
            label: words.join(" "),
            colour: if vhdx { target - VHDX_FIXED + VHD_FIXED } else { target },
            style: if vhdx { Style::Dashed } else { Style::Solid },
        }
    };
    TARGETS.iter().enumerate().map(key).collect()
}

/// Throughput over depth, a panel for each load.
fn over_depth(document: &Document, group: &Group) -> Chart {
    let on_host = document.results.iter().filter(|result| result.adapter == NATIVE);
    let mut depths: Vec<u32> = on_host.map(|result| result.queue_depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let line = |target: usize, mix: &str| {
        let rows = rows(document, target, mix);
        let at = |depth: &u32| rows.iter().find(|row| row.queue_depth == *depth);
        let value = |row: &&RunResult| if group.bytes { row.mb_per_s } else { row.iops };
        depths.iter().map(|depth| at(depth).map(value)).collect()
    };
    Chart {
        title: format!("{}: throughput by depth", group.title),
        x_title: "accesses in flight",
        y_title: if group.bytes { "MB/s" } else { "IOPS" },
        categories: depths.iter().map(u32::to_string).collect(),
        keys: keys(),
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

/// Peaks over those of the fixed disks: for each disk, the mean of each group of loads.
fn of_peaks(document: &Document, groups: &[Group; 3]) -> Chart {
    let others: Vec<usize> = (0..DISKS).filter(|target| baseline(*target) != *target).collect();
    let line = |group: &Group| {
        let of = |target: &usize| over_fixed(document, group, *target).map(|(stat, _)| stat);
        others.iter().map(of).collect()
    };
    let key = |(colour, group): (usize, &Group)| Key {
        label: format!("{} loads, mean", group.title),
        colour,
        style: Style::Points,
    };
    Chart {
        title: "Peaks over those of the fixed VHD (of VHDX: the fixed VHDX)".to_owned(),
        x_title: "disk",
        y_title: "peak / fixed",
        categories: others.iter().copied().map(short_name).collect(),
        reference: Some(1.0),
        keys: groups.iter().enumerate().map(key).collect(),
        panels: vec![Panel { title: String::new(), lines: groups.iter().map(line).collect() }],
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
        let rows = |form| matrix(form, DISKS, &[Adapter::Pvscsi]).combinations().len();
        // In a guest fewer depths.
        assert_eq!((rows(Form::Full), rows(Form::Quick)), (28 * (9 + 2) * 8, 28 * (2 + 1) * 8));
        let looks: std::collections::HashSet<_> =
            keys().into_iter().map(|key| (key.colour, key.style == Style::Dashed)).collect();
        assert_eq!(looks.len(), DISKS, "no two disks look alike");
        assert!(keys().iter().all(|key| key.colour < crate::svg::COLOURS));
        assert_eq!((baseline(0), baseline(4), baseline(5), baseline(7)), (2, 2, 2, 5));
    }
}
