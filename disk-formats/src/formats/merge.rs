//! Merge (commit): writes the data of a differencing disk into its parent, then deletes the disk.

use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;
use crate::formats::chain::{Member, children_of, open_parent};
use crate::formats::field::BadField;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::image::{MergeError, Merged, Overlaid, remove};

/// How a format merges.
pub(crate) trait Merge: Member {
    /// Open the child for writing. Nothing of a damaged child may be written to the parent.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names what is damaged; else as [`Member::open`].
    fn open_to_merge(path: &Path) -> Result<Self, OpenError>;

    /// The child's file, where it stays open and so locked until it is deleted.
    fn locked(&self) -> Option<Arc<BackingFile>> {
        None
    }

    /// Have the child note its parent's new identity: the child can be opened at any moment, but no other disk with this
    /// parent once anything is copied. Then write what the child holds into the parent, and flush. The parent is open for
    /// reading.
    fn commit(
        self,
        parent: Self,
        rules: &ParentRules,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Overlaid, MergeError>;
}

/// Write what `child` holds into its parent, and delete the child: see [`Image::merge`](crate::Image::merge).
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
