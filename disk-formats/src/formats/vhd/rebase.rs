//! Rebase: another parent for a differencing disk.

use std::path::Path;

use super::chain::{self, Image};
use super::create::locators;
use super::edit::Editor;
use super::footer::Subformat;
use crate::error::OpenError;
use crate::formats::field::BadField;
use crate::formats::format::Format;
use crate::formats::parents::ParentRules;
use crate::formats::parents::identity;
use crate::host::backing::Access;
use crate::image::{Content, ImageError, RebaseCopy, RebaseError};

/// Make `parent` the parent of `child`: its identity, its time stamp and the paths to it are noted in the child. No data is
/// compared or copied: the parent must hold what the old one held, as after a move, a merge, or a change that the child can
/// live with. For others there is [`rebase_keeping`].
///
/// After a power failure the child has the old parent or the new one.
///
/// # Errors
/// [`OpenError::Unsupported`] where the child is no differencing disk; [`OpenError::Invalid`] where the parent is the child
/// itself or has it as a parent, directly or not; those of opening either.
pub fn rebase(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
    let base = Image::open(parent, Access { read_only: true, direct: false })?;
    let (id, stamp) = (base.found.footer.unique_id, base.stamp_to_note());
    refuse_loop(child, base, rules)?;
    let os = |source| OpenError::Os { path: child.into(), action: "cannot write the parent's place", source };
    let (locators, name) = locators(child, parent).map_err(os)?;
    let image = Image::open(child, Access::default())?;
    let mut editor = Editor::open(&*image.file)?;
    let Some(sparse) = editor.sparse.as_ref().filter(|_| editor.subformat == Subformat::Differencing) else {
        return Err(no_parent(child, editor.subformat));
    };
    let mut header = sparse.header;
    header.parent_unique_id = id;
    header.parent_time_stamp = stamp.into();
    header.parent_unicode_name = name;
    editor.switch(header, None, Some(&locators)).map_err(os)
}

/// As [`rebase`], with a parent of any content: what would read differently over it is first copied to the child, from
/// the old parent, which must still exist. Returns the bytes copied. `progress` gets the bytes of the disk done and
/// their number, and says whether to go on.
///
/// The copies are flushed before the parent is switched: after a power failure, or when it was stopped, the child has
/// the old parent or the new one, and reads the same over either.
///
/// # Errors
/// [`RebaseError`].
pub fn rebase_keeping(
    child: &Path,
    parent: &Path,
    rules: &ParentRules,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<u64, RebaseError> {
    let read_only = Access { read_only: true, direct: false };
    refuse_loop(child, Image::open(parent, read_only)?, rules)?;
    let image = Image::open(child, Access::default())?;
    if image.child_header().is_none() {
        return Err(no_parent(child, image.found.subformat).into());
    }
    // It reads the same: its children stay valid.
    let old = chain::open_sparse(image, Access::default(), rules)?.begun();
    // Kept open to the end, so that no other process writes to what was compared.
    let new = chain::open(parent, read_only, rules)?;
    let copied = RebaseCopy::new(Content::new(&old), Content::new(&*new)).run(progress)?;
    old.flush().map_err(|source| ImageError::Flush { path: child.into(), source })?;
    drop(old);
    rebase(child, parent, rules)?;
    Ok(copied)
}

fn no_parent(child: &Path, subformat: Subformat) -> OpenError {
    let reason = format!("a {} disk has no parent", subformat.as_str());
    OpenError::Unsupported { path: child.into(), reason }
}

/// The child may not be in the chain of its new parent.
fn refuse_loop(child: &Path, base: Image, rules: &ParentRules) -> Result<(), OpenError> {
    let os = |source| OpenError::Os { path: child.into(), action: "cannot open", source };
    let own = identity(child, &std::fs::File::open(child).map_err(os)?)?;
    let mut images = vec![base];
    let access = Access { read_only: true, direct: false };
    let opened = chain::open_parents(&mut images, access, rules);
    for image in &images {
        if identity(image.file.path(), image.file.file())? == own {
            let value = image.file.path().display().to_string();
            return Err(BadField::new("parent", value, "an image that is not in the chain already").of(child));
        }
    }
    opened
}
