//! Bringing what a differencing disk holds to its parent.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::chain::{self, Image};
use super::edit::Editor;
use super::footer;
use crate::image::{MergeError, Merged, images_beside, remove, take_in};
use crate::{Access, BackingFile, OpenError, ParentRules};

/// Write what `child` holds into its parent, and delete the child. Disks that stand on the child must be told of the parent
/// afterwards ([`rebase`](super::rebase)). Other disks that stand on the parent, as far as they lie in the same directories,
/// are refused, unless `force` is set. `progress` gets the bytes of the disk done and their number, and says whether to go on.
/// On a file system that can clone, whole blocks change hands without being read.
///
/// After a power failure, or when it was stopped, the child is there as it was, and merging again goes on.
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
    // Nothing of a damaged child may come to the parent.
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
    let siblings = standing_on(&base, [child, &path], child);
    let orphans = standing_on(&image, [child, &path], child);
    if !force && !siblings.is_empty() {
        return Err(MergeError::Siblings { path, siblings });
    }
    drop(base);
    let below = chain::open(&path, Access::default(), rules)?;
    let alone = || Ok(chain::alone(image.clone())?);
    let copied = take_in(&image.file, image.found.size, alone, &[], &*below, progress)?;
    drop(below);
    // In this order: a child that is still there could not be merged again after its parent got another stamp.
    remove(child)?;
    stamp(&path)?;
    Ok(Merged { parent: path, orphans, copied })
}

/// Differencing disks in the directory of `path` that stand on it: they read something else, or are refused, once its content
/// or its size has changed.
///
/// # Errors
/// As [`open`](super::open), of the image itself. Files beside it that cannot be opened are not told of.
pub fn children(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let image = Image::open(path, Access { read_only: true, direct: false })?;
    Ok(standing_on(&image, [path, path], path))
}

/// Disks beside these files that stand on `parent`, without `except`.
fn standing_on(parent: &Image, beside: [&Path; 2], except: &Path) -> Vec<PathBuf> {
    images_beside(beside, except, |path| {
        let image = Image::open(path, Access { read_only: true, direct: false });
        image.is_ok_and(|image| {
            image
                .child_header()
                .is_some_and(|header| header.parent_unique_id == parent.found.footer.unique_id)
        })
    })
}

/// The parent has changed: disks that still stand on it are to notice.
fn stamp(path: &Path) -> Result<(), OpenError> {
    let os = |source| OpenError::Os { path: path.into(), action: "cannot write its footer", source };
    let file = BackingFile::open(path, Access::default())?;
    let mut editor = Editor::open(&file)?;
    let now = footer::time_stamp(SystemTime::now());
    // Never the same, and never back.
    editor.footer.time_stamp = now.max(editor.footer.time_stamp.get().saturating_add(1)).into();
    let end = editor.end().map_err(os)?;
    editor.put_footer(end).map_err(os)
}
