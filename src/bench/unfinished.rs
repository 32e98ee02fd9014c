//! `FILE.partial`: the runs of `--json FILE` until that is written, and `--resume FILE`.

use std::path::{Path, PathBuf};

use benches::journal::{Identity, Journal, JournalError};
use paradisk_disk_formats::escaped;

use super::args::Args;
use crate::failure::Failure;
use crate::output;

/// The JSON file that a measurement will write, beside which its runs are kept.
pub(super) struct Target<'a> {
    file: Option<&'a Path>,
    resume: bool,
}

impl<'a> Target<'a> {
    /// The file of `--json` or `--resume`. Nothing is kept of results that go to standard output.
    pub(super) fn of(args: &'a Args) -> Self {
        let resume = args.resume.is_some();
        let file = args.json().as_deref().filter(|_| resume || !output::json_on_stdout(args.json()));
        Self { file, resume }
    }

    /// A file of several. With `resume`, it is continued if it was begun.
    pub(super) fn one_of_many(file: &'a Path, resume: bool) -> Self {
        Self { file: Some(file), resume: resume && begun(file) }
    }
}

/// The file with the runs until `file` is written.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Whether a measurement with this file was begun, and has not ended.
pub(super) fn begun(file: &Path) -> bool {
    partial(file).exists()
}

/// Begin or continue the measurement with `identity`. Without a file to write, nothing is recorded.
pub(super) fn journal(target: &Target<'_>, identity: impl FnOnce() -> Identity) -> Result<Journal, Failure> {
    let Some(file) = target.file else { return Ok(Journal::none()) };
    let path = partial(file);
    let (begun, at) = (begun(file), escaped(&path));
    output::refuse_other_than_json(&path)?;
    if target.resume {
        if file.exists() && !begun {
            let file = escaped(file);
            return Err(Failure::Failed(format!(
                "{file}: nothing to resume: it is finished, there is no {at}"
            )));
        }
        return Journal::resume(&path, &identity()).map_err(failed);
    }
    if begun {
        tell!("{at}: of an interrupted measurement, is replaced (--resume continues it)");
    }
    Journal::begin(&path, identity()).map_err(failed)
}

/// Finish the journal, after the results have been written.
pub(super) fn end(journal: Journal) -> Result<(), Failure> {
    journal.finish().map_err(failed)
}

fn failed(error: JournalError) -> Failure {
    Failure::Failed(error.to_string())
}
