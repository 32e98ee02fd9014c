//! Rebase: changes the parent of a differencing disk. Data that differ between the parents are first copied into the
//! disk, unless the caller states that the parents have the same data.

use std::path::Path;
use std::sync::Arc;

use crate::contract::error::OpenError;
use crate::formats::chain::{Member, refuse_loop, require_differencing};
use crate::formats::copy::content::Content;
use crate::formats::copy::error::ImageError;
use crate::formats::copy::rebase_copy::RebaseCopy;
use crate::formats::parents::ParentRules;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host::backing::Access;
use crate::map::format::Format;

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

/// The part of a rebase that depends on the format.
pub(crate) trait Rebase: Member {
    /// Open the chain of a child whose content will not change, so that its own children stay valid.
    ///
    /// # Errors
    /// Errors of opening its parents.
    fn open_unchanged(self, rules: &ParentRules) -> Result<SparseDisk<impl Blocks>, OpenError>;

    /// Open the chain of any image for reading.
    ///
    /// # Errors
    /// As [`Member::open`]; errors of opening its parents.
    fn open_to_read(path: &Path, rules: &ParentRules) -> Result<Arc<dyn Format>, OpenError>;

    /// Record `parent` in `child`. The data are not compared.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`]; [`OpenError::Invalid`] if `parent` cannot be the parent; the host's.
    fn note_parent(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError>;
}

/// Change the parent of `child`, whatever the new parent contains: data that differ are first copied from the old
/// parent, which must still exist, to the child. Returns the number of bytes copied. `progress` is called with the
/// number of bytes processed and the total number, and returns whether to continue.
///
/// The copies are flushed before the parent is switched: after a power failure, or if `progress` stops the call, the
/// child has the old parent or the new one, and reads the same data with either.
pub(crate) fn rebase_copying<M: Rebase>(
    child: &Path,
    parent: &Path,
    rules: &ParentRules,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<u64, RebaseError> {
    let base = M::open(parent, Access::READ_ONLY);
    refuse_loop(child, base.map_err(|error| M::as_parent(parent, error))?, rules)?;
    let image = M::open(child, Access::default())?;
    require_differencing(&image)?;
    let old = image.open_unchanged(rules)?;
    // Stays open until the end, so that no other process can change what was compared.
    let new = M::open_to_read(parent, &rules.below(child))?;
    let copied = RebaseCopy::new(Content::new(&old), Content::new(&*new)).run(progress)?;
    old.close().map_err(|source| ImageError::Flush { path: child.into(), source })?;
    drop(old);
    M::note_parent(child, parent, rules)?;
    Ok(copied)
}
