//! Queries over the results of a document.

use facts::disk::DiskFacts;
use facts::host::{CyclesSource, Host};

use crate::axes::Engine;
use crate::compare::Metric;
use crate::confidence::Verdict;
use crate::result::{Document, Ratio, RunResult};

/// The results of one engine.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    document: &'a Document,
    pub(super) engine: &'a str,
}

/// Identifies a result.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) adapter: &'a str,
    pub(super) disk: &'a DiskFacts,
    /// `None`: any.
    pub(super) rw: Option<&'a str>,
    pub(super) block_size: u32,
    pub(super) queue_depth: u32,
    pub(super) workers: u32,
    /// `None`: any.
    pub(super) coalescing: Option<&'a str>,
}

impl<'a> View<'a> {
    /// One for each engine, in the document's order.
    pub(super) fn of(document: &'a Document) -> Vec<Self> {
        let engines = distinct(document.results.iter().map(|result| result.engine.as_str()));
        engines.into_iter().map(|engine| Self { document, engine }).collect()
    }

    /// The host of the measurement.
    pub(super) fn host(self) -> &'a Host {
        &self.document.host
    }

    /// The unit that is counted as cycles, short, and for each I/O, short and in full.
    pub(super) const fn counted(self) -> [&'static str; 3] {
        match self.document.host.cycles_source {
            CyclesSource::Pmu | CyclesSource::CpuTimeXTsc => ["cycles", "cycles/IO", "cycles per I/O"],
            CyclesSource::Instructions => ["instructions", "instr./IO", "instructions per I/O"],
        }
    }

    /// Whether the split of the cycles is meaningful. If a guest's instructions are counted instead, the kernel samples the split by a
    /// timer of instructions, and counts KVM's work around an exit as the guest's.
    pub(super) fn has_parts(self) -> bool {
        self.document.host.cycles_source != CyclesSource::Instructions || self.engine != Engine::Kvm.as_str()
    }

    fn results(self) -> impl Iterator<Item = &'a RunResult> {
        self.document.results.iter().filter(move |result| result.engine == self.engine)
    }

    /// The disks, in the document's order.
    pub(super) fn disks(self) -> Vec<&'a DiskFacts> {
        distinct(self.results().map(|result| &result.disk))
    }

    pub(super) fn find(self, wanted: &Wanted<'_>) -> Option<&'a RunResult> {
        self.results().find(|result| {
            result.adapter == wanted.adapter
                && result.disk == *wanted.disk
                && wanted.rw.is_none_or(|rw| result.rw == rw)
                && (result.block_size, result.queue_depth, result.workers)
                    == (wanted.block_size, wanted.queue_depth, wanted.workers)
                && wanted.coalescing.is_none_or(|policy| result.coalescing.as_deref() == Some(policy))
        })
    }

    /// The ratio of candidate to baseline, if both ran in pairs.
    pub(super) fn ratio(
        self,
        baseline: Option<&RunResult>,
        candidate: Option<&RunResult>,
        metric: Metric,
    ) -> Option<&'a Ratio> {
        let (baseline, candidate) = (baseline?.label(), candidate?.label());
        self.document.ratios.iter().find(|ratio| {
            ratio.metric == metric.as_str() && ratio.baseline == baseline && ratio.candidate == candidate
        })
    }
}

/// A value or a dash.
pub(super) fn cell(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// A ratio with its spread, interval and verdict, or a dash.
pub(super) fn ratio_cell(ratio: Option<&Ratio>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.text(2))
}

/// A ratio with its spread, or a dash; a question mark means not decided. For tables with many ratios.
pub(super) fn short_ratio_cell(ratio: Option<&Ratio>) -> String {
    let open = |ratio: &Ratio| ratio.confidence.is_some_and(|each| each.verdict == Verdict::NotDecided);
    ratio.map_or_else(
        || "-".to_owned(),
        |ratio| {
            let Ratio { median, min, max, .. } = ratio;
            format!("{median:.2} ({min:.2}-{max:.2}){}", if open(ratio) { "?" } else { "" })
        },
    )
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}
