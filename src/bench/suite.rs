//! `paradisk bench --suite NAME`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use benches::axes::Engine;
use benches::journal::{Identity, Journal};
use benches::meter::{self, Rigs};
use benches::result::Document;
use benches::rigs::{HarnessRigs, KvmRigs, RigConfig};
use benches::suite::{Suite, creation_identity, creation_size, run_creation};
use facts::host::host;
use paradisk_disk_formats::escaped;

use super::args::Args;
use super::guest::{guest_memory, no_kvm};
use super::live::Shown;
use super::progress::Bar;
use super::results::write_results;
use super::unfinished::Target;
use super::{signals, unfinished};
use crate::failure::Failure;
use crate::output;

/// Run the suite on every available engine, or on that of `--engine`.
pub(super) fn run(args: &Args, suite: Suite) -> Result<(), Failure> {
    let folder = args.plots.clone().unwrap_or_else(|| PathBuf::from(suite.as_str()));
    // Created first, so that an error comes before the measurement and not after it.
    create_folder(&folder)?;
    let (outcome, journal) = measure(args, suite, &Target::of(args))?;
    finish(args, suite, &folder, &outcome, journal)
}

/// Create a folder for results.
pub(super) fn create_folder(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| Failure::on(folder, "cannot create the folder", error))
}

/// Announce the suite and run it. The caller finishes the journal when the results are written.
pub(super) fn measure(
    args: &Args,
    suite: Suite,
    target: &Target<'_>,
) -> Result<(meter::Outcome, Journal), Failure> {
    if suite == Suite::Creation {
        return creation(args, target);
    }
    let bed = signals::held(|| suite.bed(args.form()))?;
    let plan = suite.plan(bed.subjects.len(), &args.wanted(args.form(), suite));
    let mut notes = bed.notes;
    let (block_size, in_flight) = plan.matrix.largest();
    let memory = guest_memory(in_flight, block_size);
    let config = RigConfig { memory, thresholds: args.thresholds.get() };
    let mut engines = engines(args.engine, config, &mut notes)?;
    let (rows, time) = suite.size(&plan, engines.len());
    tell!("{suite}: {rows} rows, {}", about(time));
    let mut shown = Shown::new(args.serve, &title(suite))?;
    let mut journal = unfinished::journal(target, || {
        let names: Vec<_> = engines.iter().map(|rigs| rigs.engine()).collect();
        let here = Identity::of(&host()).with("suite", &suite).with("engines", &names);
        plan.identify(here.with("thresholds", &args.thresholds.get()), &bed.subjects)
    })?;
    let outcome = suite.run(&plan, &bed.subjects, &mut engines, &host(), &mut shown, &mut journal);
    notes.extend(outcome.notes);
    Ok((meter::Outcome { notes, ..outcome }, journal))
}

/// Measure operations on images. A signal takes effect after the file systems are unmounted.
fn creation(args: &Args, target: &Target<'_>) -> Result<(meter::Outcome, Journal), Failure> {
    if args.serve.is_some() {
        return Err(Failure::Usage("--serve: the suite creation has no results before its end".to_owned()));
    }
    let (rows, time) = creation_size(args.form(), args.runs);
    tell!("creation: {rows} rows, {}", about(time));
    let temporary = std::env::temp_dir();
    let form = args.form();
    let mut journal = unfinished::journal(target, || creation_identity(form, args.runs, &host()))?;
    let outcome = signals::held_until(|stop| {
        run_creation(form, args.runs, &temporary, host(), &mut Bar::new(), &mut journal, stop)
    })?;
    Ok((outcome, journal))
}

/// The name of the suite's results.
pub(super) fn title(suite: Suite) -> String {
    format!("paradisk bench --suite {suite}")
}

/// Write and print the results.
fn finish(
    args: &Args,
    suite: Suite,
    folder: &Path,
    outcome: &meter::Outcome,
    journal: Journal,
) -> Result<(), Failure> {
    let notes: Vec<String> = outcome.notes.iter().cloned().chain(journal.notes()).collect();
    let mut written = write_results(args, &outcome.document, &notes, &title(suite))?;
    unfinished::end(journal)?;
    written.extend(write_plots(folder, suite, &outcome.document)?);
    let text = suite.text(&outcome.document, &notes);
    let done = output::conclude(args.json(), &text, &notes, outcome.failed);
    for path in written {
        tell!("wrote {}", escaped(&path));
    }
    done
}

/// `about 20 minutes`, for announcements.
pub(super) fn about(time: Duration) -> String {
    match time.as_secs() {
        0..=90 => format!("about {} seconds", time.as_secs().max(1)),
        seconds => format!("about {} minutes", seconds.div_ceil(60)),
    }
}

/// The engine of `--engine`; without it both, or only the harness with a note of the reason.
fn engines(
    wanted: Option<Engine>,
    config: RigConfig,
    notes: &mut Vec<String>,
) -> Result<Vec<Box<dyn Rigs>>, Failure> {
    let mut engines: Vec<Box<dyn Rigs>> = Vec::new();
    if wanted != Some(Engine::Harness) {
        match (KvmRigs::new(config), wanted) {
            (Ok(rigs), _) => engines.push(Box::new(rigs)),
            (Err(error), Some(_)) => return Err(no_kvm(&error)),
            (Err(error), None) => {
                notes.push(format!("only engine harness, because KVM is not available: {error}"))
            }
        }
    }
    if wanted != Some(Engine::Kvm) {
        engines.push(Box::new(HarnessRigs(config)));
    }
    Ok(engines)
}

/// Write the suite's plots. Returns their paths.
pub(super) fn write_plots(folder: &Path, suite: Suite, document: &Document) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for (name, svg) in suite.plots(document) {
        let path = folder.join(name);
        output::file(&path, &svg)?;
        written.push(path);
    }
    Ok(written)
}
