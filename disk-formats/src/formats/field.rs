//! An invalid field of an image, and the error of reading one.

use std::io;
use std::path::Path;

use crate::contract::error::OpenError;

/// The fields of [`OpenError::Invalid`] except the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadField {
    pub(crate) field: &'static str,
    pub(crate) value: String,
    pub(crate) expected: String,
}

impl BadField {
    pub(crate) fn new(field: &'static str, value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field, value: value.into(), expected: expected.into() }
    }

    /// The error for the image at `path`.
    pub(crate) fn of(self, path: &Path) -> OpenError {
        OpenError::Invalid {
            path: path.into(),
            field: self.field,
            value: self.value,
            expected: self.expected,
        }
    }
}

/// Why a structure of an image cannot be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The host's error.
    Host(io::Error),
    /// The image is invalid.
    Bad(BadField),
}

impl ReadError {
    /// The error for the image at `path`. `action` is that of the host's error.
    pub(crate) fn of(self, path: &Path, action: &'static str) -> OpenError {
        match self {
            Self::Host(source) => OpenError::Os { path: path.into(), action, source },
            Self::Bad(bad) => bad.of(path),
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<BadField> for ReadError {
    fn from(bad: BadField) -> Self {
        Self::Bad(bad)
    }
}

/// What was read, or the invalid field, for callers that continue with an invalid image.
///
/// # Errors
/// The host's.
pub(crate) fn or_bad<T>(read: Result<T, ReadError>) -> io::Result<Result<T, BadField>> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(ReadError::Bad(bad)) => Ok(Err(bad)),
        Err(ReadError::Host(error)) => Err(error),
    }
}
