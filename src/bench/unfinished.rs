//! `FILE.partial`: the runs of `--json FILE` until that is written, and `--resume FILE`.

use std::path::{Path, PathBuf};

use benches::journal::{Identity, Journal, JournalError};

use super::args::Args;
use crate::failure::Failure;
use crate::output;

/// The file with the runs until `file` is written.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Begin, or with `--resume` continue, the measurement with `identity`. Without a file to write, nothing is recorded.
pub(super) fn journal(args: &Args, identity: impl FnOnce() -> Identity) -> Result<Journal, Failure> {
    match (&args.resume, args.json()) {
        (Some(file), _) => {
            let path = partial(file);
            if file.exists() && !path.exists() {
                let (file, path) = (file.display(), path.display());
                return Err(Failure::Failed(format!(
                    "{file}: nothing to resume: it is finished, there is no {path}"
                )));
            }
            Journal::resume(&path, &identity()).map_err(failed)
        }
        (None, Some(file)) if !output::json_on_stdout(args.json()) => {
            let path = partial(file);
            if path.exists() {
                eprintln!(
                    "{}: of an interrupted measurement, is replaced (--resume continues it)",
                    path.display()
                );
            }
            Journal::begin(&path, identity()).map_err(failed)
        }
        _ => Ok(Journal::none()),
    }
}

/// Finish the journal, after the results have been written.
pub(super) fn end(journal: Journal) -> Result<(), Failure> {
    journal.finish().map_err(failed)
}

fn failed(error: JournalError) -> Failure {
    Failure::Failed(error.to_string())
}
