//! Merge (commit): writes the data of a differencing disk into its parent, then deletes the differencing disk.

use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;
use crate::formats::chain::{Member, children_of, open_parent};
use crate::formats::field::BadField;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::image::{MergeError, Merged, Overlaid, remove};

/// The part of a merge that depends on the format.
pub(crate) trait Merge: Member {
    /// Open the child for writing, and refuse a damaged one: its data must not be written to the parent.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the damaged field; else as [`Member::open`].
    fn open_to_merge(path: &Path) -> Result<Self, OpenError>;

    /// The child's file, if it is to stay open, and so locked, until it is deleted.
    fn locked(&self) -> Option<Arc<BackingFile>> {
        None
    }

    /// Record the parent's new identity in the child. The child can be opened at any moment; other children of this
    /// parent are refused as soon as data were copied. Then write the child's data into the parent, and flush. `parent`
    /// is open for reading.
    fn commit(
        self,
        parent: Self,
        rules: &ParentRules,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Overlaid, MergeError>;
}

/// Write the data of `child` into its parent, and delete the child: see [`Image::merge`](crate::Image::merge).
pub(crate) fn merge<M: Merge>(
    child: &Path,
    rules: &ParentRules,
    force: bool,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Merged, MergeError> {
    let image = M::open_to_merge(child)?;
    let base = open_parent(&image, Access::READ_ONLY, rules)?;
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
    let _locked = image.locked();
    let copied = image.commit(base, rules, progress)?;
    remove(child)?;
    Ok(Merged { parent: path, orphans, copied })
}
