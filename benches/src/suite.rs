//! Suites: published experiments with their dimensions, disks, tables and plots. One document has the results of all engines.

mod adapters;
mod chain;
mod claim;
mod claims;
mod coalescing;
mod creation;
mod form;
mod hyperv_analysis;
mod published;
mod pvscsi_vs_lsi;
mod report;
mod vhd_workloads;
mod view;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use facts::disk::OpenDisk;
use facts::host::Host;
use facts::names;
use facts::names::Adapter;

pub(crate) use self::claim::{Claim, Observation, Standing};
pub use self::form::Form;
use self::form::{QUICK_DURATION, QUICK_RUNS};
pub(crate) use self::report::Report;
use crate::bed::{Bed, BedError};
use crate::journal::{Identity, Journal};
use crate::meter::{self, Outcome, Plan, Rigs};
use crate::progress::Progress;
use crate::result::{Document, NATIVE};
use crate::table::{abilities, circumstances, legend};

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
        /// Disks of each format under the loads of applications.
        VhdWorkloads = "vhd-workloads",
        /// Creation of images, merge, compaction and conversion: times, not loads. [`run_creation`] runs it.
        Creation = "creation",
    }
}

/// Options of a suite.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Full or quick.
    pub form: Form,
    /// Adapters, for a suite that has no fixed ones.
    pub adapters: &'a [Adapter],
    /// Length of a run; `None`: the suite's own.
    pub duration: Option<Duration>,
    /// Runs of each combination; `None`: the suite's own.
    pub runs: Option<u32>,
}

/// Length of a run.
const DURATION: Duration = Duration::from_millis(300);

/// How long the load runs before each measured run: longer than an epoch of the coalescing policies (200 ms), so that they know the rate.
const LEAD_IN: Duration = Duration::from_millis(220);

impl Suite {
    /// The default adapters, if the user may choose them.
    #[must_use]
    pub const fn adapters(self) -> Option<&'static [Adapter]> {
        match self {
            Self::VhdWorkloads => Some(&[Adapter::Pvscsi]),
            _ => None,
        }
    }

    /// The suite's disks.
    ///
    /// # Errors
    /// [`BedError`] if they cannot be created.
    pub fn bed(self, form: Form) -> Result<Bed, BedError> {
        match self {
            Self::PvscsiVsLsi => Bed::cached(pvscsi_vs_lsi::WORKING_SET),
            Self::Coalescing => coalescing::bed(),
            Self::Chain => chain::bed(),
            Self::HypervAnalysis => hyperv_analysis::bed(),
            Self::Adapters => adapters::bed(),
            Self::VhdWorkloads => vhd_workloads::bed(form),
            Self::Creation => Ok(Bed { subjects: Vec::new(), notes: Vec::new() }),
        }
    }

    /// Number of its disks, if the host has all requirements.
    #[must_use]
    pub const fn disks(self) -> usize {
        match self {
            Self::PvscsiVsLsi | Self::Adapters => 1,
            Self::Coalescing => coalescing::DISKS,
            Self::Chain => chain::DISKS,
            Self::HypervAnalysis => hyperv_analysis::DISKS,
            Self::VhdWorkloads => vhd_workloads::study::DISKS,
            Self::Creation => 0,
        }
    }

    /// The plan for `disks` disks.
    #[must_use]
    pub fn plan(self, disks: usize, wanted: &Wanted<'_>) -> Plan {
        let form = wanted.form;
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
            // Creation has no disks in the matrix.
            Self::VhdWorkloads | Self::Creation => (
                vhd_workloads::matrix(form, disks, wanted.adapters),
                vhd_workloads::COMPARISONS.to_vec(),
                vhd_workloads::RUNS,
            ),
        };
        let (usual_duration, usual_runs) = match (form, self) {
            (Form::Quick, _) => (QUICK_DURATION, QUICK_RUNS),
            (Form::Full, Self::VhdWorkloads) => (vhd_workloads::DURATION, usual_runs),
            (Form::Full, _) => (DURATION, usual_runs),
        };
        let duration = wanted.duration.unwrap_or(usual_duration);
        let shorter = form == Form::Quick || wanted.duration.is_some();
        // Shorter runs are for a shorter suite.
        let lead_in = if shorter { LEAD_IN.min(duration) } else { LEAD_IN };
        // Direct I/O on the host has no cache to warm up.
        let native_lead_in = if self == Self::VhdWorkloads { Duration::ZERO } else { lead_in };
        Plan {
            matrix,
            span: None,
            duration,
            lead_in,
            native_lead_in,
            settle: false,
            runs: wanted.runs.unwrap_or(usual_runs),
            comparisons,
        }
    }

    /// Number of the plan's rows on `engines` engines, and the expected time, including the time to make the disks.
    #[must_use]
    pub fn size(self, plan: &Plan, engines: usize) -> (usize, Duration) {
        let plans = || (0..engines).map(|number| on_engine(plan, number));
        let rows = plans().map(|plan| plan.matrix.combinations().len()).sum();
        (rows, plans().map(|plan| plan.expected()).sum::<Duration>() + self.preparation())
    }

    /// Time to make the disks; 0 if it is short.
    const fn preparation(self) -> Duration {
        match self {
            Self::Chain => chain::PREPARATION,
            Self::VhdWorkloads => vhd_workloads::PREPARATION,
            _ => Duration::ZERO,
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
        journal: &mut Journal,
    ) -> Outcome {
        let document = Document::empty(Some(self.as_str().to_owned()), host.clone());
        let mut all = Outcome { document, notes: Vec::new(), failed: false };
        for (number, rigs) in engines.iter_mut().enumerate() {
            let engine = rigs.engine();
            let plan = on_engine(plan, number);
            let progress = &mut Joined { before: &all.document, progress: &mut *progress };
            let mut outcome = meter::run(&plan, subjects, rigs.as_mut(), host.clone(), progress, journal);
            // The first engine's rows without an adapter are already there. Those of this engine only served as halves of pairs.
            outcome.document.results.retain(|row| number == 0 || row.adapter != NATIVE);
            all.document = all.document.joined(outcome.document);
            all.notes.extend(outcome.notes.into_iter().map(|note| format!("{engine}: {note}")));
            all.failed |= outcome.failed;
        }
        if self == Self::VhdWorkloads {
            vhd_workloads::conclude(&mut all.document);
        }
        all
    }

    /// Tables and findings as text, with notes below.
    #[must_use]
    pub fn text(self, document: &Document, notes: &[String]) -> String {
        let report = self.report(document);
        let mut text = format!("{}\n{}\n", abilities(document), circumstances(document));
        for grid in &report.grids {
            text += &format!("\n{}\n\n{}", grid.title, grid.text());
        }
        // The tables of coalescing have their own legend.
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
            Self::VhdWorkloads => vhd_workloads::report(document),
            Self::Creation => creation::report(document),
        }
    }

    /// Published claims and claims of this project, with their standing.
    pub(crate) fn claims(self, document: &Document) -> Vec<Claim> {
        match self {
            Self::PvscsiVsLsi => claims::pvscsi_vs_lsi(document),
            Self::Coalescing => claims::coalescing(document),
            Self::Chain => claims::chain(document),
            Self::HypervAnalysis => claims::hyperv_analysis(document),
            Self::Adapters => Vec::new(),
            Self::VhdWorkloads => claims::vhd_workloads(document),
            Self::Creation => claims::creation(document),
        }
    }

    /// Its measurements without claims.
    pub(crate) fn observations(self, document: &Document) -> Vec<Observation> {
        if self == Self::Adapters { claims::adapters(document) } else { Vec::new() }
    }
}

/// The plan for an engine. Engines after the first repeat rows without an adapter only if they have pairs.
fn on_engine(plan: &Plan, number: usize) -> Plan {
    let mut plan = plan.clone();
    if number > 0 {
        plan.matrix = plan.matrix.of_guests();
    }
    plan
}

/// Progress on an engine, after the rows of earlier engines.
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

/// Rows of the suite `creation`, and their time.
#[must_use]
pub fn creation_size(form: Form, runs: Option<u32>) -> (usize, Duration) {
    (creation::plan(form, runs).count(), creation::expected(form, runs))
}

/// The operations of the suite `creation`.
#[must_use]
pub fn creation_identity(form: Form, runs: Option<u32>, host: &Host) -> Identity {
    creation::plan(form, runs).identify(Identity::of(host))
}

/// Run the operations of the suite `creation` that the journal does not have, in a folder. The caller must block signals, because file
/// systems are mounted during the run. With `stop` it ends after the current operation.
///
/// # Errors
/// [`BedError`] if the folder cannot be used.
pub fn run_creation(
    form: Form,
    runs: Option<u32>,
    folder: &Path,
    host: Host,
    progress: &mut dyn Progress,
    journal: &mut Journal,
    stop: &AtomicBool,
) -> Result<Outcome, BedError> {
    let plan = creation::plan(form, runs);
    let mut outcome = crate::creation::run(&plan, folder, host, progress, journal, stop)?;
    outcome.document.suite = Some(Suite::Creation.as_str().to_owned());
    Ok(outcome)
}

/// The suite of a document.
pub(crate) fn of(document: &Document) -> Option<Suite> {
    document.suite.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests;
