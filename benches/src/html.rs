//! Results as one self-contained HTML page with tables and plots.

use std::collections::BTreeSet;
use std::fmt::Write;

use facts::units::format_size;

use crate::result::{Document, Ratio, RunResult};
use crate::stat::Stat;
use crate::suite;
use crate::svg::{Bar, COLOURS, Chart, Key, Panel, Style, bars, escape};
use crate::table::{circumstances, grouped, micros, spread};

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:1200px;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0;display:block;overflow-x:auto}th,td{padding:.25em .6em;border-bottom:1px solid #ddd;\
text-align:right;white-space:nowrap}th{background:#f4f4f4}td.l,th.l{text-align:left}svg{width:100%;margin:1.5em 0}\
.native{color:#666}.bad{color:#b00;font-weight:bold}";

/// A page of these documents, each under its name (its file name).
#[must_use]
pub fn render(documents: &[(String, Document)]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>paradisk: cycles per I/O</title><style>{STYLE}</style></head><body>\n<h1>Cycles per I/O</h1>\n"
    );
    for (name, document) in documents {
        let _ = writeln!(page, "<h2>{}</h2>\n<p>{}</p>", escape(name), escape(&circumstances(document)));
        match suite::of(document) {
            Some(suite) => page += &suite.report(document).html(),
            None => page += &plots(document),
        }
        page += &results(document);
        page += &ratios(&document.ratios);
    }
    page + "</body></html>\n"
}

/// The unit of what is measured for each I/O.
fn unit(document: &Document) -> &'static str {
    document.host.cycles_source.unit()
}

fn results(document: &Document) -> String {
    /// Behind its unit.
    const TOTAL: &str = "median (min-max)";
    const HEADS: [(&str, bool); 21] = [
        ("adapter", true),
        ("disk", true),
        ("path", true),
        ("access", true),
        ("block", false),
        ("depth", false),
        ("workers", false),
        ("coalescing", true),
        ("IOPS", false),
        ("MB/s", false),
        (TOTAL, false),
        ("guest", false),
        ("exit", false),
        ("device", false),
        ("kernel", false),
        ("p50 us", false),
        ("p99 us", false),
        ("irqs/IO", false),
        ("exits/IO", false),
        ("bells/IO", false),
        ("errors", false),
    ];
    let mut table = "<table><thead><tr>".to_owned();
    for (head, left) in HEADS {
        let head = if head == TOTAL { &format!("{}/IO: {TOTAL}", unit(document)) } else { head };
        let _ = write!(table, "<th{}>{head}</th>", class(left));
    }
    table += "</tr></thead><tbody>\n";
    for result in &document.results {
        let cycles = &result.cycles_per_io;
        let cells = [
            result.adapter.clone(),
            result.disk.name(),
            result.disk.path.clone().unwrap_or_default(),
            access(result),
            format_size(result.block_size.into()),
            result.queue_depth.to_string(),
            result.workers.to_string(),
            result.coalescing.clone().unwrap_or_default(),
            spread(&result.iops, grouped),
            grouped(result.mb_per_s.median),
            spread(&cycles.total, grouped),
            grouped(cycles.guest.median),
            grouped(cycles.exit.median),
            grouped(cycles.device.median),
            grouped(cycles.kernel.median),
            micros(result.latency_us.p50),
            micros(result.latency_us.p99),
            format!("{:.3}", result.interrupts_per_io),
            format!("{:.3}", result.exits_per_io),
            format!("{:.3}", result.doorbells_per_io),
            result.errors.to_string(),
        ];
        let row = match (result.errors, result.adapter.as_str()) {
            (1.., _) => " class=\"bad\"",
            (0, "native") => " class=\"native\"",
            _ => "",
        };
        let _ = write!(table, "<tr{row}>");
        for (cell, (_, left)) in cells.iter().zip(HEADS) {
            let _ = write!(table, "<td{}>{}</td>", class(left), escape(cell));
        }
        table += "</tr>\n";
    }
    table + "</tbody></table>\n"
}

fn ratios(ratios: &[Ratio]) -> String {
    if ratios.is_empty() {
        return String::new();
    }
    let mut table = "<table><thead><tr><th class=\"l\">candidate</th><th class=\"l\">baseline</th><th class=\"l\">metric</th><th>ratio</th><th>min</th><th>max</th><th>95% interval</th><th class=\"l\">verdict</th></tr></thead><tbody>\n".to_owned();
    for Ratio { baseline, candidate, metric, median, min, max, confidence, .. } in ratios {
        let [baseline, candidate, metric] = [baseline, candidate, metric].map(|text| escape(text));
        let (interval, verdict) = match confidence {
            Some(confidence) => (format!("{:.3}-{:.3}", confidence.low, confidence.high), confidence.words()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let _ = writeln!(
            table,
            "<tr><td class=\"l\">{candidate}</td><td class=\"l\">{baseline}</td><td class=\"l\">{metric}</td><td>{median:.3}</td><td>{min:.3}</td><td>{max:.3}</td><td>{interval}</td><td class=\"l\">{verdict}</td></tr>"
        );
    }
    table + "</tbody></table>\n"
}

fn plots(document: &Document) -> String {
    let results = &document.results;
    if results.is_empty() {
        return String::new();
    }
    let cycles: Vec<Bar> = results
        .iter()
        .map(|result| {
            let cycles = &result.cycles_per_io;
            let parts = [cycles.guest, cycles.exit, cycles.device, cycles.kernel].map(|stat| stat.median);
            Bar { label: short(document, result), parts: parts.to_vec() }
        })
        .collect();
    let rates: Vec<Bar> = results
        .iter()
        .map(|result| Bar { label: short(document, result), parts: vec![result.iops.median] })
        .collect();
    let mut text =
        bars(&format!("CPU {} per I/O", unit(document)), &["guest", "exit", "device", "kernel"], &cycles);
    text += &bars("I/Os per second", &["IOPS"], &rates);
    text += &over(document, "block size", |result| result.block_size, |value| format_size(value.into()));
    text += &over(document, "queue depth", |result| result.queue_depth, |value| value.to_string());
    text += &over(document, "workers", |result| result.workers, |value| value.to_string());
    text + "\n"
}

/// Cycles over a dimension, where it has several values: a line for each combination of the others.
fn over(
    document: &Document,
    name: &'static str,
    value: fn(&RunResult) -> u32,
    show: fn(u32) -> String,
) -> String {
    let values: BTreeSet<u32> = document.results.iter().map(value).collect();
    if values.len() < 2 {
        return String::new();
    }
    let values: Vec<u32> = values.into_iter().collect();
    let mut labels: Vec<String> = Vec::new();
    let mut lines: Vec<Vec<Option<Stat>>> = Vec::new();
    for result in &document.results {
        // Combinations that differ in this dimension alone have the same label.
        let mut plain = result.clone();
        match name {
            "block size" => plain.block_size = 0,
            "queue depth" => plain.queue_depth = 0,
            _ => plain.workers = 0,
        }
        let label = short(document, &plain);
        let index = values.iter().position(|each| *each == value(result));
        let at = labels.iter().position(|each| *each == label).unwrap_or_else(|| {
            labels.push(label);
            lines.push(vec![None; values.len()]);
            lines.len() - 1
        });
        if let Some(point) = index.and_then(|index| lines.get_mut(at)?.get_mut(index)) {
            *point = Some(result.cycles_per_io.total);
        }
    }
    let key = |(index, label)| Key { label, colour: index % COLOURS.len(), style: Style::Solid };
    Chart {
        title: format!("CPU {} per I/O over {name}", unit(document)),
        x_title: name,
        y_title: unit(document),
        categories: values.into_iter().map(show).collect(),
        shared: true,
        keys: labels.into_iter().enumerate().map(key).collect(),
        panels: vec![Panel { title: String::new(), lines }],
        ..Chart::default()
    }
    .render()
}

/// A short label: the dimensions that vary among the results.
fn short(document: &Document, result: &RunResult) -> String {
    let varies = |value: fn(&RunResult) -> String| {
        document
            .results
            .iter()
            .any(|other| document.results.first().is_some_and(|first| value(other) != value(first)))
    };
    let mut label = format!("{} {}", result.adapter, result.disk.name());
    if varies(access) {
        label += &format!(" {}", access(result));
    }
    if result.block_size != 0 && varies(|result| result.block_size.to_string()) {
        label += &format!(" {}", format_size(result.block_size.into()));
    }
    if result.queue_depth != 0 && varies(|result| result.queue_depth.to_string()) {
        label += &format!(" qd{}", result.queue_depth);
    }
    if result.workers != 0 && varies(|result| result.workers.to_string()) {
        label += &format!(" w{}", result.workers);
    }
    let mut policies: Vec<_> = document.results.iter().filter_map(|each| each.coalescing.as_ref()).collect();
    policies.sort();
    policies.dedup();
    if let (Some(policy), 2..) = (&result.coalescing, policies.len()) {
        label += &format!(" {policy}");
    }
    label
}

fn access(result: &RunResult) -> String {
    match result.rw.as_str() {
        "randrw" => format!("randrw {}%", result.read_percent),
        other => other.to_owned(),
    }
}

const fn class(left: bool) -> &'static str {
    if left { " class=\"l\"" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn the_page_holds_rows_ratios_and_plots_and_loads_nothing() {
        let page = render(&[("one & only.json".into(), sample())]);
        assert!(page.contains("<h2>one &amp; only.json</h2>"));
        assert_eq!(page.matches("<tr").count(), (1 + 2) + (1 + 1));
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("<td>1.250</td>"));
        assert!(
            page.contains("<td>1.125-1.500</td><td class=\"l\">slower (equal: within 2%)</td>"),
            "{page}"
        );
        assert!(page.contains("/tmp/a, &lt;b&gt;.vhd") && !page.contains("<b>"));
        for outside in ["http:", "https:", "<script", "<link", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_dimension_with_several_values_is_plotted() {
        let mut document = sample();
        for depth in [1, 8] {
            for index in 0..2 {
                let mut more = document.results[index].clone();
                more.queue_depth = depth;
                document.results.push(more);
            }
        }
        let page = render(&[("d".into(), document)]);
        assert_eq!(page.matches("CPU cycles per I/O over queue depth").count(), 2);
        assert_eq!(page.matches("<polyline").count(), 2);
        // A marker for each value, and one for each line in the legend.
        assert_eq!(page.matches("<circle").count(), 6 + 2);
    }
}
