//! Suites: published experiments with their dimensions, disks, tables and plots, over every engine in one document.

mod adapters;
mod chain;
mod claim;
mod claims;
mod coalescing;
mod hyperv_analysis;
mod published;
mod pvscsi_vs_lsi;
mod report;
mod view;

use std::time::Duration;

use facts::disk::OpenDisk;
use facts::host::Host;
use facts::names;

pub(crate) use self::claim::{Claim, Standing};
pub(crate) use self::report::Report;
use crate::bed::{Bed, BedError};
use crate::meter::{self, Outcome, Plan, Rigs};
use crate::progress::Progress;
use crate::result::Document;
use crate::table::{circumstances, legend};

names! {
    /// A suite.
    Suite, "suite" {
        /// The paravirtual adapter against the emulated one, over block sizes.
        PvscsiVsLsi = "pvscsi-vs-lsi",
        /// Coalescing policies over depths and storage latencies.
        Coalescing = "coalescing",
        /// Differencing disks over the length of their chain.
        Chain = "chain",
        /// Hyper-V's disks, on the host and behind each of its adapters.
        HypervAnalysis = "hyperv-analysis",
        /// All adapters over the number of accesses in flight.
        Adapters = "adapters",
    }
}

/// Length of a run.
const DURATION: Duration = Duration::from_millis(300);

/// How long the load runs before each measured run: longer than an epoch of the coalescing policies (200 ms), after which they have
/// measured the rate.
const LEAD_IN: Duration = Duration::from_millis(220);

impl Suite {
    /// The suite's disks.
    ///
    /// # Errors
    /// [`BedError`] where they cannot be created.
    pub fn bed(self) -> Result<Bed, BedError> {
        match self {
            Self::PvscsiVsLsi => Bed::cached(pvscsi_vs_lsi::WORKING_SET),
            Self::Coalescing => coalescing::bed(),
            Self::Chain => chain::bed(),
            Self::HypervAnalysis => hyperv_analysis::bed(),
            Self::Adapters => adapters::bed(),
        }
    }

    /// The plan for `disks` disks; `None`: the suite's own length and number of runs.
    #[must_use]
    pub fn plan(self, disks: usize, duration: Option<Duration>, runs: Option<u32>) -> Plan {
        let (matrix, comparisons, usual_runs) = match self {
            Self::PvscsiVsLsi => {
                (pvscsi_vs_lsi::matrix(disks), pvscsi_vs_lsi::COMPARISONS.to_vec(), pvscsi_vs_lsi::RUNS)
            }
            Self::Coalescing => {
                (coalescing::matrix(disks), coalescing::COMPARISONS.to_vec(), coalescing::RUNS)
            }
            Self::Chain => (chain::matrix(disks), chain::comparisons(disks), chain::RUNS),
            Self::HypervAnalysis => {
                (hyperv_analysis::matrix(disks), hyperv_analysis::comparisons(disks), hyperv_analysis::RUNS)
            }
            Self::Adapters => (adapters::matrix(disks), adapters::COMPARISONS.to_vec(), adapters::RUNS),
        };
        let duration = duration.unwrap_or(DURATION);
        // Shorter runs are for a shorter suite.
        let lead_in = LEAD_IN.min(duration);
        Plan {
            matrix,
            span: None,
            duration,
            lead_in,
            settle: false,
            runs: runs.unwrap_or(usual_runs),
            comparisons,
        }
    }

    /// Run the plan on every engine.
    pub fn run(
        self,
        plan: &Plan,
        subjects: &[OpenDisk],
        engines: &mut [Box<dyn Rigs>],
        host: &Host,
        progress: &mut dyn Progress,
    ) -> Outcome {
        let suite = Some(self.as_str().to_owned());
        let (results, ratios) = (Vec::new(), Vec::new());
        let document = Document {
            schema: facts::SCHEMA,
            suite,
            host: host.clone(),
            results,
            ratios,
            command: None,
            notes: Vec::new(),
        };
        let mut all = Outcome { document, notes: Vec::new(), failed: false };
        for rigs in engines {
            let engine = rigs.engine();
            let progress = &mut Joined { before: &all.document, progress: &mut *progress };
            let outcome = meter::run(plan, subjects, rigs.as_mut(), host.clone(), progress);
            all.document = all.document.joined(outcome.document);
            all.notes.extend(outcome.notes.into_iter().map(|note| format!("{engine}: {note}")));
            all.failed |= outcome.failed;
        }
        all
    }

    /// Tables and findings as text, with notes below.
    #[must_use]
    pub fn text(self, document: &Document, notes: &[String]) -> String {
        let report = self.report(document);
        let mut text = circumstances(document) + "\n";
        for grid in &report.grids {
            text += &format!("\n{}\n\n{}", grid.title, grid.text());
        }
        // The tables of coalescing have a legend of their own.
        if let Some(legend) = legend(document).filter(|_| self != Self::Coalescing) {
            text += &format!("\n{legend}\n");
        }
        for lines in [&report.findings, notes] {
            text += if lines.is_empty() { "" } else { "\n" };
            lines.iter().for_each(|line| text += &format!("{line}\n"));
        }
        text
    }

    /// Plots: file names and contents.
    #[must_use]
    pub fn plots(self, document: &Document) -> Vec<(String, String)> {
        let charts = self.report(document).charts.into_iter();
        charts.map(|(name, chart)| (format!("{name}.svg"), chart.file())).collect()
    }

    pub(crate) fn report(self, document: &Document) -> Report {
        match self {
            Self::PvscsiVsLsi => pvscsi_vs_lsi::report(document),
            Self::Coalescing => coalescing::report(document),
            Self::Chain => chain::report(document),
            Self::HypervAnalysis => hyperv_analysis::report(document),
            Self::Adapters => adapters::report(document),
        }
    }

    /// What was published, and whether it holds.
    pub(crate) fn claims(self, document: &Document) -> Vec<Claim> {
        match self {
            Self::PvscsiVsLsi => claims::pvscsi_vs_lsi(document),
            Self::Coalescing => claims::coalescing(document),
            Self::HypervAnalysis => claims::hyperv_analysis(document),
            _ => Vec::new(),
        }
    }
}

/// Progress on an engine, behind the rows of the engines before.
struct Joined<'a> {
    before: &'a Document,
    progress: &'a mut dyn Progress,
}

impl Progress for Joined<'_> {
    fn begin(&mut self, jobs: usize) {
        self.progress.begin(jobs);
    }

    fn job(&mut self, name: &str) {
        self.progress.job(name);
    }

    fn done(&mut self) {
        self.progress.done();
    }

    fn rows(&mut self, rows: &dyn Fn() -> Document) {
        self.progress.rows(&|| self.before.clone().joined(rows()));
    }

    fn end(&mut self) {
        self.progress.end();
    }
}

/// The suite that a document is of.
pub(crate) fn of(document: &Document) -> Option<Suite> {
    document.suite.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests;
