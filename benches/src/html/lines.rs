//! Charts of documents without a suite: cost, throughput and latency over each dimension that varies, or by disk.

use std::collections::BTreeSet;

use facts::host::CyclesSource;
use facts::units::format_size;

use crate::result::{Document, RunResult};
use crate::stat::Stat;
use crate::svg::{COLOURS, Chart, Key, Panel, Style};
use crate::table::access;

/// Maximum number of panels and lines of a chart, because more are not legible. The table has all rows.
const MOST_PANELS: usize = 8;
const MOST_LINES: usize = 2 * COLOURS;

/// A dimension with numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dimension {
    BlockSize,
    QueueDepth,
    Workers,
}

impl Dimension {
    const ALL: [Self; 3] = [Self::BlockSize, Self::QueueDepth, Self::Workers];

    const fn title(self) -> &'static str {
        match self {
            Self::BlockSize => "block size (bytes)",
            Self::QueueDepth => "queue depth (I/Os)",
            Self::Workers => "workers",
        }
    }

    const fn of(self, result: &RunResult) -> u32 {
        match self {
            Self::BlockSize => result.block_size,
            Self::QueueDepth => result.queue_depth,
            Self::Workers => result.workers,
        }
    }

    fn label(self, value: u32) -> String {
        match self {
            Self::BlockSize => format_size(value.into()),
            Self::QueueDepth | Self::Workers => value.to_string(),
        }
    }

    fn with_unit(self, value: u32) -> String {
        match self {
            Self::BlockSize => format_size(value.into()),
            Self::QueueDepth => format!("depth {value}"),
            Self::Workers => format!("{value} worker(s)"),
        }
    }

    fn values(self, document: &Document) -> BTreeSet<u32> {
        document.results.iter().map(|result| self.of(result)).collect()
    }
}

/// A value to draw.
struct Shown {
    title: &'static str,
    unit: &'static str,
    value: fn(&RunResult) -> Stat,
}

const fn shown(title: &'static str, unit: &'static str, value: fn(&RunResult) -> Stat) -> Shown {
    Shown { title, unit, value }
}

pub(super) fn charts(document: &Document) -> Vec<Chart> {
    if document.results.is_empty() {
        return Vec::new();
    }
    let (unit, cost) = match document.host.cycles_source {
        CyclesSource::Instructions => ("instructions", "CPU instructions per I/O"),
        CyclesSource::Pmu | CyclesSource::CpuTimeXTsc => ("cycles", "CPU cycles per I/O"),
    };
    let all = [
        shown(cost, unit, |result| result.cycles_per_io.total),
        shown("Throughput", "IOPS", |result| result.iops),
        shown("Latency, 99th percentile", "us", |result| Stat::at(result.latency_us.p99)),
    ];
    let varying: Vec<Dimension> =
        Dimension::ALL.into_iter().filter(|dimension| dimension.values(document).len() > 1).collect();
    let said = &said(document);
    if varying.is_empty() {
        return all.iter().map(|shown| by_disk(document, said, shown)).collect();
    }
    varying.iter().flat_map(|over| all.iter().map(|shown| line_chart(document, said, *over, shown))).collect()
}

/// A panel for each disk, and a line for each combination of the other dimensions that vary.
fn line_chart(document: &Document, said: &Said, over: Dimension, shown: &Shown) -> Chart {
    let values: Vec<u32> = over.values(document).into_iter().collect();
    let categories = values.iter().map(|value| over.label(*value)).collect();
    let others: Vec<Dimension> = Dimension::ALL
        .into_iter()
        .filter(|other| *other != over && other.values(document).len() > 1)
        .collect();
    let line = |result: &RunResult| {
        let mut name = candidate(said, result);
        others.iter().for_each(|other| name += &format!(", {}", other.with_unit(other.of(result))));
        name
    };
    let place = |result: &RunResult| values.iter().position(|value| *value == over.of(result));
    let title = format!("{} over {}", shown.title, over.title());
    let disk = |result: &RunResult| result.disk.name();
    build(
        document,
        Build {
            title,
            x_title: over.title(),
            categories,
            shown,
            style: Style::Solid,
            panel: &disk,
            line: &line,
            place: &place,
        },
    )
}

/// One panel with a category for each disk and a series for each adapter.
fn by_disk(document: &Document, said: &Said, shown: &Shown) -> Chart {
    let disks = distinct(document.results.iter().map(|result| result.disk.name()));
    let place = |result: &RunResult| disks.iter().position(|disk| *disk == result.disk.name());
    let title = format!("{} by disk", shown.title);
    let (panel, line) = (|_: &RunResult| String::new(), |result: &RunResult| candidate(said, result));
    let categories = disks.clone();
    build(
        document,
        Build {
            title,
            x_title: "disk",
            categories,
            shown,
            style: Style::Points,
            panel: &panel,
            line: &line,
            place: &place,
        },
    )
}

struct Build<'a> {
    title: String,
    x_title: &'static str,
    categories: Vec<String>,
    shown: &'a Shown,
    style: Style,
    /// The panel of a result.
    panel: &'a dyn Fn(&RunResult) -> String,
    line: &'a dyn Fn(&RunResult) -> String,
    /// The result's position on the horizontal axis.
    place: &'a dyn Fn(&RunResult) -> Option<usize>,
}

fn build(document: &Document, build: Build<'_>) -> Chart {
    let Build { title, x_title, categories, shown, style, panel, line, place } = build;
    let results = &document.results;
    let mut panels = distinct(results.iter().map(panel));
    let mut lines = distinct(results.iter().map(line));
    let left_out = panels.len().saturating_sub(MOST_PANELS) + lines.len().saturating_sub(MOST_LINES);
    panels.truncate(MOST_PANELS);
    lines.truncate(MOST_LINES);
    let mut drawn: Vec<Panel> = panels
        .iter()
        .map(|title| Panel { title: title.clone(), lines: vec![vec![None; categories.len()]; lines.len()] })
        .collect();
    for result in results {
        let (panel, line) = (panel(result), line(result));
        let at = panels.iter().position(|each| *each == panel);
        let series = lines.iter().position(|each| *each == line);
        let (Some(at), Some(series), Some(place)) = (at, series, place(result)) else { continue };
        let slot = drawn.get_mut(at).and_then(|panel| panel.lines.get_mut(series)?.get_mut(place));
        if let Some(slot) = slot {
            *slot = Some((shown.value)(result));
        }
    }
    let key = |(index, label): (usize, String)| Key {
        label,
        colour: index % COLOURS,
        style: if style == Style::Solid && index >= COLOURS { Style::Dashed } else { style },
    };
    Chart {
        title: if left_out > 0 { format!("{title} (not all rows: see the table)") } else { title },
        x_title,
        y_title: shown.unit,
        categories,
        keys: lines.into_iter().enumerate().map(key).collect(),
        panels: drawn,
        ..Chart::default()
    }
}

/// The parts of a line's name beside the adapter: access, engine and policy, if they vary.
type Said = Vec<fn(&RunResult) -> String>;

fn said(document: &Document) -> Said {
    let varies = |value: &fn(&RunResult) -> String| {
        let adapters = document.results.iter().filter(|other| other.adapter != "native");
        distinct(adapters.map(value)).len() > 1
    };
    let all: [fn(&RunResult) -> String; 3] =
        [access, |result| result.engine.clone(), |result| result.coalescing.clone().unwrap_or_default()];
    all.into_iter().filter(varies).collect()
}

fn candidate(said: &Said, result: &RunResult) -> String {
    let parts = said.iter().map(|part| part(result)).filter(|part| !part.is_empty() && *part != "native");
    [result.adapter.clone()].into_iter().chain(parts).collect::<Vec<_>>().join(", ")
}

fn distinct(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    values.filter(|value| seen.insert(value.clone())).collect()
}
