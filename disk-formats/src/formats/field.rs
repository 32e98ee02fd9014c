//! An invalid field of an image.

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
