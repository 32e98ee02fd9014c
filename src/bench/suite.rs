//! `paradisk bench --suite NAME`.

use std::fs;
use std::path::{Path, PathBuf};

use benches::axes::Engine;
use benches::meter::Rigs;
use benches::result::Document;
use benches::rigs::{HarnessRigs, KvmRigs, RigConfig};
use benches::suite::Suite;
use facts::host::host;

use super::args::Args;
use super::guest::{guest_memory, no_kvm};
use super::live::Shown;
use super::results::write_results;
use super::signals;
use crate::failure::Failure;
use crate::output;

/// Run the suite on every available engine, or on that of `--engine`.
pub(super) fn run(args: &Args, suite: Suite) -> Result<(), Failure> {
    let folder = args.plots.clone().unwrap_or_else(|| PathBuf::from(suite.as_str()));
    // An error here comes before minutes of measurement, not after.
    fs::create_dir_all(&folder).map_err(|error| Failure::on(&folder, "cannot create the folder", error))?;
    let bed = signals::held(|| suite.bed())?;
    let plan = suite.plan(bed.subjects.len(), args.duration, args.runs);
    let mut notes = bed.notes;
    let matrix = &plan.matrix;
    let memory = guest_memory(&matrix.queue_depths, &matrix.workers, &matrix.block_sizes);
    let config = RigConfig { memory, thresholds: args.thresholds.get() };
    let mut engines = engines(args.engine, config, &mut notes)?;
    let name = format!("paradisk bench --suite {suite}");
    let mut shown = Shown::new(args.serve, &name)?;
    let outcome = suite.run(&plan, &bed.subjects, &mut engines, &host(), &mut shown);
    notes.extend(outcome.notes);
    let mut written = write_results(args, &outcome.document, &notes, &name)?;
    written.extend(write_plots(&folder, suite, &outcome.document)?);
    let text = suite.text(&outcome.document, &notes);
    let done = output::conclude(&args.json, &text, &notes, outcome.failed);
    for path in written {
        eprintln!("wrote {}", path.display());
    }
    done
}

/// The engine of `--engine`; else both, or the harness alone with a note that says why.
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
            (Err(error), None) => notes.push(format!("engine harness alone, for there is no KVM: {error}")),
        }
    }
    if wanted != Some(Engine::Kvm) {
        engines.push(Box::new(HarnessRigs(config)));
    }
    Ok(engines)
}

fn write_plots(folder: &Path, suite: Suite, document: &Document) -> Result<Vec<PathBuf>, Failure> {
    let mut written = Vec::new();
    for (name, svg) in suite.plots(document) {
        let path = folder.join(name);
        output::file(&path, &svg)?;
        written.push(path);
    }
    Ok(written)
}
