//! What can go wrong: while a disk is opened (rich, names file and field) and while it does I/O (small and `Copy`).

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why a disk could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An operating-system call failed on the file.
    #[error("{}: {action}: {source}", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// What was attempted, as "cannot open".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file or its content cannot be this kind of disk.
    #[error("{}: {field} is {value}, expected {expected}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The field of the format, in its specification's words.
        field: &'static str,
        /// What was found.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Another process uses the image or device.
    #[error("{}: busy: {holder}", path.display())]
    Busy {
        /// The device.
        path: PathBuf,
        /// Who holds it, as far as is known.
        holder: String,
    },
    /// An option that this disk or this host cannot honour.
    #[error("{}: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What cannot be honoured and why.
        reason: String,
    },
}

impl OpenError {
    /// The same error with the path `to` in place of `from`: for files that do not have their name yet.
    #[must_use]
    pub fn renamed(mut self, from: &Path, to: &Path) -> Self {
        let (Self::Os { path, .. }
        | Self::Invalid { path, .. }
        | Self::Busy { path, .. }
        | Self::Unsupported { path, .. }) = &mut self;
        if path == from {
            *path = to.into();
        }
        self
    }
}

/// Why a request failed. Small and `Copy`: it travels in every completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The range does not lie inside the disk.
    #[error("range outside the disk")]
    OutOfRange,
    /// Offset or length is not whole logical sectors, or the buffers do not add up to the length.
    #[error("offset or length not whole sectors, or buffers of another length")]
    Misaligned,
    /// A write to a read-only disk.
    #[error("disk is read-only")]
    ReadOnly,
    /// The operation is not offered by this disk (see [`DiskInfo`](crate::DiskInfo)).
    #[error("operation not supported by this disk")]
    Unsupported,
    /// The host has no space left for the data (ENOSPC, EDQUOT).
    #[error("no space left on the host")]
    NoSpace,
    /// The image's metadata contradict themselves; the text names the field.
    #[error("damaged image: {0}")]
    Damaged(&'static str),
    /// A flush of a file failed, this one or an earlier one. The host reports a lost write once only, so the success of
    /// a later flush would mean nothing: until the disk is opened again, flushes fail, and so does everything that
    /// changes metadata.
    #[error(
        "a flush of {file} failed ({cause}): completed writes may be lost, and nothing is flushed until the disk is opened again"
    )]
    FlushLost {
        /// The path of the file.
        file: &'static str,
        /// The host's answer to the flush that failed first.
        cause: Errno,
    },
    /// The host's answer, passed on.
    #[error("host I/O error: {0}")]
    Os(Errno),
}

// Part of every completion.
const _: () = assert!(size_of::<IoError>() <= 24);

impl IoError {
    /// The error number of Linux that says the same, above zero.
    #[must_use]
    pub const fn raw_os_error(self) -> i32 {
        let errno = match self {
            Self::OutOfRange | Self::Misaligned => Errno::INVAL,
            Self::ReadOnly => Errno::ROFS,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::NoSpace => Errno::NOSPC,
            Self::Damaged(_) | Self::FlushLost { .. } => Errno::IO,
            Self::Os(errno) => errno,
        };
        errno.raw_os_error()
    }
}

impl From<IoError> for io::Error {
    /// Of the kind that fits; what is not the host's answer stays inside.
    fn from(error: IoError) -> Self {
        match error {
            IoError::Os(errno) => errno.into(),
            other => Self::new(Self::from_raw_os_error(other.raw_os_error()).kind(), other),
        }
    }
}

impl From<Errno> for IoError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            other => Self::Os(other),
        }
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// As many requests are in flight as the queue holds: reap, then push again. Nothing was done.
    #[error("the queue holds as many requests as it can")]
    Full,
}
