//! The runs of a measurement that is under way, in a file, so that a measurement that was interrupted can go on.
//!
//! The file has one JSON value a line: first what is measured and where, then each run when it has ended. Each line is written by
//! one call, so a process that is killed leaves whole lines, or at most one without an end, which is dropped. Runs are kept as they were
//! measured, and everything else is computed from them again.

mod identity;
mod run;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::identity::Identity;
pub(crate) use self::run::Run;
use crate::axes::Engine;

/// Version of the file.
const VERSION: u32 = 1;
/// Bytes of a file at the most: the longest suite has a hundredth of it.
const MOST_BYTES: u64 = 1 << 30;

/// Why a measurement cannot go on, or its runs cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file operation failed.
    #[error("{}: {action}: {source}", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file is none of an interrupted measurement.
    #[error("{}: not an unfinished measurement: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It is another measurement, or of another machine.
    #[error("{}: another measurement: {differences}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        differences: String,
    },
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    unfinished: u32,
    measurement: Identity,
}

/// What has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// A run of a row.
    Run(Run),
    /// An operation of the suite `creation`.
    Time {
        /// The file system.
        place: String,
        /// [`Timing::label`](crate::result::Timing::label).
        operation: String,
        /// How long it took.
        seconds: f64,
    },
}

/// Keeps runs in a file, or nowhere.
#[derive(Debug, Default)]
pub struct Journal {
    kept: Vec<Record>,
    file: Option<(PathBuf, File)>,
    /// Why runs are not kept any more.
    failure: Option<String>,
}

impl Journal {
    /// Keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Begin a measurement. A file that is there is replaced.
    ///
    /// # Errors
    /// [`JournalError::Os`].
    pub fn begin(path: &Path, measurement: Identity) -> Result<Self, JournalError> {
        let os = |source| JournalError::Os { path: path.to_owned(), action: "cannot write", source };
        let mut file = File::create(path).map_err(os)?;
        write_line(&mut file, &Head { unfinished: VERSION, measurement }).map_err(os)?;
        Ok(Self { file: Some((path.to_owned(), file)), ..Self::default() })
    }

    /// Go on with the measurement of a file, if it is this one.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn resume(path: &Path, measurement: &Identity) -> Result<Self, JournalError> {
        let os = |action| move |source| JournalError::Os { path: path.to_owned(), action, source };
        let damaged =
            |reason: &str| JournalError::Damaged { path: path.to_owned(), reason: reason.to_owned() };
        let length = fs::metadata(path).map_err(os("cannot go on"))?.len();
        if length > MOST_BYTES {
            return Err(damaged("it is too large"));
        }
        let bytes = fs::read(path).map_err(os("cannot read"))?;
        // After the last end of a line, there is what the process was killed in.
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| damaged("it is no text"))?;
        let mut lines = text.lines();
        let head: Head = serde_json::from_str(lines.next().unwrap_or_default())
            .map_err(|_| damaged("its first line does not tell what is measured"))?;
        if head.unfinished != VERSION {
            return Err(damaged(&format!("version {}, expected {VERSION}", head.unfinished)));
        }
        if let Some(differences) = head.measurement.differences(measurement) {
            return Err(JournalError::Other { path: path.to_owned(), differences });
        }
        let mut kept = Vec::new();
        for (number, line) in lines.enumerate() {
            let record = serde_json::from_str(line).ok().filter(Record::is_sane);
            kept.push(record.ok_or_else(|| damaged(&format!("line {}", number + 2)))?);
        }
        let file = File::options().append(true).open(path).map_err(os("cannot write"))?;
        file.set_len(end as u64).map_err(os("cannot write"))?;
        Ok(Self { kept, file: Some((path.to_owned(), file)), failure: None })
    }

    /// The runs on an engine before this process began, in the order in which they ended.
    pub(crate) fn runs(&self, engine: Engine) -> impl Iterator<Item = &Run> {
        self.kept.iter().filter_map(move |record| match record {
            Record::Run(run) if run.engine == engine.as_str() => Some(run),
            _ => None,
        })
    }

    /// The times of an operation of the suite `creation` among them. A row that had none is tried again.
    pub(crate) fn times(&self, of_place: &str, of: &str) -> Vec<f64> {
        let time = |record: &Record| match record {
            Record::Time { place, operation, seconds }
                if (place.as_str(), operation.as_str()) == (of_place, of) =>
            {
                Some(*seconds)
            }
            _ => None,
        };
        self.kept.iter().filter_map(time).collect()
    }

    /// Keep what has ended. If that fails, the measurement goes on without.
    pub(crate) fn add(&mut self, record: &Record) {
        let Some((path, file)) = &mut self.file else { return };
        if let Err(error) = write_line(file, record) {
            self.failure = Some(format!("{}: cannot write: {error}: it cannot be resumed", path.display()));
            self.file = None;
        }
    }

    /// Notes for the reader of the results.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let resumed = (!self.kept.is_empty()).then(|| {
            format!(
                "resumed: {} runs were measured before an interruption; those of the round it fell into are pairs across it",
                self.kept.len()
            )
        });
        resumed.into_iter().chain(self.failure.clone()).collect()
    }

    /// The results are written: the file is removed.
    ///
    /// # Errors
    /// [`JournalError::Os`].
    pub fn finish(self) -> Result<(), JournalError> {
        let Some((path, _)) = self.file else { return Ok(()) };
        fs::remove_file(&path).map_err(|source| JournalError::Os { path, action: "cannot remove", source })
    }
}

impl Record {
    /// Whether no number is one that was never measured.
    fn is_sane(&self) -> bool {
        match self {
            Self::Run(run) => run.is_sane(),
            Self::Time { seconds, .. } => seconds.is_finite() && *seconds >= 0.0,
        }
    }
}

/// One value, in one call.
fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

#[cfg(test)]
mod tests;
