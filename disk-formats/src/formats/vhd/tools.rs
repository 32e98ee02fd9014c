//! Tools that are the same for all formats with parents.

use std::path::{Path, PathBuf};

use super::chain::Image;
use crate::error::OpenError;
use crate::formats::parents::ParentRules;
use crate::formats::rebase::Rebase;
use crate::formats::{chain, merge, rebase};
use crate::image::{MergeError, Merged, RebaseError};

/// Write what `child` holds into its parent, and delete the child. Children of the child must be rebased to the parent
/// afterwards ([`rebase`]). Unless `force` is set, merging is refused if the parent has other children in the same
/// directories. `progress` gets the bytes of the disk done and their number, and says whether to go on. On a file system
/// that can clone, whole blocks are cloned instead of copied.
///
/// After a power failure, or when it was stopped, the child reads as it did, and merging again continues.
///
/// # Errors
/// [`MergeError`].
pub fn merge(
    child: &Path,
    rules: &ParentRules,
    force: bool,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Merged, MergeError> {
    merge::merge::<Image>(child, rules, force, progress)
}

/// Differencing disks in the directory of `path` whose parent it is: they read something else, or are refused, once its
/// content or its size has changed.
///
/// # Errors
/// As [`open`](super::open), of the image itself. Files beside it that cannot be opened are left out.
pub fn children(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    chain::children::<Image>(path)
}

/// Make `parent` the parent of `child`: its identity, its time stamp and the paths to it are noted in the child. No data is compared or copied: the parent must
/// hold what the old one held, as after a move, a merge, or a change that the child can live with. For others there is
/// [`rebase_keeping`].
///
/// After a power failure the child has the old parent or the new one.
///
/// # Errors
/// [`OpenError::Unsupported`] where the child is no differencing disk, or the parent of another format;
/// [`OpenError::Invalid`] where the parent cannot be one of this child, or is the child or has it as a parent, directly or
/// not; those of opening either.
pub fn rebase(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
    Image::note_parent(child, parent, rules)
}

/// As [`rebase`], with a parent of any content: what would read differently over it is first copied to the child, from
/// the old parent, which must still exist. Returns the bytes copied. `progress` gets the bytes of the disk done and
/// their number, and says whether to go on.
///
/// After a power failure, or when it was stopped, the child has the old parent or the new one, and reads the same over
/// either.
///
/// # Errors
/// [`RebaseError`].
pub fn rebase_keeping(
    child: &Path,
    parent: &Path,
    rules: &ParentRules,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<u64, RebaseError> {
    rebase::rebase_keeping::<Image>(child, parent, rules, progress)
}
