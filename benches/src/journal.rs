//! The runs of a running measurement, in a file, so that an interrupted measurement can be continued.
//!
//! The file has one JSON value in each line: first the identity of the measurement, then each run when it has ended. Each line is written
//! by one call. So a killed process leaves complete lines, and at most one incomplete line, which is dropped. The file has only measured
//! values; everything else is computed from them again.

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
/// Maximum number of bytes of a file: a hundred times that of the longest suite.
const MOST_BYTES: u64 = 1 << 30;

/// Why a measurement cannot be continued, or its runs cannot be recorded.
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
    /// The file is not of an interrupted measurement.
    #[error("{}: not an unfinished measurement: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file is of another measurement, or of another machine.
    #[error("{}: another measurement: {differences}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The differences.
        differences: String,
    },
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    unfinished: u32,
    measurement: Identity,
}

/// A run or operation that has ended.
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

/// Records runs in a file, or does nothing.
#[derive(Debug, Default)]
pub struct Journal {
    kept: Vec<Record>,
    file: Option<(PathBuf, File)>,
    /// Why runs are no longer recorded.
    failure: Option<String>,
}

impl Journal {
    /// A journal without a file.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Begin a measurement. An existing file is replaced.
    ///
    /// # Errors
    /// [`JournalError::Os`].
    pub fn begin(path: &Path, measurement: Identity) -> Result<Self, JournalError> {
        let os = |source| JournalError::Os { path: path.to_owned(), action: "cannot write", source };
        let mut file = File::create(path).map_err(os)?;
        write_line(&mut file, &Head { unfinished: VERSION, measurement }).map_err(os)?;
        Ok(Self { file: Some((path.to_owned(), file)), ..Self::default() })
    }

    /// Continue the measurement of a file, if it is this one.
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
        // After the last line end is the line that the process was writing when it was killed.
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

    /// The times of an operation of the suite `creation` before this process began. A row without times is tried again.
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

    /// Record a run or operation. If that fails, the measurement continues without a journal.
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

    /// Remove the file, after the results have been written.
    ///
    /// # Errors
    /// [`JournalError::Os`].
    pub fn finish(self) -> Result<(), JournalError> {
        let Some((path, _)) = self.file else { return Ok(()) };
        fs::remove_file(&path).map_err(|source| JournalError::Os { path, action: "cannot remove", source })
    }
}

impl Record {
    /// Whether all numbers are possible measurements.
    fn is_sane(&self) -> bool {
        match self {
            Self::Run(run) => run.is_sane(),
            Self::Time { seconds, .. } => seconds.is_finite() && *seconds >= 0.0,
        }
    }
}

/// Write one line, in one call.
fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

#[cfg(test)]
mod tests;
