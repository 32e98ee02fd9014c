//! Paths that lead into disks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// Where in the disk around it an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is all of the content.
    Whole,
    /// It is in a partition: its number, as it was written.
    Partition(String),
}

/// A path that leads into a disk.
#[derive(Debug)]
pub(super) struct Nesting {
    pub(super) outer: PathBuf,
    /// From the outermost on, with the path that leads there.
    pub(super) steps: Vec<(Step, PathBuf)>,
}

/// Whether a path leads into a disk: it ends with `//`, or with `//` and digits, behind what is no directory.
#[must_use]
pub fn is_nested(path: &Path) -> bool {
    split(path).is_some()
}

/// The file or device that a path leads to or into.
#[must_use]
pub fn outermost(path: &Path) -> PathBuf {
    split(path).map_or_else(|| path.into(), |nesting| nesting.outer)
}

/// Refuse a path that leads into a disk; `what` cannot be done there.
///
/// # Errors
/// [`OpenError::Unsupported`].
pub fn refuse_nested(path: &Path, what: &str) -> Result<(), OpenError> {
    match is_nested(path) {
        true => Err(OpenError::Unsupported {
            path: path.into(),
            reason: format!("it lies inside another disk: {what} (convert it to a file of its own first)"),
        }),
        false => Ok(()),
    }
}

/// The last step of a path, and what it begins from.
fn last_step(path: &[u8]) -> Option<(&[u8], Step)> {
    let digits = path.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, number) = path.split_at_checked(path.len() - digits)?;
    let outer = rest.strip_suffix(b"//").filter(|outer| !outer.is_empty())?;
    if Path::new(OsStr::from_bytes(outer)).is_dir() {
        return None;
    }
    let step = match number {
        [] => Step::Whole,
        number => Step::Partition(String::from_utf8_lossy(number).into_owned()),
    };
    Some((outer, step))
}

/// Where a path leads that leads into a disk.
pub(super) fn split(path: &Path) -> Option<Nesting> {
    let mut rest = path.as_os_str().as_bytes();
    let mut steps = Vec::new();
    while let Some((outer, step)) = last_step(rest) {
        steps.push((step, PathBuf::from(OsStr::from_bytes(rest))));
        rest = outer;
    }
    steps.reverse();
    (!steps.is_empty()).then(|| Nesting { outer: PathBuf::from(OsStr::from_bytes(rest)), steps })
}
