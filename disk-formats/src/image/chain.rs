//! Operations on the images of a chain, whatever their format.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::content::Content;
use super::error::ImageError;
use super::output::{is_part, sync_folder_of};
use super::overlay::{Overlaid, Overlay};
use super::rebase_copy::RebaseCopy;
use crate::error::OpenError;
use crate::escaped::escaped;
use crate::formats::format::Format;
use crate::formats::parents::of_stat;
use crate::host;
use crate::host::backing::BackingFile;

/// Bytes of the disk after which the child is opened again: each open starts with an empty map, which bounds the
/// memory.
const SLICE: u64 = 64 << 30;

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merged {
    /// The image that the child was merged into.
    pub parent: PathBuf,
    /// Children of the child that are in the directory of the child or its parent. They must be rebased to `parent`.
    pub orphans: Vec<PathBuf>,
    /// The copied data.
    pub copied: Overlaid,
}

/// The error of a merge. The child's data are unchanged, and another merge continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// An image could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Copying failed, or the caller stopped it ([`ImageError::Cancelled`]).
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The parent has other children, whose content would change.
    #[error("{}: other disks have it as their parent: {} (they would be lost; allow it with --force)", escaped(path),
        siblings.iter().map(|path| escaped(path).to_string()).collect::<Vec<_>>().join(", "))]
    Siblings {
        /// The parent.
        path: PathBuf,
        /// The other disks.
        siblings: Vec<PathBuf>,
    },
}

/// The error of a rebase. The disk reads the same data as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebaseError {
    /// An image could not be opened, or the parent's path could not be recorded.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Comparing or copying failed, or the caller stopped it ([`ImageError::Cancelled`]).
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Commit a child of `size` bytes in `file` into its parent `below`: write the child's data, and flush. `alone` opens
/// the child without its parents. `zeros` returns, in batches, the runs that the child defines as zeros without
/// storage.
pub(crate) fn commit_into_parent<F: Format>(
    file: &BackingFile,
    size: u64,
    alone: impl Fn() -> Result<F, MergeError>,
    zeros: impl Iterator<Item = Result<Vec<Range<u64>>, OpenError>>,
    below: &dyn Format,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<Overlaid, MergeError> {
    let below = Content::new(below);
    // The space of a fixed disk stays allocated.
    let may_unmap = below.format().info().kind.subformat != Some("fixed");
    let flush = |path: &Path| {
        let path = path.into();
        move |source| ImageError::Flush { path, source }
    };
    // Blocks that may be cloned must be on stable storage in the child first.
    file.sync().map_err(flush(file.path()))?;
    let mut copied = Overlaid::default();
    for start in (0..size).step_by(SLICE as usize) {
        let above = alone()?;
        let mut overlay = Overlay::new(Content::new(&above), below, may_unmap);
        overlay.write(start..(start + SLICE).min(size), |done| progress(done, size))?;
        copied += overlay.done();
    }
    for runs in zeros {
        for run in runs? {
            copied.zeros += run.end - run.start;
            let zeroed = below.format().write_zeroes(run.start, run.end - run.start, may_unmap);
            zeroed.map_err(|error| ImageError::io(below.path(), "zero", run.start, error))?;
        }
        if !progress(size, size) {
            return Err(ImageError::Cancelled.into());
        }
    }
    below.format().flush().map_err(flush(below.path()))?;
    Ok(copied)
}

/// Make the empty differencing disk `child` of `parent` read the data of `source`: write the data that differ, and
/// flush. Returns the number of bytes written. `progress` is called with the number of bytes processed and the total
/// number, and returns whether to continue.
///
/// # Errors
/// Errors of reading and writing; [`ImageError::Cancelled`].
pub fn write_difference(
    source: Content<'_>,
    parent: Content<'_>,
    child: Content<'_>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<u64, ImageError> {
    let copied = RebaseCopy::into(source, parent, child).run(progress)?;
    let path = child.path().into();
    child.format().flush().map_err(|source| ImageError::Flush { path, source })?;
    Ok(copied)
}

/// Delete a merged child, and flush its directory. If `child` is a symbolic link, the image that it leads to is deleted, and then the link.
pub(crate) fn remove(child: &Path) -> Result<(), OpenError> {
    let os = |action| move |source| OpenError::Os { path: child.into(), action, source };
    let image = child.canonicalize().map_err(os("cannot delete it"))?;
    let linked = std::fs::symlink_metadata(child).map_err(os("cannot delete it"))?.is_symlink();
    for path in [Some(&*image), Some(child).filter(|_| linked)].into_iter().flatten() {
        host::remove_file(path).map_err(os("cannot delete it"))?;
        sync_folder_of(path).map_err(os("cannot flush its directory"))?;
    }
    Ok(())
}

/// Files in the directories of `beside` for which `stands` is true, without `except` and other names of it. A file with several names is listed
/// once; outputs that are incomplete are not listed.
pub(crate) fn images_beside(
    beside: [&Path; 2],
    except: &Path,
    stands: impl Fn(&Path) -> bool,
) -> Vec<PathBuf> {
    let identity =
        |path: &Path| Some(of_stat(&std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?));
    let folder = |path: &Path| path.canonicalize().ok()?.parent().map(Path::to_path_buf);
    let mut folders: Vec<PathBuf> = beside.into_iter().filter_map(folder).collect();
    folders.dedup();
    let mut seen: HashSet<(u64, u64)> = identity(except).into_iter().collect();
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    files
        .map(|entry| entry.path())
        .filter(|path| !is_part(path) && identity(path).is_some_and(|identity| seen.insert(identity)))
        .filter_map(|path| path.canonicalize().ok().filter(|path| stands(path)))
        .collect()
}
