//! The published claims on Hyper-V's disks and adapters.

use facts::disk::DiskFacts;

use super::super::claim::{Claim, Standing, is, range, time_limit};
use super::super::hyperv_analysis::{LOADS, SUBJECTS, ide_over_storvsc, over_bare};
use super::super::published::{HYPERV_SOURCE, IDE_STATEMENT, LOOPBACK_STATEMENT};
use super::super::view::View;
use crate::compare::Metric;
use crate::confidence::Verdict;
use crate::result::{Document, Ratio};
use crate::stat::Stat;
use crate::svg::{Band, Chart, Key, Panel, Style};

/// "Within 1%".
const WITHIN: f64 = 0.01;

pub(in super::super) fn claims(document: &Document) -> Vec<Claim> {
    View::of(document).into_iter().flat_map(of_engine).collect()
}

fn of_engine(view: View<'_>) -> Vec<Claim> {
    let disks = view.disks();
    let fixed = |disk: &&&DiskFacts| disk.subformat.as_deref() == Some("fixed");
    let ide: Vec<Vec<&Ratio>> = (0..LOADS.len())
        .map(|load| {
            disks.iter().filter_map(|disk| ide_over_storvsc(view, disk, load, Metric::Iops)).collect()
        })
        .collect();
    let loopback: Vec<Vec<&Ratio>> = (0..LOADS.len())
        .map(|load| {
            let disks = disks.iter().filter(fixed);
            disks.filter_map(|disk| over_bare(view, disk, SUBJECTS[0], load, Metric::Iops)).collect()
        })
        .collect();
    let mut claims = Vec::new();
    if ide.iter().any(|ratios| !ratios.is_empty()) {
        let (all, limit) = (ide.concat(), time_limit(view));
        claims.push(Claim {
            statement: format!("\"{IDE_STATEMENT}\": it has less throughput than the synthetic controller."),
            source: Some(HYPERV_SOURCE),
            standing: Standing::of_all(all.iter().map(|ratio| is(ratio, Verdict::Slower))).within(limit),
            engine: view.engine.to_owned(),
            measured: format!("Here IDE has {} of its throughput.", range(&all)),
            limit,
            chart: chart("Throughput of IDE over the synthetic controller's", "ide / storvsc", &ide, None),
        });
    }
    if loopback.iter().any(|ratios| !ratios.is_empty()) {
        let all = loopback.concat();
        let band = Band { label: "within 1%".to_owned(), colour: 2, low: 1.0 - WITHIN, high: 1.0 + WITHIN };
        claims.push(Claim {
            statement: format!(
                "\"{LOOPBACK_STATEMENT}\": a fixed VHD on the host is as fast as the disk itself."
            ),
            source: Some(HYPERV_SOURCE),
            standing: Standing::of_all(all.iter().map(|ratio| within(ratio))),
            engine: view.engine.to_owned(),
            measured: format!("Here the fixed VHD has {} of the throughput.", range(&all)),
            limit: None,
            chart: chart(
                "Throughput of a fixed VHD over the bare disk's",
                "VHD / bare",
                &loopback,
                Some(band),
            ),
        });
    }
    claims
}

/// Whether a ratio is within 1% of 1.
fn within(ratio: &Ratio) -> Option<bool> {
    let confidence = ratio.confidence?;
    let (low, high) = (1.0 - WITHIN, 1.0 + WITHIN);
    if confidence.low >= low && confidence.high <= high {
        Some(true)
    } else if confidence.high < low || confidence.low > high {
        Some(false)
    } else {
        None
    }
}

/// A point for each load: the median over the disks, with the range.
fn chart(title: &str, y_title: &'static str, loads: &[Vec<&Ratio>], band: Option<Band>) -> Chart {
    let point = |ratios: &Vec<&Ratio>| Stat::of(ratios.iter().map(|ratio| ratio.median));
    Chart {
        title: title.to_owned(),
        x_title: "load",
        y_title,
        categories: LOADS.iter().map(|(.., name)| (*name).to_owned()).collect(),
        reference: Some(1.0),
        keys: vec![Key {
            label: "median over the disks, min to max".to_owned(),
            colour: 0,
            style: Style::Points,
        }],
        bands: band.into_iter().collect(),
        panels: vec![Panel { title: String::new(), lines: vec![loads.iter().map(point).collect()] }],
        ..Chart::default()
    }
}
