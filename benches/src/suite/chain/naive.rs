//! The naive walk of a chain, compared with the block map.

use facts::disk::DiskFacts;

use super::dimensions::{BLOCK_SIZE, FORMATS, LONGEST, QUEUE_DEPTH, categories, find, is_naive};
use crate::bed::NAIVE;
use crate::compare::Metric;
use crate::grid::{Grid, left, right};
use crate::result::{NATIVE, Ratio};
use crate::suite::view::{View, cell, ratio_cell};
use crate::svg::{Chart, Key, Panel, Scale};
use crate::table::grouped;

/// A table and a chart, if the view has such rows, with findings.
pub(super) fn report(
    view: View<'_>,
    grids: &mut Vec<Grid>,
    charts: &mut Vec<(String, Chart)>,
) -> Option<String> {
    let compared: Vec<_> =
        walks(view).filter_map(|disk| Some((disk, ratio(view, disk, Metric::Iops)?))).collect();
    if compared.is_empty() {
        return None;
    }
    grids.push(grid(view));
    charts.push(("naive-native".to_owned(), chart(view)));
    let longest = format!("depth {LONGEST}");
    let of_longest: Vec<String> = compared
        .iter()
        .filter(|(disk, _)| disk.options.contains(&longest))
        .map(|(disk, ratio)| format!("{:.2} ({})", ratio.median, disk.format))
        .collect();
    Some(format!(
        "A naive walk, which asks each image from the newest to the oldest, has {} of the flat map's throughput with {LONGEST} images. All tables are in \
         memory; a reader that reads them from the files is slower still.",
        of_longest.join(" and ")
    ))
}

fn walks<'a>(view: View<'a>) -> impl Iterator<Item = &'a DiskFacts> {
    view.disks().into_iter().filter(|disk| is_naive(disk))
}

/// The same chain, read through the block map.
fn flat<'a>(view: View<'a>, walk: &DiskFacts) -> Option<&'a DiskFacts> {
    let options = || walk.options.iter().filter(|option| *option != NAIVE);
    view.disks().into_iter().find(|disk| disk.format == walk.format && disk.options.iter().eq(options()))
}

/// The ratio of the walk to the block map.
fn ratio<'a>(view: View<'a>, walk: &DiskFacts, metric: Metric) -> Option<&'a Ratio> {
    let flat = flat(view, walk).and_then(|disk| find(view, disk, NATIVE));
    view.ratio(flat, find(view, walk, NATIVE), metric)
}

fn grid(view: View<'_>) -> Grid {
    let row = |walk: &DiskFacts| {
        let flat = flat(view, walk)?;
        let iops = |disk| cell(find(view, disk, NATIVE).map(|result| result.iops.median), grouped);
        Some(vec![
            flat.name(),
            iops(flat),
            iops(walk),
            ratio_cell(ratio(view, walk, Metric::Iops)),
            ratio_cell(ratio(view, walk, Metric::Cycles)),
        ])
    };
    let [_, per_io, _] = view.counted();
    Grid {
        title: format!(
            "Naive walk of the chain against the flat map, no adapter: {} KiB random read of 64M cached, {QUEUE_DEPTH} outstanding",
            BLOCK_SIZE >> 10
        ),
        heads: vec![
            left(["disk", ""]),
            right(["IOPS", "flat map"]),
            right(["IOPS", "naive"]),
            right(["IOPS", "naive / flat"]),
            right([per_io, "naive / flat"]),
        ],
        rows: walks(view).filter_map(row).collect(),
    }
}

fn chart(view: View<'_>) -> Chart {
    let line = |format: &str| {
        let walks = walks(view).filter(|walk| walk.format == format);
        walks.map(|walk| ratio(view, walk, Metric::Iops).map(Ratio::stat)).collect()
    };
    Chart {
        title: "Throughput of a naive walk by length of the chain (4 KiB random read)".to_owned(),
        x_title: "images in the chain",
        y_title: "naive walk / flat map",
        categories: categories(),
        scale: Scale::Log,
        reference: Some(1.0),
        keys: FORMATS.map(|(format, style)| Key { label: format.to_owned(), colour: 0, style }).into(),
        panels: vec![Panel {
            title: "64 MiB in the page cache, no adapter".to_owned(),
            lines: FORMATS.map(|(format, _)| line(format)).into(),
        }],
        ..Chart::default()
    }
}
