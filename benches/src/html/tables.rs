//! Tables of all rows and of all ratios.

use std::collections::HashMap;

use facts::units::format_size;

use crate::grid::{Grid, Head, left, right};
use crate::result::{Document, Ratio, RunResult};
use crate::table::{access, grouped, micros, spread};

struct Column {
    head: Head,
    cell: fn(&RunResult) -> String,
    /// Omitted if all rows have the same value, which is then above the table.
    varies: bool,
}

const fn name(lines: [&'static str; 2], cell: fn(&RunResult) -> String) -> Column {
    Column { head: left(lines), cell, varies: true }
}

const fn size(lines: [&'static str; 2], cell: fn(&RunResult) -> String) -> Column {
    Column { head: right(lines), cell, varies: true }
}

const fn value(lines: [&'static str; 2], cell: fn(&RunResult) -> String) -> Column {
    Column { head: right(lines), cell, varies: false }
}

const COLUMNS: [Column; 26] = [
    name(["engine", ""], |result| result.engine.clone()),
    Column { varies: false, ..name(["adapter", ""], |result| result.adapter.clone()) },
    Column { varies: false, ..name(["disk", ""], |result| result.disk.name()) },
    name(["path", ""], |result| result.disk.path.clone().unwrap_or_default()),
    name(["access", ""], access),
    size(["block", ""], |result| format_size(result.block_size.into())),
    size(["depth", ""], |result| result.queue_depth.to_string()),
    size(["workers", ""], |result| result.workers.to_string()),
    name(["coalescing", ""], |result| result.coalescing.clone().unwrap_or_default()),
    value(["IOPS", "median (min-max)"], |result| spread(&result.iops, grouped)),
    value(["MB/s", ""], |result| grouped(result.mb_per_s.median)),
    value(["", "/IO: median (min-max)"], |result| spread(&result.cycles_per_io.total, grouped)),
    value(["guest", ""], |result| grouped(result.cycles_per_io.guest.median)),
    value(["exit", ""], |result| grouped(result.cycles_per_io.exit.median)),
    value(["device", ""], |result| grouped(result.cycles_per_io.device.median)),
    value(["kernel", ""], |result| grouped(result.cycles_per_io.kernel.median)),
    value(["mean", "us"], |result| micros(result.latency_us.mean)),
    value(["p50", "us"], |result| micros(result.latency_us.p50)),
    value(["p90", "us"], |result| result.latency_us.p90.map_or_else(|| "-".to_owned(), micros)),
    value(["p99", "us"], |result| micros(result.latency_us.p99)),
    value(["p99.9", "us"], |result| micros(result.latency_us.p999)),
    value(["p99.99", "us"], |result| result.latency_us.p9999.map_or_else(|| "-".to_owned(), micros)),
    value(["interrupts", "/IO"], |result| format!("{:.3}", result.interrupts_per_io)),
    value(["exits", "/IO"], |result| format!("{:.3}", result.exits_per_io)),
    value(["doorbells", "/IO"], |result| format!("{:.3}", result.doorbells_per_io)),
    size(["errors", ""], |result| result.errors.to_string()),
];

/// Every row, with the columns that distinguish rows.
pub(super) fn rows(document: &Document) -> Grid {
    let results = &document.results;
    let differs = |cell: fn(&RunResult) -> String| {
        results.first().is_some_and(|first| results.iter().any(|other| cell(other) != cell(first)))
    };
    let columns: Vec<&Column> =
        COLUMNS.iter().filter(|column| !column.varies || differs(column.cell)).collect();
    let head = |column: &&Column| match column.head.lines {
        ["", _] => Head { lines: [document.host.cycles_source.unit(), column.head.lines[1]], left: false },
        _ => column.head.clone(),
    };
    Grid {
        title: "Every row".to_owned(),
        heads: columns.iter().map(head).collect(),
        rows: results.iter().map(|result| columns.iter().map(|each| (each.cell)(result)).collect()).collect(),
    }
}

/// Every ratio.
pub(super) fn ratios(document: &Document) -> Grid {
    let number = |value: f64| format!("{value:.3}");
    let labels: HashMap<String, &RunResult> =
        document.results.iter().map(|result| (result.label(), result)).collect();
    let row = |ratio: &Ratio| {
        let found = labels.get(&ratio.candidate).copied();
        let load = found.map_or_else(|| ratio.candidate.clone(), load);
        let (interval, verdict, needed) = match &ratio.confidence {
            Some(each) => (
                format!("{:.3}-{:.3}", each.low, each.high),
                each.verdict.as_str().to_owned(),
                each.runs_to_decide.map_or_else(|| "-".to_owned(), |runs| runs.to_string()),
            ),
            None => ["-"; 3].map(str::to_owned).into(),
        };
        let engine = found.map(|result| result.engine.clone()).unwrap_or_default();
        vec![
            engine,
            ratio.name.clone(),
            load,
            ratio.metric.clone(),
            number(ratio.median),
            number(ratio.min),
            number(ratio.max),
            interval,
            verdict,
            needed,
        ]
    };
    Grid {
        title: "Every ratio".to_owned(),
        heads: vec![
            left(["engine", ""]),
            left(["comparison", ""]),
            left(["load", ""]),
            left(["metric", ""]),
            right(["ratio", ""]),
            right(["min", ""]),
            right(["max", ""]),
            right(["95%", "interval"]),
            left(["verdict", ""]),
            right(["runs that", "would decide"]),
        ],
        rows: document.ratios.iter().map(row).collect(),
    }
}

/// `randread 4K, depth 32`, and the number of workers if there are several.
fn load(result: &RunResult) -> String {
    let size = format_size(result.block_size.into());
    let load = format!("{} {size}, depth {}", access(result), result.queue_depth);
    if result.workers == 1 { load } else { format!("{load}, {} workers", result.workers) }
}
