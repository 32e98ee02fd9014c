//! The published claims on PVSCSI compared with LSI Logic.

use super::super::claim::{Claim, Standing, at_most, exits_limit, is, range, time_limit};
use super::super::published::{CPIO, SOURCE};
use super::super::pvscsi_vs_lsi::{Pair, charts, pairs};
use super::super::view::View;
use crate::confidence::Verdict;
use crate::result::{Document, Ratio};
use crate::svg::Chart;

/// Upper limit for the ratio of PVSCSI's cycles: the smallest published saving on Fibre Channel.
const LEAST: f64 = CPIO[0].high;

pub(in super::super) fn claims(document: &Document) -> Vec<Claim> {
    let mut claims = Vec::new();
    for view in View::of(document) {
        for disk in view.disks() {
            let pairs = pairs(view, disk);
            let [_, ratio, cpio] = charts(view, disk, &pairs);
            claims.extend(of_engine(view, &pairs, &ratio, &cpio));
        }
    }
    claims
}

/// The claims of an engine, with the charts of throughput and cycles.
fn of_engine(view: View<'_>, pairs: &[Vec<Pair<'_>>], ratio: &Chart, cpio: &Chart) -> Vec<Claim> {
    let pairs = || pairs.iter().flatten();
    let claim = |statement: &str, standing: Standing, limit, measured, chart: &Chart| Claim {
        statement: statement.to_owned(),
        source: Some(SOURCE),
        standing: standing.within(limit),
        engine: view.engine.to_owned(),
        measured,
        limit,
        chart: Chart { panels: chart.panels.iter().take(1).cloned().collect(), ..chart.clone() },
    };
    let small: Vec<&Ratio> = pairs()
        .filter(|pair| pair.published_throughput().is_some())
        .filter_map(|pair| pair.throughput)
        .collect();
    let all: Vec<&Ratio> = pairs().filter_map(|pair| pair.cpio).collect();
    let mut claims = Vec::new();
    if !small.is_empty() {
        claims.push(claim(
            "PVSCSI has 7 to 18% more throughput than LSI Logic with blocks of 1 to 4 KiB.",
            Standing::of_all(small.iter().map(|ratio| is(ratio, Verdict::Faster))),
            time_limit(view),
            format!("Here {} of LSI Logic's throughput with these blocks.", range(&small)),
            ratio,
        ));
    }
    if !all.is_empty() {
        claims.push(claim(
            "PVSCSI takes 10 to 30% fewer CPU cycles per I/O than LSI Logic.",
            Standing::of_all(all.iter().map(|ratio| saves(ratio))),
            exits_limit(view),
            format!(
                "Here {} of LSI Logic's {} over all block sizes.",
                range(&all),
                view.host().cycles_source.unit()
            ),
            cpio,
        ));
    }
    claims
}

/// Whether a ratio of cycles is a saving of at least the published size.
fn saves(ratio: &Ratio) -> Option<bool> {
    at_most(ratio.confidence?, LEAST)
}
