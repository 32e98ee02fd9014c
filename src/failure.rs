//! How a subcommand fails: the error text and the exit status.

use std::fmt;

use paradisk_disk_formats::{OpenError, escaped};

/// How a command calls the options that messages about opening a disk name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The format, before its name.
    pub(crate) format: &'static str,
    /// What allows another place for parents.
    pub(crate) place: &'static str,
    /// What names the parent; `None`: the command has no option for it.
    pub(crate) parent: Option<&'static str>,
    /// What accepts a parent that was changed.
    pub(crate) any_time: Option<&'static str>,
}

impl Options {
    /// Those of most tools for images.
    pub(crate) const IMAGE: Self = Self {
        format: "--format ",
        place: "--parent-dir DIR",
        parent: Some("--parent-file FILE"),
        any_time: Some("--any-parent-time"),
    };
    /// The keys of a disk.
    pub(crate) const DISK: Self =
        Self { format: "format=", place: "parent-dir=DIR", parent: Some("parent=FILE"), any_time: None };

    /// The error of opening a disk, and the options that help.
    pub(crate) fn text(&self, error: &OpenError) -> String {
        let options = |options: &[Option<&str>]| {
            let known: Vec<&str> = options.iter().copied().flatten().collect();
            if known.is_empty() { error.to_string() } else { format!("{error} ({})", known.join(", ")) }
        };
        match error {
            OpenError::FormatUnclear { path, found, formats } => {
                let formats: Vec<String> =
                    formats.iter().map(|format| format!("{}{format}", self.format)).collect();
                format!("{}: {found}, or name its format: {}", escaped(path), formats.join(" or "))
            }
            OpenError::ParentMissing { nameless: true, .. } => options(&[self.parent]),
            OpenError::ParentMissing { .. } | OpenError::ParentNotAllowed { .. } => {
                options(&[Some(self.place), self.parent])
            }
            OpenError::ParentChanged { .. } => options(&[self.any_time]),
            _ => error.to_string(),
        }
    }
}

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

    /// A disk that could not be opened, by a command with these options.
    pub(crate) fn opening(error: &OpenError, options: &Options) -> Self {
        Self::Failed(options.text(error))
    }
}
