//! Merge (commit): a differencing disk into its parent.

use std::path::Path;

use crate::error::OpenError;
use crate::formats::chain::{Member, children_of, open_parent};
use crate::formats::field::BadField;
use crate::formats::parents::ParentRules;
use crate::host::backing::Access;
use crate::image::{MergeError, Merged, Overlaid, remove};

/// How a format merges.
pub(crate) trait Merge: Member {
    /// Open the child for writing. Nothing of a damaged child may be written to the parent.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names what is damaged; else as [`Member::open`].
    fn open_to_merge(path: &Path) -> Result<Self, OpenError>;

    /// Have the child note its parent's new identity, so that it opens at every moment, and other disks with this parent do
    /// not once anything is copied; then write what the child holds into the parent, and flush. The parent is open for
    /// reading.
    ///
    /// # Errors
    /// [`MergeError`].
    fn commit(
        self,
        parent: Self,
        rules: &ParentRules,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Overlaid, MergeError>;
}

/// Write what `child` holds into its parent, and delete the child: see [`Image::merge`](crate::Image::merge).
///
/// # Errors
/// [`MergeError`].
pub(crate) fn merge<M: Merge>(
    child: &Path,
    rules: &ParentRules,
    force: bool,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Merged, MergeError> {
    let image = M::open_to_merge(child)?;
    let base = open_parent(&image, Access { read_only: true, direct: false }, rules)?;
    let path = base.file().path().to_path_buf();
    let (size, own) = (base.size(), image.size());
    if size < own {
        let expected = format!("at least the {own} bytes of the child: resize it first");
        return Err(BadField::new("size", format!("{size} bytes"), expected).of(&path).into());
    }
    let siblings = children_of(&base, [child, &path], child);
    let orphans = children_of(&image, [child, &path], child);
    if !force && !siblings.is_empty() {
        return Err(MergeError::Siblings { path, siblings });
    }
    let copied = image.commit(base, rules, progress)?;
    remove(child)?;
    Ok(Merged { parent: path, orphans, copied })
}
