//! Why temporary disks could not be created.

use std::io;
use std::path::PathBuf;

use paradisk_disk_formats::OpenError;

/// Why the disks could not be created.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
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
    /// A disk could not be opened.
    #[error(transparent)]
    Disk(#[from] OpenError),
    /// A disk could not be filled with data.
    #[error("{disk}: cannot be filled with data: {source}")]
    Fill {
        /// The disk.
        disk: String,
        /// The cause.
        source: io::Error,
    },
    /// A disk could not be read through.
    #[error("{disk}: cannot be read: {source}")]
    Read {
        /// The disk.
        disk: String,
        /// The cause.
        source: io::Error,
    },
}
