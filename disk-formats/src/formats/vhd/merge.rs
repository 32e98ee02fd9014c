//! Merge (commit): a differencing disk into its parent.

use std::path::{Path, PathBuf};

use super::chain::{self, Image};
use super::edit::Editor;
use super::stamp;
use crate::error::OpenError;
use crate::formats::parents::ParentRules;
use crate::host::backing::Access;
use crate::host::store::Store;
use crate::image::{MergeError, Merged, commit_into_parent, images_beside, remove};

/// Write what `child` holds into its parent, and delete the child. Children of the child must be rebased to the parent
/// afterwards ([`rebase`](super::rebase)). Unless `force` is set, merging is refused if the parent has other children
/// in the same directories. `progress` gets the bytes of the disk done and their number, and says whether to go on. On
/// a file system that can clone, whole blocks are cloned instead of copied.
///
/// After a power failure, or when it was stopped, the child reads as it did, and merging again continues. The parent
/// has a new time stamp before anything is copied, which the child knows: other disks with this parent are refused from
/// then on.
///
/// # Errors
/// [`MergeError`].
pub fn merge(
    child: &Path,
    rules: &ParentRules,
    force: bool,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Merged, MergeError> {
    let image = Image::open(child, Access::default())?;
    let read_only = Access { read_only: true, direct: false };
    // Nothing of a damaged child may be written to the parent.
    Editor::open(&*image.file)?;
    let base = chain::open_parent(&image, read_only, rules)?;
    let path = base.file.path().to_path_buf();
    if base.found.size < image.found.size {
        return Err(OpenError::Invalid {
            path,
            field: "size",
            value: format!("{} bytes", base.found.size),
            expected: format!("at least the {} bytes of the child: resize it first", image.found.size),
        }
        .into());
    }
    let siblings = children_of(&base, [child, &path], child);
    let orphans = children_of(&image, [child, &path], child);
    if !force && !siblings.is_empty() {
        return Err(MergeError::Siblings { path, siblings });
    }
    drop(base);
    let base = Image::open(&path, Access::default())?;
    if let Some(header) = image.child_header() {
        // Locked: no other process changes it any more.
        chain::check_parent(header, &base, rules).map_err(|bad| bad.of(child))?;
        let accepted =
            stamp::accepts(header.parent_time_stamp.get(), &base.found.footer, stamp::modified(&base.file));
        announce(&*image.file, &*base.file, accepted)?;
    }
    // As they are now.
    let (image, base) = (Image::of(image.file)?, Image::of(base.file)?);
    let below = chain::open_stamped(base, rules)?;
    let alone = || Ok(chain::alone(image.clone())?);
    let copied =
        commit_into_parent(&image.file, image.found.size, alone, std::iter::empty(), &*below, progress)?;
    drop(below);
    remove(child)?;
    Ok(Merged { parent: path, orphans, copied })
}

/// Give the parent a new time stamp and have the child note it, so that the child opens at every moment, and other disks
/// with this parent do not once anything is copied. `accepted`: the child accepts the parent as it is, and not by force.
pub(super) fn announce(child: &dyn Store, parent: &dyn Store, accepted: bool) -> Result<(), OpenError> {
    let os = |path: &Path| {
        let path = path.into();
        move |source| OpenError::Os { path, action: "cannot write its time stamp", source }
    };
    let (mut above, mut below) = (Editor::open(child)?, Editor::open(parent)?);
    let Some(mut header) = above.sparse.as_ref().map(|sparse| sparse.header) else { return Ok(()) };
    // Children that have noted this stamp stay valid until the first copy.
    let same = match header.parent_time_stamp.get() {
        noted if accepted && noted != 0 => noted,
        _ => below.footer.time_stamp.get(),
    };
    let end = below.end().map_err(os(parent.path()))?;
    stamp::announce(&mut below.footer, parent, same);
    below.put_footer(end).map_err(os(parent.path()))?;
    header.parent_time_stamp = below.footer.time_stamp;
    above.switch(header, None, None).map_err(os(child.path()))?;
    stamp::settle(&mut below.footer);
    below.put_footer(end).map_err(os(parent.path()))
}

/// Differencing disks in the directory of `path` whose parent it is: they read something else, or are refused, once its content
/// or its size has changed.
///
/// # Errors
/// As [`open`](super::open), of the image itself. Files beside it that cannot be opened are left out.
pub fn children(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let image = Image::open(path, Access { read_only: true, direct: false })?;
    Ok(children_of(&image, [path, path], path))
}

/// Disks beside these files whose parent is `parent`, without `except`.
fn children_of(parent: &Image, beside: [&Path; 2], except: &Path) -> Vec<PathBuf> {
    images_beside(beside, except, |path| {
        let image = Image::open(path, Access { read_only: true, direct: false });
        image.is_ok_and(|image| {
            image
                .child_header()
                .is_some_and(|header| header.parent_unique_id == parent.found.footer.unique_id)
        })
    })
}
