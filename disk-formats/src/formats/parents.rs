//! The parent policy of chains: which files may be opened as a parent, and which of the candidates that a child names
//! is its parent.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::error::OpenError;
use crate::formats::field::BadField;

/// Images of a chain at the most, the child included.
pub const MAX_DEPTH: usize = 1024;

/// Which files may be taken for a parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentRules {
    /// Directories, with all below, where parents may be, beside that of the disk itself. An image is not trusted to name any
    /// file of the host.
    pub directories: Vec<PathBuf>,
    /// Take a parent that may have been changed since its child was made: a VHD's time stamp, a VHDX's data write GUID is not
    /// the one that the child has noted.
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

/// A search down a chain.
pub(crate) struct Search {
    allowed: Vec<PathBuf>,
    seen: HashSet<(u64, u64)>,
}

impl Search {
    /// Begin at the image `top`.
    ///
    /// # Errors
    /// [`OpenError::Os`] where a directory cannot be resolved.
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

    /// Try what the child at `path` names, in order: the first file that opens and passes `check` is its parent.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] with what was tried, or the error of the likeliest candidate.
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
                // A candidate of the right name with the wrong content is the most useful error.
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

/// What a child notes of the place of its parent, by their real paths; both exist.
///
/// # Errors
/// The host's; [`io::ErrorKind::InvalidInput`] where `note` cannot hold the path.
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

/// A relative path of Windows.
pub(crate) fn unix_path(windows: &str) -> PathBuf {
    // An absolute path does not become one by being called relative.
    let path = windows.replace('\\', "/");
    PathBuf::from(path.trim_start_matches('/').trim_start_matches("./"))
}

/// The last part of a path of any system.
pub(crate) fn base_name(path: &str) -> Option<&str> {
    path.rsplit(['\\', '/', ':']).next().filter(|name| !name.is_empty() && *name != "." && *name != "..")
}

/// `to` as seen from the folder `from`.
pub(crate) fn relative(from: &Path, to: &Path) -> Option<PathBuf> {
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
