//! Compares two documents of results row by row: faster or slower from the baseline to the candidate.
//!
//! Rows match by [`RunResult::label`]. An unmatched row matches the row that differs only in the path of the disk, if each document has
//! exactly one such row: the paths of temporary disks change with each run. For each metric in [`METRICS`] the ratio of the medians has
//! an interval and a verdict ([`confidence::unpaired`]). The order of rows, and of runs in a row, does not matter.

use std::collections::HashMap;

use serde::Serialize;

use crate::compare::Metric;
use crate::confidence::{self, Confidence, Criterion, MOST_RUNS, Verdict};
use crate::result::{Document, RunResult, RunValues};
use crate::stat::Stat;

/// The metrics that are compared.
pub const METRICS: [Metric; 3] = [Metric::Cycles, Metric::Iops, Metric::LatencyP99];

/// Maximum number of values of a row: the limit of `--runs`, on both engines of a suite.
const MOST_VALUES: usize = 2 * MOST_RUNS as usize;

/// Margins within which ratios count as equal ([`Confidence::margin`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// For cycles and IOPS.
    pub means: f64,
    /// For percentiles of latencies.
    pub percentiles: f64,
}

impl Default for Margins {
    /// Wider than the margins inside one document: the machine may have changed between two measurements.
    fn default() -> Self {
        Self { means: 0.05, percentiles: 0.10 }
    }
}

impl Margins {
    fn criterion(self, metric: Metric) -> Criterion {
        let margin = if metric.is_percentile() { self.percentiles } else { self.means };
        Criterion { margin, better: metric.better() }
    }
}

/// A document and its name.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Usually the name of its file.
    pub name: &'a str,
    /// The document.
    pub document: &'a Document,
}

/// Why two documents cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A row has more runs than `bench` can produce.
    #[error("{name}: {runs} runs in this row, expected at most {MOST_VALUES}: {row}")]
    TooManyRuns {
        /// The document.
        name: String,
        /// The row.
        row: String,
        /// The number of values.
        runs: usize,
    },
    /// No rows match.
    #[error("{baseline} and {candidate} have no row in common")]
    NothingInCommon {
        /// The first document.
        baseline: String,
        /// The second document.
        candidate: String,
    },
}

/// The comparison of two documents; with serde, the JSON document of `bench compare --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Regression<'a> {
    /// [`facts::SCHEMA`].
    pub schema: u32,
    /// Name of the first document.
    pub baseline: &'a str,
    /// Name of the second document.
    pub candidate: &'a str,
    /// Each metric of each matching row, in the order of the baseline.
    pub comparisons: Vec<Compared<'a>>,
    /// Labels of rows that only the baseline has.
    pub only_in_baseline: Vec<String>,
    /// Labels of rows that only the candidate has.
    pub only_in_candidate: Vec<String>,
    /// Labels of rows with failed accesses in one of the documents. They are not compared.
    pub failed: Vec<String>,
    /// Remarks, such as differences between the machines.
    pub notes: Vec<String>,
}

/// A metric of a row in both documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared<'a> {
    /// The row: its label in the candidate.
    pub row: String,
    /// The metric, as in [`Ratio::metric`](crate::result::Ratio::metric).
    pub metric: &'static str,
    /// Median of the baseline's runs.
    pub baseline: f64,
    /// Median of the candidate's runs.
    pub candidate: f64,
    /// Candidate over baseline; none if the baseline is zero.
    pub ratio: Option<f64>,
    /// Interval and verdict; none if a document has the values of fewer than two runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// The row of the candidate.
    #[serde(skip)]
    pub(crate) result: &'a RunResult,
    #[serde(skip)]
    pub(crate) kind: Metric,
}

/// Compare two documents.
///
/// # Errors
/// [`Refusal`].
pub fn compare<'a>(
    baseline: Named<'a>,
    candidate: Named<'a>,
    margins: Margins,
) -> Result<Regression<'a>, Refusal> {
    let Matches { pairs, moved, only_in_baseline, only_in_candidate } =
        matches(rows(baseline)?, rows(candidate)?);
    if pairs.is_empty() {
        let (baseline, candidate) = (baseline.name.to_owned(), candidate.name.to_owned());
        return Err(Refusal::NothingInCommon { baseline, candidate });
    }
    let mut notes = differences(baseline.document, candidate.document);
    let unit = |document: &Document| document.host.cycles_source.unit();
    let same_unit = unit(baseline.document) == unit(candidate.document);
    let metrics = METRICS.into_iter().filter(|metric| same_unit || *metric != Metric::Cycles);
    let (failed, sound): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|(base, other)| base.errors > 0 || other.errors > 0);
    let comparisons: Vec<_> = sound
        .iter()
        .flat_map(|(base, other)| metrics.clone().map(|metric| compared(base, other, metric, margins)))
        .collect();
    if moved > 0 {
        notes.push(format!("{moved} rows were matched although the paths of their disks differ"));
    }
    let open = comparisons.iter().filter(|each| each.confidence.is_none()).count();
    if open > 0 {
        notes.push(format!(
            "no verdict: {open} of {} comparisons, because a document has fewer than 2 runs of the row",
            comparisons.len()
        ));
    }
    notes.extend(confidence::note(comparisons.iter().filter_map(|each| each.confidence.as_ref())));
    Ok(Regression {
        schema: facts::SCHEMA,
        baseline: baseline.name,
        candidate: candidate.name,
        comparisons,
        only_in_baseline,
        only_in_candidate,
        failed: failed.into_iter().map(|(_, row)| row.label).collect(),
        notes,
    })
}

impl Regression<'_> {
    /// Number of comparisons with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        let has = |each: &&Compared<'_>| each.confidence.is_some_and(|each| each.verdict == verdict);
        self.comparisons.iter().filter(has).count()
    }

    /// Whether no comparison has a verdict, as for documents with single runs.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.comparisons.iter().all(|each| each.confidence.is_none())
    }
}

/// A row of a document, with the runs of all results with its label: a suite on two engines measures rows without an adapter twice.
struct Row<'a> {
    label: String,
    result: &'a RunResult,
    values: RunValues,
    errors: u64,
}

/// The rows in the document's order.
fn rows(Named { name, document }: Named<'_>) -> Result<Vec<Row<'_>>, Refusal> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for result in &document.results {
        let label = result.label();
        match places.get(&label).and_then(|place| rows.get_mut(*place)) {
            Some(row) => {
                row.values.iops.extend(&result.values.iops);
                row.values.cycles_per_io.extend(&result.values.cycles_per_io);
                row.values.latency_p99_us.extend(&result.values.latency_p99_us);
                row.errors = row.errors.saturating_add(result.errors);
            }
            None => {
                places.insert(label.clone(), rows.len());
                rows.push(Row { label, result, values: result.values.clone(), errors: result.errors });
            }
        }
    }
    for Row { label, values, .. } in &rows {
        let runs = values.iops.len().max(values.cycles_per_io.len()).max(values.latency_p99_us.len());
        if runs > MOST_VALUES {
            return Err(Refusal::TooManyRuns { name: name.to_owned(), row: label.clone(), runs });
        }
    }
    Ok(rows)
}

impl Row<'_> {
    /// The runs' values of a metric in [`METRICS`].
    fn values(&self, metric: Metric) -> &[f64] {
        match metric {
            Metric::Cycles => &self.values.cycles_per_io,
            Metric::Iops => &self.values.iops,
            Metric::LatencyP99 => &self.values.latency_p99_us,
            Metric::DeviceAndKernel | Metric::LatencyMean | Metric::LatencyP50 | Metric::Interrupts => &[],
        }
    }

    /// The median of the runs; if the document has no values of runs, the median in the result.
    fn median(&self, metric: Metric) -> f64 {
        let of_result = match metric {
            Metric::Cycles => self.result.cycles_per_io.total.median,
            Metric::Iops => self.result.iops.median,
            _ => self.result.latency_us.p99,
        };
        Stat::of(self.values(metric).iter().copied()).map_or(of_result, |stat| stat.median)
    }
}

struct Matches<'a> {
    pairs: Vec<(Row<'a>, Row<'a>)>,
    /// Pairs that differ in the path of the disk.
    moved: usize,
    only_in_baseline: Vec<String>,
    only_in_candidate: Vec<String>,
}

/// Match rows. Pairs are in the order of the baseline.
fn matches<'a>(baseline: Vec<Row<'a>>, candidate: Vec<Row<'a>>) -> Matches<'a> {
    let mut by_label: HashMap<String, Row<'a>> =
        candidate.into_iter().map(|row| (row.label.clone(), row)).collect();
    let (mut pairs, mut left) = (Vec::new(), Vec::new());
    for (place, base) in baseline.into_iter().enumerate() {
        match by_label.remove(&base.label) {
            Some(other) => pairs.push((place, (base, other))),
            None => left.push((place, base)),
        }
    }
    let pathless = |row: &Row<'_>| row.result.label_without_path();
    let mut bases: HashMap<String, usize> = HashMap::new();
    left.iter().for_each(|(_, base)| *bases.entry(pathless(base)).or_default() += 1);
    let mut others: HashMap<String, Vec<Row<'a>>> = HashMap::new();
    by_label.into_values().for_each(|row| others.entry(pathless(&row)).or_default().push(row));
    let (mut moved, mut only_in_baseline) = (0, Vec::new());
    for (place, base) in left {
        let key = pathless(&base);
        let single = bases.get(&key) == Some(&1) && others.get(&key).is_some_and(|rows| rows.len() == 1);
        match others.get_mut(&key).filter(|_| single).and_then(Vec::pop) {
            Some(other) => {
                moved += 1;
                pairs.push((place, (base, other)));
            }
            None => only_in_baseline.push(base.label),
        }
    }
    pairs.sort_by_key(|(place, _)| *place);
    let mut only_in_candidate: Vec<String> = others.into_values().flatten().map(|row| row.label).collect();
    only_in_candidate.sort_unstable();
    let pairs = pairs.into_iter().map(|(_, pair)| pair).collect();
    Matches { pairs, moved, only_in_baseline, only_in_candidate }
}

fn compared<'a>(base: &Row<'_>, other: &Row<'a>, metric: Metric, margins: Margins) -> Compared<'a> {
    let judged = confidence::unpaired(base.values(metric), other.values(metric), margins.criterion(metric));
    let (baseline, candidate) = (base.median(metric), other.median(metric));
    let ratio = candidate / baseline;
    Compared {
        row: other.label.clone(),
        metric: metric.as_str(),
        baseline,
        candidate,
        ratio: ratio.is_finite().then_some(ratio),
        confidence: judged,
        result: other.result,
        kind: metric,
    }
}

/// Differences between the machines.
fn differences(baseline: &Document, candidate: &Document) -> Vec<String> {
    let (one, other) = (&baseline.host, &candidate.host);
    let mut notes = Vec::new();
    let mut differ = |what: &str, one: &dyn std::fmt::Display, other: &dyn std::fmt::Display| {
        let (one, other) = (one.to_string(), other.to_string());
        if one != other {
            notes.push(format!("the machines differ, {what}: {one}; {other}"));
        }
    };
    differ("CPU", &one.cpu, &other.cpu);
    differ("number of CPUs", &one.cores, &other.cores);
    differ("kernel", &one.kernel, &other.kernel);
    if one.cycles_source.unit() != other.cycles_source.unit() {
        notes
            .push("one document counts cycles and the other instructions: these are not compared".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests;
