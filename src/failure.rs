//! How a subcommand fails: the error text and the exit status.

use std::fmt;
use std::process::ExitCode;

use paradisk_disk_formats::{OpenError, escaped};

/// Why a subcommand failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Wrong arguments: the text says what is wrong and what is allowed. Exit status 2.
    Usage(String),
    /// An operation failed: the text says what failed on which file. Exit status 1.
    Failed(String),
    /// As [`Failed`](Self::Failed), and the output has reported it already.
    Reported,
    /// An end with an exit status of its own: of a machine, or of a comparison.
    Ended {
        /// The exit status.
        status: u8,
        /// How it ended.
        text: String,
    },
}

impl Failure {
    /// An operation on a file failed.
    pub(crate) fn on(path: &std::path::Path, what: &str, error: impl fmt::Display) -> Self {
        Self::Failed(format!("{}: {what}: {error}", escaped(path)))
    }

    /// A disk that could not be opened. `option` is what names its format, as `--format ` or `format=`.
    pub(crate) fn opening(error: &OpenError, option: &str) -> Self {
        let OpenError::FormatUnclear { path, found, formats } = error else {
            return Self::Failed(error.to_string());
        };
        let named: Vec<String> = formats.iter().map(|format| format!("{option}{format}")).collect();
        Self::Failed(format!("{}: {found}, or name its format: {}", escaped(path), named.join(" or ")))
    }

    /// Print the message; the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(text) => {
                tell!("error: {text}\n\nFor more information, try '--help'.");
                ExitCode::from(2)
            }
            Self::Failed(text) => {
                tell!("error: {text}");
                ExitCode::from(1)
            }
            Self::Reported => ExitCode::from(1),
            Self::Ended { status, text } => {
                tell!("{text}");
                ExitCode::from(*status)
            }
        }
    }
}
