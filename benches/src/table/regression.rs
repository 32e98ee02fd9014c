//! The table of two documents, row by row.

use std::collections::HashSet;

use super::{circumstances, facts, grouped, micros};
use crate::compare::Metric;
use crate::confidence::{Verdict, percent};
use crate::grid::{Grid, Head, left, right};
use crate::regression::{Compared, Named, Regression};

/// The names of both documents, the table, a summary, the rows that got slower, the rows of only one document, and notes.
#[must_use]
pub fn render(regression: &Regression<'_>, baseline: Named<'_>, candidate: Named<'_>) -> String {
    let mut lines = vec![
        format!("A: {}: {}", baseline.name, circumstances(baseline.document)),
        format!("B: {}: {}", candidate.name, circumstances(candidate.document)),
    ];
    if !regression.comparisons.is_empty() {
        lines.push(format!("\n{}", grid(regression, candidate)));
        lines.extend(legend(regression));
    }
    lines.push(summary(regression));
    let slower = regression.comparisons.iter().filter(|each| verdict(each) == Some(Verdict::Slower));
    lines.extend(slower.map(|each| {
        let ratio = each.ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        format!("SLOWER: {}: {} {ratio} [{}]", each.row, each.metric, interval(each))
    }));
    for (what, rows) in [
        ("only in A", &regression.only_in_baseline),
        ("only in B", &regression.only_in_candidate),
        ("FAILED accesses, not compared", &regression.failed),
    ] {
        lines.extend(rows.iter().map(|row| format!("{what}: {row}")));
    }
    lines.extend(regression.notes.iter().cloned());
    lines.join("\n") + "\n"
}

fn verdict(compared: &Compared<'_>) -> Option<Verdict> {
    compared.confidence.map(|confidence| confidence.verdict)
}

fn interval(compared: &Compared<'_>) -> String {
    compared.confidence.map_or_else(|| "-".to_owned(), |each| format!("{:.3}-{:.3}", each.low, each.high))
}

fn grid(regression: &Regression<'_>, candidate: Named<'_>) -> String {
    let mut columns = facts(candidate.document);
    let results = candidate.document.results.iter().filter(|result| result.adapter != "native");
    if results.map(|result| &result.engine).collect::<HashSet<_>>().len() > 1 {
        columns.insert(0, super::left(["engine", ""], |result, _| result.engine.clone()));
    }
    let unit = candidate.document.host.cycles_source.unit();
    let row = |each: &Compared<'_>| {
        let (name, show): (String, fn(f64) -> String) = match each.kind {
            Metric::Cycles => (format!("{unit} per I/O"), grouped),
            Metric::Iops => ("IOPS".to_owned(), grouped),
            _ => ("p99 us".to_owned(), micros),
        };
        let mut cells: Vec<String> =
            columns.iter().map(|column| (column.cell)(each.result, candidate.document)).collect();
        cells.extend([
            name,
            show(each.baseline),
            show(each.candidate),
            each.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            interval(each),
            verdict(each).map_or("-", Verdict::as_str).to_owned(),
        ]);
        cells
    };
    let mut heads: Vec<Head> =
        columns.iter().map(|column| Head { lines: column.head, left: column.left }).collect();
    heads.extend([
        left(["metric", ""]),
        right(["A", ""]),
        right(["B", ""]),
        right(["B / A", ""]),
        right(["95%", "interval"]),
        left(["verdict", ""]),
    ]);
    Grid { title: String::new(), heads, rows: regression.comparisons.iter().map(row).collect() }.text()
}

/// The margins, and the meaning of the verdicts.
fn legend(regression: &Regression<'_>) -> Option<String> {
    let margin = |percentile: bool| {
        let mut all =
            regression.comparisons.iter().filter(move |each| each.kind.is_percentile() == percentile);
        all.find_map(|each| Some(percent(each.confidence?.margin)))
    };
    let means = margin(false)?;
    let percentiles = margin(true).map(|margin| format!(", p99 within {margin}")).unwrap_or_default();
    Some(format!(
        "equal: within {means}{percentiles}; faster, slower: outside of that, and the interval excludes 1"
    ))
}

fn summary(regression: &Regression<'_>) -> String {
    let count = |verdict: Verdict| format!("{} {}", regression.count(verdict), verdict.as_str());
    let verdicts = [Verdict::Equal, Verdict::Faster, Verdict::Slower, Verdict::NotDecided].map(count);
    format!("{} comparisons: {}", regression.comparisons.len(), verdicts.join(", "))
}
