//! Rebase: another parent for a differencing disk.

use std::path::Path;
use std::sync::Arc;

use super::chain::{Image, check_sectors, no_parent, not_a_vhd, open_chain, open_parents};
use super::create::locator;
use super::edit::Editor;
use super::journal::Visible;
use super::sectors::Sectors;
use super::spec::item;
use crate::error::OpenError;
use crate::formats::field::BadField;
use crate::formats::parents::ParentRules;
use crate::formats::parents::identity;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::image::{Content, ImageError, RebaseCopy, RebaseError};

/// Make `parent` the parent of `child`: its data write GUID and the paths to it are noted in the child. No data is compared or
/// copied: the parent must hold what the old one held, as after a move, a merge, or a change that the child can live with.
///
/// After a power failure the child has the old parent or the new one.
///
/// # Errors
/// [`OpenError::Unsupported`] where the child is no differencing disk, or the parent a VHD; [`OpenError::Invalid`] where the
/// parent has other sectors, is the child itself or has it as a parent, directly or not; those of opening either.
pub fn rebase(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
    let read_only = Access { read_only: true, direct: false };
    let base = Image::open(parent, read_only).map_err(|error| not_a_vhd(parent, error))?;
    let linkage = base.linkage()?;
    {
        let image = Image::open(child, read_only)?;
        if image.opened.metadata.locator.is_none() {
            return Err(no_parent(&image));
        }
        check_sectors(&image, &base).map_err(|bad| bad.of(child))?;
    }
    refuse_loop(child, base, rules)?;
    let os = |source| OpenError::Os { path: child.into(), action: "cannot write the parent's place", source };
    let locator = locator(child, parent, linkage).and_then(|locator| locator.encode()).map_err(os)?;
    let store: Arc<dyn Store> = Arc::new(BackingFile::open(child, Access::default())?);
    let editor = Editor::open(store)?;
    let mut sectors = Sectors::default();
    let metadata = &editor.opened.metadata;
    metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &locator).map_err(os)?;
    editor.commit_alone(sectors, Visible::Unchanged).map_err(os)
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
    let base = Image::open(parent, read_only).map_err(|error| not_a_vhd(parent, error))?;
    refuse_loop(child, base, rules)?;
    let image = Image::open(child, Access::default())?;
    if image.opened.metadata.locator.is_none() {
        return Err(no_parent(&image).into());
    }
    // It reads the same: its children stay valid.
    let known = image.opened.headers.data_write_guid();
    let old = open_chain(image, Access::default(), rules)?.with_identity(known);
    // Kept open to the end, so that no other process writes to what was compared.
    let new = super::open(parent, read_only, rules)?;
    let copied = RebaseCopy::new(Content::new(&old), Content::new(&*new)).run(progress)?;
    let failed = |source| ImageError::Flush { path: child.into(), source };
    old.close().map_err(failed)?;
    drop(old);
    rebase(child, parent, rules)?;
    Ok(copied)
}

/// The child may not be in the chain of its new parent.
fn refuse_loop(child: &Path, base: Image, rules: &ParentRules) -> Result<(), OpenError> {
    let os = |source| OpenError::Os { path: child.into(), action: "cannot open", source };
    let own = identity(child, &std::fs::File::open(child).map_err(os)?)?;
    let mut images = vec![base];
    let opened = open_parents(&mut images, Access { read_only: true, direct: false }, rules);
    for image in &images {
        if identity(image.file.path(), image.file.file())? == own {
            let value = image.file.path().display().to_string();
            return Err(BadField::new("parent", value, "an image that is not in the chain already").of(child));
        }
    }
    opened
}
