//! Why an operation on an image failed.

use std::path::{Path, PathBuf};

use crate::error::IoError;

/// Why an operation on an image failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Reading, writing or mapping failed.
    #[error("{}: cannot {action} byte {offset}: {source}", path.display())]
    Io {
        /// The image, or the file of it that failed.
        path: PathBuf,
        /// What was attempted, as "read" or "map".
        action: &'static str,
        /// Offset in `path`: of the disk for an image, of the file for a file of it.
        offset: u64,
        /// The cause.
        source: IoError,
    },
    /// A flush failed.
    #[error("{}: cannot flush: {source}", path.display())]
    Flush {
        /// The image.
        path: PathBuf,
        /// The cause.
        source: IoError,
    },
    /// The destination is smaller than the source.
    #[error("{}: holds {capacity} bytes, expected at least the {needed} bytes of the source", path.display())]
    TooSmall {
        /// The destination.
        path: PathBuf,
        /// Its bytes.
        capacity: u64,
        /// Bytes of the source.
        needed: u64,
    },
    /// The caller cancelled it.
    #[error("cancelled")]
    Cancelled,
}

impl ImageError {
    /// The same of a file that will have another name: `to` in place of `from`.
    #[must_use]
    pub fn renamed(mut self, from: &Path, to: &Path) -> Self {
        if let Self::Io { path, .. } | Self::Flush { path, .. } | Self::TooSmall { path, .. } = &mut self
            && path == from
        {
            *path = to.into();
        }
        self
    }

    pub(super) fn io(path: &Path, action: &'static str, offset: u64, source: impl Into<IoError>) -> Self {
        Self::Io { path: path.into(), action, offset, source: source.into() }
    }
}
