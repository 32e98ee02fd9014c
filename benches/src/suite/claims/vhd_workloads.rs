//! The published claims on VHD performance.
//!
//! A group of loads is decided as a whole, by the geometric mean of its ratios in each round. Of dozens of single loads, some would be
//! faster or slower by chance.

use super::super::claim::{Claim, Standing, at_least, at_most};
use super::super::published::{DYNAMIC_SOURCE, FIXED_OVER_DYNAMIC, VHD_SOURCE};
use super::super::vhd_workloads::over_fixed;
use super::super::vhd_workloads::study::{DEVICE, FILE, VHD_DIFFERENCING, VHD_DYNAMIC, groups};
use crate::compare::Metric;
use crate::confidence::Confidence;
use crate::result::Document;
use crate::stat::Stat;
use crate::svg::{Band, Chart, Key, Panel, Style};

/// The ratios of a target to the fixed VHD, one for each group of loads.
struct Line {
    label: &'static str,
    points: Vec<Option<(Stat, Confidence)>>,
}

impl Line {
    fn of(document: &Document, target: usize, label: &'static str) -> Self {
        Self { label, points: groups().iter().map(|group| over_fixed(document, group, target)).collect() }
    }

    fn intervals(&self) -> impl Iterator<Item = Confidence> {
        self.points.iter().flatten().map(|(_, confidence)| *confidence)
    }
}

/// The range of the medians, `0.98 to 1.02`, with the smallest and the largest end of their intervals.
fn range<'a>(lines: impl IntoIterator<Item = &'a Line>) -> String {
    let points: Vec<_> = lines.into_iter().flat_map(|line| line.points.iter().flatten()).collect();
    let least = |value: fn(&(Stat, Confidence)) -> f64| {
        points.iter().map(|point| value(point)).fold(f64::INFINITY, f64::min)
    };
    let most =
        |value: fn(&(Stat, Confidence)) -> f64| points.iter().map(|point| value(point)).fold(0.0, f64::max);
    format!(
        "{:.2} to {:.2} [{:.2}-{:.2}]",
        least(|(stat, _)| stat.median),
        most(|(stat, _)| stat.median),
        least(|(_, interval)| interval.low),
        most(|(_, interval)| interval.high)
    )
}

pub(in super::super) fn claims(document: &Document) -> Vec<Claim> {
    let margin = 1.0 + Metric::Iops.criterion().margin;
    let line = |target, label| Line::of(document, target, label);
    let plain = [line(DEVICE, "raw device (a loop device)"), line(FILE, "raw file")];
    let others = [line(VHD_DYNAMIC, "dynamic VHD"), line(VHD_DIFFERENCING, "differencing VHD")];
    let judged = |lines: &[Line], judge: fn(Confidence, f64) -> Option<bool>, bound: f64| {
        let intervals: Vec<_> = lines.iter().flat_map(Line::intervals).collect();
        Standing::of_all(intervals.into_iter().map(|interval| judge(interval, bound)))
    };
    let claim = |statement: &str, source, standing, measured, lines: &[Line], band| Claim {
        statement: statement.to_owned(),
        source: Some(source),
        standing,
        engine: "native".to_owned(),
        measured,
        limit: None,
        chart: chart(lines, band),
    };
    let mut claims = Vec::new();
    if plain[1].intervals().next().is_some() {
        claims.push(claim(
            "Storage without a format (a pass-through disk) is the fastest: a fixed VHD is not faster.",
            VHD_SOURCE,
            judged(&plain[1..], at_least, 1.0 / margin),
            format!(
                "Here a raw file has {} of the fixed VHD's peaks. The raw device, {}, does not count: as a loop device it is a file behind \
                 one more layer.",
                range(&plain[1..]),
                range(&plain[..1])
            ),
            &plain,
            None,
        ));
    }
    if others.iter().any(|line| line.intervals().next().is_some()) {
        let [least, most] = FIXED_OVER_DYNAMIC.map(|more| 1.0 / more);
        let band =
            Band { label: "Windows Server 2008, dynamic".to_owned(), colour: 2, low: most, high: least };
        claims.push(claim(
            "A fixed VHD has the highest performance of all VHD types: dynamic and differencing ones are not faster.",
            VHD_SOURCE,
            judged(&others, at_most, margin),
            format!("Here they have {} of the fixed VHD's peaks.", range(&others)),
            &others,
            None,
        ));
        claims.push(claim(
            "Dynamic and differencing VHDs come close behind: a fixed VHD is no more than 15% faster.",
            DYNAMIC_SOURCE,
            judged(&others, at_least, most),
            format!(
                "Published of Windows Server 2008: 10 to 15% in most scenarios, more with writes of 4K. Here {} of the fixed VHD's peaks.",
                range(&others)
            ),
            &others,
            Some(band),
        ));
    }
    claims
}

/// A point for each group of loads: the geometric mean over its loads, with the range over the rounds.
fn chart(lines: &[Line], band: Option<Band>) -> Chart {
    let stats = |line: &Line| line.points.iter().map(|point| point.map(|(stat, _)| stat)).collect();
    let key =
        |(colour, line): (usize, &Line)| Key { label: line.label.to_owned(), colour, style: Style::Points };
    Chart {
        title: "Peaks over those of the fixed VHD, mean of each group of loads".to_owned(),
        x_title: "loads",
        y_title: "peak / fixed VHD",
        categories: groups().iter().map(|group| group.title.to_owned()).collect(),
        reference: Some(1.0),
        keys: lines.iter().enumerate().map(key).collect(),
        bands: band.into_iter().collect(),
        panels: vec![Panel { title: String::new(), lines: lines.iter().map(stats).collect() }],
        ..Chart::default()
    }
}
