//! `paradisk bench --suite all`: every suite in turn, with results in one folder and one page of all.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use benches::html;
use benches::meter::Outcome;
use benches::result::Document;
use benches::suite::Suite;
use paradisk_disk_formats::escaped;

use super::args::Args;
use super::list::size;
use super::results::command;
use super::suite::{about, create_folder, measure, title, write_plots};
use super::unfinished::{self, Target};
use crate::failure::Failure;
use crate::output;
use crate::tell;

/// The default folder.
const FOLDER: &str = "suites";
/// The page in the folder.
const PAGE: &str = "page.html";

/// Run all suites. A suite that fails does not stop the others. The page is written after each suite, so that it exists
/// if later ones are interrupted. The runs of all suites are kept until the last one has ended: `--resume` checks them and
/// measures what is missing.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    check(args)?;
    let folder = args.resume.clone().or_else(|| args.plots.clone()).unwrap_or_else(|| PathBuf::from(FOLDER));
    let json = |suite: Suite| folder.join(format!("{suite}.json"));
    if args.resume.is_some() && !Suite::ALL.iter().any(|suite| unfinished::begun(&json(*suite))) {
        let folder = escaped(&folder);
        return Err(Failure::Failed(format!(
            "{folder}: nothing to resume: there is no .partial file of a suite"
        )));
    }
    create_folder(&folder)?;
    let page = args.html.clone().unwrap_or_else(|| folder.join(PAGE));
    let sizes = Suite::ALL.iter().map(|suite| size(args, *suite, args.form()));
    let (rows, time) = sizes.fold((0, Duration::ZERO), |(rows, time), more| (rows + more.0, time + more.1));
    tell!("all {} suites: {rows} rows, {}, and the time to make their disks", Suite::ALL.len(), about(time));
    let (mut documents, mut journals, mut failed) = (Vec::new(), Vec::new(), false);
    for suite in Suite::ALL.iter().copied() {
        let start = Instant::now();
        let json = json(suite);
        let target = Target::one_of_many(&json, args.resume.is_some());
        let done = measure(args, suite, &target).and_then(|(mut outcome, journal)| {
            failed |= outcome.failed;
            outcome.notes.extend(journal.notes());
            journals.push(journal);
            let document = write(&folder, &json, suite, &outcome)?;
            let rows = document.results.len() + document.timings.len();
            documents.push((title(suite), document));
            output::file(&page, &html::render(&documents))?;
            Ok(format!("{suite}: {rows} rows in {} s", start.elapsed().as_secs()))
        });
        match done {
            Ok(text) => output::print(&(text + "\n"))?,
            Err(failure) => {
                tell::failure(&failure);
                tell!("{suite}: failed; the others run");
                failed = true;
            }
        }
    }
    output::print(&format!("{}: {} of {} suites\n", escaped(&page), documents.len(), Suite::ALL.len()))?;
    if documents.len() == Suite::ALL.len() {
        journals.into_iter().try_for_each(unfinished::end)?;
    }
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// Refuse options that are for a single document.
fn check(args: &Args) -> Result<(), Failure> {
    let given = [
        ("--json", args.json().is_some() && args.resume.is_none()),
        ("--csv", args.csv.is_some()),
        ("--serve", args.serve.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "{option}: not with --suite all, which writes the results of each suite to a folder (--plots) and one page (--html)"
        ))),
        None if args.resume.is_some() && args.plots.is_some() => {
            Err(Failure::Usage("--plots: --resume names the folder of --suite all".to_owned()))
        }
        None if !args.adapter.is_empty() => {
            Err(Failure::Usage("--adapter: not with --suite all: only vhd-workloads has a choice".to_owned()))
        }
        None => Ok(()),
    }
}

/// Write `NAME.json` (`json`), `NAME.txt` and the plots in `NAME/`. Returns the document.
fn write(folder: &Path, json: &Path, suite: Suite, outcome: &Outcome) -> Result<Document, Failure> {
    let Outcome { document, notes, .. } = outcome;
    let document = Document { command: Some(command()), notes: notes.clone(), ..document.clone() };
    output::json(&Some(json.to_owned()), &document)?;
    output::file(&folder.join(format!("{suite}.txt")), &suite.text(&document, notes))?;
    let plots = folder.join(suite.as_str());
    create_folder(&plots)?;
    write_plots(&plots, suite, &document)?;
    for note in notes {
        tell!("{suite}: {note}");
    }
    Ok(document)
}
