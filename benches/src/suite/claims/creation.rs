//! The published claims on creating fixed disks.

use std::collections::BTreeSet;

use facts::units::format_size;

use super::super::claim::{Claim, Standing, at_most};
use super::super::creation::{FILE_SYSTEMS, time};
use super::super::published::{CREATION, CREATION_AUTHOR, Creation, JUST_OVER};
use crate::confidence::{self, Better, Criterion};
use crate::result::{Document, Timing};
use crate::stat::Stat;
use crate::svg::{Chart, Key, Panel, Scale, Style};

/// A claim for each file system, because the published figures are for one.
pub(in super::super) fn claims(document: &Document) -> Vec<Claim> {
    FILE_SYSTEMS.into_iter().filter_map(|place| on(document, place)).collect()
}

fn on(document: &Document, place: &str) -> Option<Claim> {
    let published = &CREATION[0];
    let here =
        || document.timings.iter().filter(|timing| timing.file_system == place && timing.seconds.is_some());
    let fixed = |timing: &&Timing| {
        timing.operation == "create"
            && timing.format == published.format
            && timing.subformat.as_deref() == Some("fixed")
    };
    let created: Vec<&Timing> = here().filter(fixed).collect();
    let zeros: Vec<&Timing> = here().filter(|timing| timing.operation == "zero-fill").collect();
    // Larger sizes are shown, but do not decide: there are no published figures for them.
    let mut decisive: Vec<&Timing> =
        created.iter().copied().filter(|each| each.size <= published.size).collect();
    decisive.sort_by_key(|timing| timing.size);
    let (smallest, largest) = (decisive.first()?, decisive.last()?);
    let seconds = |timing: &Timing| timing.seconds.map_or_else(|| "-".to_owned(), |stat| time(stat.median));
    let filled = zeros.iter().max_by_key(|timing| timing.size).map_or_else(String::new, |timing| {
        format!(" Writing {} of zeros takes {}.", format_size(timing.size), seconds(timing))
    });
    Some(Claim {
        statement: format!(
            "Creating a fixed VHDX of up to 1 TB takes just over 1 s whatever its size, as no zeros are written: on {place}."
        ),
        source: Some(CREATION_AUTHOR),
        standing: Standing::of_all(decisive.iter().map(|timing| as_fast(timing, published.seconds))),
        engine: String::new(),
        measured: format!(
            "Published of ReFS. Here {} for {}, {} for {}.{filled}",
            seconds(smallest),
            format_size(smallest.size),
            seconds(largest),
            format_size(largest.size)
        ),
        limit: None,
        chart: chart(place, &created, &zeros),
    })
}

/// Whether the operation takes no longer than published.
fn as_fast(timing: &Timing, published: f64) -> Option<bool> {
    let ratios: Vec<f64> = timing.values.iter().map(|seconds| seconds / published).collect();
    let criterion = Criterion { margin: JUST_OVER, better: Better::Lower };
    at_most(confidence::paired(&ratios, criterion)?, 1.0 + JUST_OVER)
}

/// Time by size: fixed disks, writing zeros, and the published figures.
fn chart(place: &str, created: &[&Timing], zeros: &[&Timing]) -> Chart {
    let sizes: BTreeSet<u64> = created
        .iter()
        .chain(zeros)
        .map(|timing| timing.size)
        .chain(CREATION.iter().map(|each| each.size))
        .collect();
    let line = |timings: &[&Timing]| -> Vec<Option<Stat>> {
        let at = |size: &u64| timings.iter().find(|timing| timing.size == *size)?.seconds;
        sizes.iter().map(at).collect()
    };
    let published = |each: &Creation| {
        sizes.iter().map(|size| (*size == each.size).then(|| Stat::at(each.seconds))).collect()
    };
    let key = |label: String, colour, style| Key { label, colour, style };
    let mut keys =
        vec![key("fixed VHDX".to_owned(), 0, Style::Solid), key("zeros written".to_owned(), 1, Style::Solid)];
    let mut lines = vec![line(created), line(zeros)];
    for (colour, each) in (2..).zip(&CREATION) {
        keys.push(key(format!("published ({})", each.storage), colour, Style::Points));
        lines.push(published(each));
    }
    Chart {
        title: format!("Creation of a fixed VHDX by size ({place})"),
        x_title: "bytes of the disk",
        y_title: "seconds",
        categories: sizes.iter().map(|size| format_size(*size)).collect(),
        scale: Scale::Log,
        keys,
        panels: vec![Panel { title: String::new(), lines }],
        ..Chart::default()
    }
}
