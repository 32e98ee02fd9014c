//! The rules for locating parents: which files may be opened as a parent, and which candidate of a child is its parent.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::error::OpenError;
use crate::formats::field::BadField;

/// Maximum number of images of a chain, including the child.
pub const MAX_DEPTH: usize = 1024;

/// Rules for locating parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentRules {
    /// Directories, including subdirectories, that may contain parents, in addition to the disk's own directory. An
    /// image is untrusted: it must not be able to name any file of the host.
    pub directories: Vec<PathBuf>,
    /// Accept a parent that may have changed since its child was created: the VHD time stamp or the VHDX data write
    /// GUID differs from the one that the child has recorded.
    pub any_time: bool,
}

/// The identity of a file, independent of its path: device and inode.
///
/// # Errors
/// [`OpenError::Os`].
pub(crate) fn identity(path: &Path, file: &File) -> Result<(u64, u64), OpenError> {
    let metadata = file.metadata().map_err(|source| OpenError::Os {
        path: path.into(),
        action: "cannot read its attributes",
        source,
    })?;
    Ok((metadata.dev(), metadata.ino()))
}

/// A search for the parents of a chain.
pub(crate) struct Search {
    allowed: Vec<PathBuf>,
    seen: HashSet<(u64, u64)>,
}

impl Search {
    /// Start at the image `top`.
    ///
    /// # Errors
    /// [`OpenError::Os`] if a directory cannot be resolved.
    pub(crate) fn new(top: &Path, file: &File, rules: &ParentRules) -> Result<Self, OpenError> {
        let real = |path: &Path| {
            path.canonicalize().map_err(|source| OpenError::Os {
                path: path.into(),
                action: "cannot resolve the directory",
                source,
            })
        };
        let own = top.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let allowed = std::iter::once(own).chain(rules.directories.iter().map(PathBuf::as_path)).map(real);
        Ok(Self { allowed: allowed.collect::<Result<_, _>>()?, seen: HashSet::from([identity(top, file)?]) })
    }

    /// Try the candidates of the child at `path` in order. The first file that opens and passes `check` is its parent.
    ///
    /// # Errors
    /// The error of the last candidate that opened and failed `check`; else that of the first candidate that was refused or did not open.
    /// Without such a candidate, [`OpenError::Invalid`] lists the candidates as missing.
    pub(crate) fn find<I>(
        &mut self,
        path: &Path,
        candidates: Vec<PathBuf>,
        open: impl Fn(&Path) -> Result<I, OpenError>,
        check: impl Fn(&I) -> Result<(), BadField>,
    ) -> Result<I, OpenError> {
        let mut refused: Option<OpenError> = None;
        let mut tried = Vec::new();
        for candidate in candidates {
            tried.push(candidate.display().to_string());
            let Ok(real) = candidate.canonicalize() else { continue };
            let invalid = |value: String, expected: &str| BadField::new("parent", value, expected).of(path);
            if !self.allowed.iter().any(|folder| real.starts_with(folder)) {
                let folders: Vec<String> =
                    self.allowed.iter().map(|folder| folder.display().to_string()).collect();
                let expected =
                    format!("a file below {} (allow its directory with --parent-dir)", folders.join(" or "));
                refused.get_or_insert(invalid(real.display().to_string(), &expected));
                continue;
            }
            let stat = match std::fs::metadata(&real) {
                Ok(stat) if stat.is_file() => stat,
                _ => continue,
            };
            let identity = (stat.dev(), stat.ino());
            if self.seen.contains(&identity) {
                let expected = "an image that is not in the chain already";
                refused.get_or_insert(invalid(real.display().to_string(), expected));
                continue;
            }
            let image = match open(&real) {
                Ok(image) => image,
                Err(error) => {
                    refused.get_or_insert(error);
                    continue;
                }
            };
            if let Err(bad) = check(&image) {
                // A candidate that opens but fails the check gives the most useful error.
                refused = Some(bad.of(path));
                continue;
            }
            self.seen.insert(identity);
            return Ok(image);
        }
        Err(refused.unwrap_or_else(|| {
            let tried = match tried.is_empty() {
                true => "not named".to_owned(),
                false => format!("missing: {}", tried.join(", ")),
            };
            BadField::new("parent", tried, "an existing image (name it with `image rebase`)").of(path)
        }))
    }
}

/// Build what a child records about its parent's path, from the real paths. Both files exist.
///
/// # Errors
/// The host's; [`io::ErrorKind::InvalidInput`] if `note` cannot represent the path.
pub(crate) fn locate<T>(
    child: &Path,
    parent: &Path,
    note: impl FnOnce(&Path, &Path) -> Option<T>,
) -> io::Result<T> {
    let (child, parent) = (child.canonicalize()?, parent.canonicalize()?);
    note(&child, &parent).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} has characters that a parent locator cannot hold", parent.display()),
        )
    })
}

/// Convert a relative Windows path.
pub(crate) fn unix_path(windows: &str) -> PathBuf {
    // Strip leading slashes: an absolute path in a relative locator must stay relative.
    let path = windows.replace('\\', "/");
    PathBuf::from(path.trim_start_matches('/').trim_start_matches("./"))
}

/// The file name of a Windows or Unix path.
pub(crate) fn base_name(path: &str) -> Option<&str> {
    path.rsplit(['\\', '/', ':']).next().filter(|name| !name.is_empty() && *name != "." && *name != "..")
}

/// The relative Windows path of `parent` from the directory of the image `child`. Both paths are absolute and resolved.
/// `None` if the path cannot be encoded.
pub(crate) fn windows_path(child: &Path, parent: &Path) -> Option<String> {
    let relative = relative(child.parent()?, parent)?;
    let relative = relative.to_str().filter(|path| !path.contains('\\'))?.replace('/', "\\");
    Some(if relative.starts_with("..") { relative } else { format!(".\\{relative}") })
}

/// The relative path of `to` from the directory `from`.
fn relative(from: &Path, to: &Path) -> Option<PathBuf> {
    if !from.is_absolute() || !to.is_absolute() {
        return None;
    }
    let (mut from, mut to) = (from.components().peekable(), to.components().peekable());
    while from.peek().is_some() && from.peek() == to.peek() {
        from.next();
        to.next();
    }
    Some(from.map(|_| Component::ParentDir).chain(to).collect())
}
