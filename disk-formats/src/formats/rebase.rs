//! Rebase: makes another image the parent of a differencing disk. What differs between the parents is copied into the disk
//! first, unless the caller says that they are the same.

use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;
use crate::formats::chain::{Member, refuse_loop, refuse_no_child};
use crate::formats::format::Format;
use crate::formats::parents::ParentRules;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host::backing::Access;
use crate::image::{Content, ImageError, RebaseCopy, RebaseError};

/// How a format rebases.
pub(crate) trait Rebase: Member {
    /// The chain of a child that will read the same: its own children stay valid.
    ///
    /// # Errors
    /// Those of opening its parents.
    fn open_unchanged(self, rules: &ParentRules) -> Result<SparseDisk<impl Blocks>, OpenError>;

    /// The chain of any image, for reading.
    ///
    /// # Errors
    /// As [`Member::open`]; those of opening its parents.
    fn open_to_read(path: &Path, rules: &ParentRules) -> Result<Arc<dyn Format>, OpenError>;

    /// Note `parent` in `child`. The data of the two are not compared.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`], [`OpenError::Invalid`] where it cannot be the parent; the host's.
    fn note_parent(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError>;
}

/// Give `child` another parent, of any content: what would read differently over it is first copied to the child, from
/// the old parent, which must still exist. Returns the bytes copied. `progress` gets the bytes of the disk done and
/// their number, and says whether to go on.
///
/// The copies are flushed before the parent is switched: after a power failure, or when it was stopped, the child has
/// the old parent or the new one, and reads the same over either.
pub(crate) fn rebase_keeping<M: Rebase>(
    child: &Path,
    parent: &Path,
    rules: &ParentRules,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<u64, RebaseError> {
    let base = M::open(parent, Access::READ_ONLY);
    refuse_loop(child, base.map_err(|error| M::as_parent(parent, error))?, rules)?;
    let image = M::open(child, Access::default())?;
    refuse_no_child(&image)?;
    let old = image.open_unchanged(rules)?;
    // Kept open to the end, so that no other process writes to what was compared.
    let new = M::open_to_read(parent, rules)?;
    let copied = RebaseCopy::new(Content::new(&old), Content::new(&*new)).run(progress)?;
    old.close().map_err(|source| ImageError::Flush { path: child.into(), source })?;
    drop(old);
    M::note_parent(child, parent, rules)?;
    Ok(copied)
}
