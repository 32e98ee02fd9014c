//! Errors of opening a disk (detailed: file and field), of reading the structures of an image, and of I/O requests (small and `Copy`).

use std::ffi::OsStr;
use std::fmt::{self, Display, Write};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The error of opening or creating a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An operating-system call failed on the file.
    #[error("{}: {action}: {source}", escaped(path))]
    Os {
        /// The file.
        path: PathBuf,
        /// The attempted action, for example "cannot open".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file or its content cannot be this kind of disk.
    #[error("{}: {field} is {}, expected {}", escaped(path), escaped(value), escaped(expected))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The field, by its name in the specification.
        field: &'static str,
        /// What was found.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Another process uses the image or device.
    #[error("{}: busy: {}", escaped(path), escaped(holder))]
    Busy {
        /// The file or device.
        path: PathBuf,
        /// Who uses it, as far as is known.
        holder: String,
    },
    /// The parent of a differencing disk is outside of the directories that may contain it
    /// ([`ParentRules`](crate::ParentRules)).
    #[error(
        "{}: its parent {} is outside of {}: allow its directory, or name it",
        escaped(path),
        escaped(parent),
        paths(allowed)
    )]
    ParentNotAllowed {
        /// The child.
        path: PathBuf,
        /// The parent.
        parent: PathBuf,
        /// Directories that may contain parents.
        allowed: Vec<PathBuf>,
    },
    /// No file that may be the parent of a differencing disk is there ([`ParentRules`](crate::ParentRules)).
    #[error("{}: {}", escaped(path), absent(tried, *nameless))]
    ParentMissing {
        /// The child.
        path: PathBuf,
        /// The paths that its parent may have.
        tried: Vec<PathBuf>,
        /// The child has recorded no identity of its parent, which is a raw disk: only the caller can name it
        /// ([`ParentRules::parent`](crate::ParentRules::parent)).
        nameless: bool,
    },
    /// The parent of a differencing disk does not have the state that the child has recorded: it was changed since, or is
    /// another disk. [`ParentRules::any_time`](crate::ParentRules::any_time) accepts it.
    #[error(
        "{}: {field} is {} ({}), expected {}, as noted in the child: it was changed since, or is another disk (accept it with `image rebase`)",
        escaped(path),
        escaped(value),
        escaped(parent),
        escaped(expected)
    )]
    ParentChanged {
        /// The child.
        path: PathBuf,
        /// The parent.
        parent: PathBuf,
        /// The field, by its name in the specification.
        field: &'static str,
        /// What the parent has.
        value: String,
        /// What the child has recorded.
        expected: String,
    },
    /// Name and content of the file do not say which format it has, or say that it is no disk. The caller has to name the
    /// format ([`OpenOptions::format`](crate::OpenOptions::format)).
    #[error("{}: {found}, or name its format: {}", escaped(path), formats.join(" or "))]
    FormatUnclear {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// Names of formats that it may have.
        formats: &'static [&'static str],
    },
    /// An option or a feature that this disk or this host does not support.
    #[error("{}: {}", escaped(path), escaped(reason))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is not supported, and why.
        reason: String,
    },
}

impl OpenError {
    /// For `map_err`: the host's error of an attempted action on the file at `path`.
    pub(crate) fn os<E: Into<io::Error>>(
        path: impl AsRef<Path> + Copy,
        action: &'static str,
    ) -> impl Fn(E) -> Self + Copy {
        move |source| Self::Os { path: path.as_ref().into(), action, source: source.into() }
    }

    pub(crate) fn unsupported(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Self::Unsupported { path: path.as_ref().into(), reason: reason.into() }
    }

    /// Whether the file could not be reached or read, so that nothing is known about its content: it is in use, the host
    /// refused an operation, or the rules do not allow to open it. Any other error is one of the content.
    #[must_use]
    pub fn is_access(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::ParentNotAllowed { .. } => true,
            // Where the content ends too early, the error is not the host's.
            Self::Os { source, .. } => source.raw_os_error().is_some(),
            _ => false,
        }
    }

    /// The same error with the path `to` in place of `from`, for files that are still under a temporary name.
    #[must_use]
    pub fn renamed(mut self, from: &Path, to: &Path) -> Self {
        let (Self::Os { path, .. }
        | Self::Invalid { path, .. }
        | Self::Busy { path, .. }
        | Self::ParentNotAllowed { path, .. }
        | Self::ParentMissing { path, .. }
        | Self::ParentChanged { path, .. }
        | Self::FormatUnclear { path, .. }
        | Self::Unsupported { path, .. }) = &mut self;
        if path == from {
            *path = to.into();
        }
        self
    }
}

fn paths(paths: &[PathBuf]) -> String {
    joined(paths, " and ")
}

fn joined(paths: &[PathBuf], between: &str) -> String {
    let paths: Vec<String> = paths.iter().map(|path| escaped(path).to_string()).collect();
    paths.join(between)
}

fn absent(tried: &[PathBuf], nameless: bool) -> String {
    if nameless {
        return "its parent has no identity (a raw disk, as XenServer uses): name it".to_owned();
    }
    let tried = match tried.is_empty() {
        true => "not named".to_owned(),
        false => format!("missing: {}", joined(tried, ", ")),
    };
    format!("parent is {tried}, expected an existing image: allow its directory, or name it")
}

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
    pub(crate) fn of(self, path: impl AsRef<Path>) -> OpenError {
        let Self { field, value, expected } = self;
        OpenError::Invalid { path: path.as_ref().into(), field, value, expected }
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
            Self::Host(source) => OpenError::os(path, action)(source),
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

/// The error of a request. Small and `Copy`, because each completion contains one.
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
    /// The disk does not support the operation (see [`DiskInfo`](crate::DiskInfo)).
    #[error("operation not supported by this disk")]
    Unsupported,
    /// The host has no space left for the data (ENOSPC, EDQUOT).
    #[error("no space left on the host")]
    NoSpace,
    /// The image's metadata are inconsistent; the text names the field.
    #[error("damaged image: {0}")]
    Damaged(&'static str),
    /// This flush or an earlier flush of a file failed. The host reports a lost write only once, so a later successful
    /// flush would prove nothing. Until the disk is opened again, all flushes and all changes of metadata fail.
    #[error(
        "a flush of {file} failed ({cause}): completed writes may be lost, and nothing is flushed until the disk is opened again"
    )]
    FlushLost {
        /// The path of the file.
        file: &'static str,
        /// The host's error of the first failed flush.
        cause: Errno,
    },
    /// An error of the host.
    #[error("host I/O error: {0}")]
    Os(Errno),
}

// Each completion contains an `IoError`.
const _: () = assert!(size_of::<IoError>() <= 24);

impl IoError {
    /// The corresponding Linux errno (positive).
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
    /// An [`io::Error`] of the matching kind, which wraps the error unless it is an errno of the host.
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

/// The error of pushing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The maximum number of requests is in flight: reap, then push again. The request was not added.
    #[error("the queue is full")]
    Full,
}

/// A path or text, which is displayed in one line: control characters, line separators, marks that change the direction of text, and bytes
/// that are not UTF-8 appear as `\x1b` or `\u{202e}`.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(&'a OsStr);

/// Display a path or text that others have chosen.
pub fn escaped<T: AsRef<OsStr> + ?Sized>(text: &T) -> Escaped<'_> {
    Escaped(text.as_ref())
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.as_encoded_bytes().utf8_chunks() {
            for character in chunk.valid().chars() {
                match u32::from(character) {
                    code if character.is_control() && code < 0x100 => write!(f, "\\x{code:02x}")?,
                    code if is_format(character) => write!(f, "\\u{{{code:x}}}")?,
                    _ => f.write_char(character)?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Line and paragraph separators, marks and overrides of the direction, and tags (Unicode 16, categories Zl, Zp and Cf).
const fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod escaped_tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn nothing_moves_the_cursor_or_ends_the_line() {
        for (text, shown) in [
            (r"C:\disks\Größe 磁盘.vhdx", r"C:\disks\Größe 磁盘.vhdx"),
            ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
            ("a\nerror: b\r\t\x7f\u{9b}2J", r"a\x0aerror: b\x0d\x09\x7f\x9b2J"),
            ("a\u{202e}b\u{2028}c\u{feff}", r"a\u{202e}b\u{2028}c\u{feff}"),
        ] {
            assert_eq!(escaped(text).to_string(), shown);
        }
        assert_eq!(escaped(OsStr::from_bytes(b"a\xff\xc3(\xf0\x9f")).to_string(), r"a\xff\xc3(\xf0\x9f");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_space() {
        assert_eq!(IoError::from(Errno::DQUOT), IoError::NoSpace);
        assert_eq!(IoError::from(Errno::NOSPC), IoError::NoSpace);
        // A file system that became read-only: the disk is not.
        assert_eq!(IoError::from(Errno::ROFS), IoError::Os(Errno::ROFS));
    }

    #[test]
    fn access_is_no_matter_of_content() {
        let os = |source: io::Error| OpenError::Os { path: "a".into(), action: "cannot open", source };
        for errno in [Errno::ACCESS, Errno::IO, Errno::NOENT, Errno::STALE] {
            assert!(os(errno.into()).is_access(), "{errno}");
        }
        assert!(OpenError::Busy { path: "a".into(), holder: "b".into() }.is_access());
        for kind in [io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData] {
            assert!(!os(kind.into()).is_access(), "{kind}");
        }
        let missing = OpenError::ParentMissing { path: "a".into(), tried: vec!["b".into()], nameless: false };
        assert!(!missing.is_access());
        let text = "a: parent is missing: b, expected an existing image: allow its directory, or name it";
        assert_eq!(missing.to_string(), text);
    }
}
