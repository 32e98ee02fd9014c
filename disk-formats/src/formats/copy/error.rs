//! Errors of tools.

use std::path::{Path, PathBuf};

use crate::contract::error::IoError;
use crate::contract::escaped::escaped;

/// The error of an operation on an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Reading, writing or mapping failed.
    #[error("{}: cannot {action} byte {offset}: {source}", escaped(path))]
    Io {
        /// The image, or the file that failed.
        path: PathBuf,
        /// The attempted action, for example "read" or "map".
        action: &'static str,
        /// Byte offset: of the disk if `path` is the image, else of the file.
        offset: u64,
        /// The cause.
        source: IoError,
    },
    /// A flush failed.
    #[error("{}: cannot flush: {source}", escaped(path))]
    Flush {
        /// The image.
        path: PathBuf,
        /// The cause.
        source: IoError,
    },
    /// The destination is smaller than the source.
    #[error("{}: holds {capacity} bytes, expected at least the {needed} bytes of the source", escaped(path))]
    TooSmall {
        /// The destination.
        path: PathBuf,
        /// Capacity of the destination in bytes.
        capacity: u64,
        /// Capacity of the source in bytes.
        needed: u64,
    },
    /// The caller cancelled the operation.
    #[error("cancelled")]
    Cancelled,
}

impl ImageError {
    /// The same error with the path `to` in place of `from`, for files that are still under a temporary name.
    #[must_use]
    pub fn renamed(mut self, from: &Path, to: &Path) -> Self {
        if let Self::Io { path, .. } | Self::Flush { path, .. } | Self::TooSmall { path, .. } = &mut self
            && path == from
        {
            *path = to.into();
        }
        self
    }

    pub(crate) fn io(path: &Path, action: &'static str, offset: u64, source: impl Into<IoError>) -> Self {
        Self::Io { path: path.into(), action, offset, source: source.into() }
    }
}
