//! Bringing what a differencing disk holds to its parent.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::chain::{self, Image, ParentRules};
use super::edit::Editor;
use super::footer::{self, Subformat};
use crate::image::{Content, ImageError, Overlaid, Overlay, sync_folder_of};
use crate::{Access, BackingFile, OpenError};

/// Bytes of the disk between two openings of the child: its map is forgotten with each, which bounds the memory.
const SLICE: u64 = 64 << 30;

/// What a merge has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// What the child was merged into.
    pub parent: PathBuf,
    /// Disks that stood on the child, as far as they lie beside it or its parent: they must be told of the new parent
    /// ([`rebase`](super::rebase)).
    pub orphans: Vec<PathBuf>,
    /// What the child held.
    pub copied: Overlaid,
}

/// Why a merge did not come to its end. The child is as it was, and merging again goes on.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// An image could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Copying failed, or the caller has stopped it ([`ImageError::Cancelled`]).
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Other disks stand on the parent: what they see would change.
    #[error("{}: other disks stand on it: {} (they would be lost; allow it with --force)", path.display(),
        siblings.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    Siblings {
        /// The parent.
        path: PathBuf,
        /// The other disks.
        siblings: Vec<PathBuf>,
    },
}

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
    let copied = take_in(&image, &path, rules, progress)?;
    // In this order: a child that is still there could not be merged again after its parent got another stamp.
    let os = |action| move |source| OpenError::Os { path: child.into(), action, source };
    std::fs::remove_file(child).map_err(os("cannot delete it"))?;
    sync_folder_of(child).map_err(os("cannot synchronise its folder"))?;
    stamp(&path)?;
    Ok(Merged { parent: path, orphans, copied })
}

/// Write what the child holds over its parent, and make that durable.
fn take_in(
    child: &Image,
    parent: &Path,
    rules: &ParentRules,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<Overlaid, MergeError> {
    let below = chain::open(parent, Access::default(), rules)?;
    let below = Content::new(&*below);
    // A fixed disk keeps the space that it was made with.
    let may_unmap = below.format().info().kind.subformat != Some(Subformat::Fixed.as_str());
    let flush = |path: &Path| {
        let path = path.into();
        move |source| ImageError::Flush { path, source }
    };
    // What is shared is as durable as it was in the child.
    child.file.sync().map_err(flush(child.file.path()))?;
    let size = child.found.size;
    let mut copied = Overlaid::default();
    for start in (0..size).step_by(SLICE as usize) {
        let above = chain::alone(child.clone())?;
        let mut overlay = Overlay::new(Content::new(&above), below, may_unmap);
        overlay.write(start..(start + SLICE).min(size), |done| progress(done, size))?;
        copied += overlay.done();
    }
    below.format().flush().map_err(flush(parent))?;
    Ok(copied)
}

/// Disks beside these files that stand on `parent`, without `except`.
fn standing_on(parent: &Image, beside: [&Path; 2], except: &Path) -> Vec<PathBuf> {
    let own = except.canonicalize().unwrap_or_else(|_| except.into());
    let folder = |path: &Path| path.canonicalize().ok()?.parent().map(Path::to_path_buf);
    let mut folders: Vec<PathBuf> = beside.into_iter().filter_map(folder).collect();
    folders.dedup();
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    files
        .map(|entry| entry.path())
        .filter(|path| {
            let named = path
                .extension()
                .is_some_and(|name| name.eq_ignore_ascii_case("vhd") || name.eq_ignore_ascii_case("avhd"));
            named && *path != own && path.is_file()
        })
        .filter(|path| {
            let image = Image::open(path, Access { read_only: true, direct: false });
            image.is_ok_and(|image| {
                image
                    .child_header()
                    .is_some_and(|header| header.parent_unique_id == parent.found.footer.unique_id)
            })
        })
        .collect()
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
