//! The rules for locating parents: which files may be opened as a parent, and which candidate of a child is its parent.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::contract::error::{BadField, OpenError, escaped};

/// Maximum number of images of a chain, including the child.
pub const MAX_DEPTH: usize = 1024;

/// Maximum number of directory entries that are looked at for one parent.
const MOST_ENTRIES: usize = 100_000;

/// Rules for locating parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParentRules {
    /// The parent of the disk itself, wherever it lies and whatever paths the child has recorded. It must have the
    /// identity that the child has recorded. Its own parents are located as if it were opened: its directory may
    /// contain them, too.
    pub parent: Option<PathBuf>,
    /// Directories, including subdirectories, that may contain parents, in addition to the disk's own directory. An
    /// image is untrusted: it must not be able to name any file of the host.
    pub directories: Vec<PathBuf>,
    /// Accept a parent that may have changed since its child was created: the VHD time stamp or the VHDX data write
    /// GUID differs from the one that the child has recorded.
    pub any_time: bool,
}

impl ParentRules {
    /// The rules for opening an image below `child` by itself, as if it were opened through `child`: its own parent is not
    /// the one that the caller names, and the directory of `child` may contain it.
    #[must_use]
    pub fn below(&self, child: &Path) -> Self {
        let mut directories = self.directories.clone();
        directories.push(folder_of(child).into());
        Self { parent: None, directories, ..self.clone() }
    }
}

/// The identity of a file, independent of its path: device and inode.
///
/// # Errors
/// [`OpenError::Os`].
pub(crate) fn identity(path: &Path, file: &File) -> Result<(u64, u64), OpenError> {
    let metadata = file.metadata().map_err(OpenError::os(path, "cannot read its attributes"))?;
    Ok(of_stat(&metadata))
}

/// As [`identity`].
pub(crate) fn of_stat(stat: &Metadata) -> (u64, u64) {
    (stat.dev(), stat.ino())
}

/// A search for the parents of a chain.
pub(crate) struct Search {
    /// The parent that the caller names; taken by the first search.
    named: Option<PathBuf>,
    allowed: Vec<PathBuf>,
    seen: HashSet<(u64, u64)>,
}

impl Search {
    /// Start at the image `top`.
    ///
    /// # Errors
    /// [`OpenError::Os`] if a directory cannot be resolved.
    pub(crate) fn new(top: &Path, file: &File, rules: &ParentRules) -> Result<Self, OpenError> {
        let real =
            |path: &Path| path.canonicalize().map_err(OpenError::os(path, "cannot resolve the directory"));
        let own = std::iter::once(top).chain(rules.parent.as_deref()).map(folder_of);
        let allowed = own.chain(rules.directories.iter().map(PathBuf::as_path)).map(real);
        Ok(Self {
            named: rules.parent.clone(),
            allowed: allowed.collect::<Result<_, _>>()?,
            seen: HashSet::from([identity(top, file)?]),
        })
    }

    /// The parent that the caller names for the top image; `None` in every later call.
    pub(crate) fn take_named(&mut self) -> Option<PathBuf> {
        self.named.take()
    }

    /// Open the parent that the caller names for the child at `path`.
    ///
    /// # Errors
    /// Those of `open` and `check`; [`OpenError::Invalid`] if it is in the chain already.
    pub(crate) fn open_named<I>(
        &mut self,
        path: &Path,
        parent: &Path,
        open: impl Fn(&Path) -> Result<I, OpenError>,
        check: impl Fn(&I) -> Result<(), OpenError>,
    ) -> Result<I, OpenError> {
        let os = OpenError::os(parent, "cannot open the parent");
        // Not opened: `open` knows which kinds of files can be.
        if !self.seen.insert(of_stat(&std::fs::metadata(parent).map_err(os)?)) {
            return Err(repeated(path, parent));
        }
        let image = open(parent)?;
        check(&image)?;
        Ok(image)
    }

    /// Try the candidates of the child at `path` in order, then files of the same names in the allowed directories. The first
    /// file that opens and passes `check` is its parent.
    ///
    /// # Errors
    /// That of the first candidate that could not be accessed ([`OpenError::is_access`]), for it may be the parent; else that of
    /// the last one that opened and failed `check`; else that of the first one that was refused
    /// ([`OpenError::ParentNotAllowed`]) or not opened; else that of the first path that could not be resolved; else
    /// [`OpenError::ParentMissing`].
    pub(crate) fn find<I>(
        &mut self,
        path: &Path,
        candidates: Vec<PathBuf>,
        open: impl Fn(&Path) -> Result<I, OpenError>,
        check: impl Fn(&I) -> Result<(), OpenError>,
    ) -> Result<I, OpenError> {
        let Self { allowed, seen, .. } = self;
        let (mut unread, mut unlike, mut refused, mut unreached) = (None, None, None, None);
        let tried = candidates.clone();
        let names = candidates.iter().filter_map(|candidate| candidate.file_name()).map(in_lower_case);
        let names: HashSet<String> = names.collect();
        let searched = std::iter::once_with(|| files_named(&names, allowed)).flatten();
        for candidate in candidates.into_iter().chain(searched) {
            let os = OpenError::os(&candidate, "cannot reach the parent");
            let found = candidate.canonicalize().and_then(|real| Ok((std::fs::metadata(&real)?, real)));
            let (stat, real) = match found {
                Ok(found) => found,
                Err(error) => {
                    if !is_absence(&error) {
                        unreached.get_or_insert(os(error));
                    }
                    continue;
                }
            };
            if !allowed.iter().any(|folder| real.starts_with(folder)) {
                let allowed = allowed.clone();
                refused.get_or_insert(OpenError::ParentNotAllowed {
                    path: path.into(),
                    parent: real,
                    allowed,
                });
                continue;
            }
            let identity = of_stat(&stat);
            if seen.contains(&identity) {
                refused.get_or_insert(repeated(path, &real));
                continue;
            }
            let image = match open(&real) {
                Ok(image) => image,
                Err(error) => {
                    if error.is_access() { &mut unread } else { &mut refused }.get_or_insert(error);
                    continue;
                }
            };
            if let Err(error) = check(&image) {
                unlike = Some(error);
                continue;
            }
            seen.insert(identity);
            return Ok(image);
        }
        let missing = || OpenError::ParentMissing { path: path.into(), tried, nameless: false };
        Err(unread.or(unlike).or(refused).or(unreached).unwrap_or_else(missing))
    }
}

/// The error for a parent of the child at `path` that is in its chain already.
pub(crate) fn repeated(path: &Path, parent: &Path) -> OpenError {
    BadField::new("parent", escaped(parent).to_string(), "an image that is not in the chain already").of(path)
}

/// Whether the error of reaching a path says that there is no such file.
fn is_absence(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
        || Errno::from_io_error(error) == Some(Errno::LOOP)
}

fn in_lower_case(name: &OsStr) -> String {
    name.to_string_lossy().to_lowercase()
}

/// Files with these names, in any case: in the first directory, and in the others and all below them.
fn files_named(names: &HashSet<String>, directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left: VecDeque<(PathBuf, bool)> =
        directories.iter().enumerate().map(|(number, folder)| (folder.clone(), number > 0)).collect();
    let mut entries = 0;
    while let Some((folder, deeper)) = left.pop_front() {
        // Sorted, so that the result does not depend on the file system.
        let listed = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_ENTRIES - entries);
        let mut listed: Vec<_> = listed.collect();
        entries += listed.len();
        listed.sort_by_key(DirEntry::file_name);
        for entry in listed {
            if names.contains(&in_lower_case(&entry.file_name())) {
                found.push(entry.path());
            }
            if deeper && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push_back((entry.path(), true));
            }
        }
    }
    found
}

/// The directory of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
            format!("{} has characters that a parent locator cannot hold", escaped(&parent)),
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
