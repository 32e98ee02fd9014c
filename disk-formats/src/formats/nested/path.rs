//! Paths of nested images.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::contract::error::OpenError;

/// Location of an image in the outer disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The whole content.
    Whole,
    /// A partition: its number, as written.
    Partition(String),
}

/// A parsed path of a nested image.
#[derive(Debug)]
pub(super) struct Nesting {
    pub(super) outer: PathBuf,
    /// The steps from the outermost disk on, each with the path up to it.
    pub(super) steps: Vec<(Step, PathBuf)>,
}

/// Whether the path is that of a nested image: it ends with `//`, or with `//` and digits, and the part before is not a
/// directory.
#[must_use]
pub fn is_nested(path: &Path) -> bool {
    split(path).is_some()
}

/// The file or device that contains the image, or the path itself if it is not nested.
#[must_use]
pub fn outermost(path: &Path) -> PathBuf {
    split(path).map_or_else(|| path.into(), |nesting| nesting.outer)
}

/// Refuse a nested path; `what` names the reason, for the message.
///
/// # Errors
/// [`OpenError::Unsupported`].
pub fn refuse_nested(path: &Path, what: &str) -> Result<(), OpenError> {
    match is_nested(path) {
        true => Err(OpenError::unsupported(
            path,
            format!("it lies inside another disk: {what} (convert it to a file of its own first)"),
        )),
        false => Ok(()),
    }
}

/// Split off the last step of a path; `None` if there is none.
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

/// Parse a path; `None` if it is not nested.
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
