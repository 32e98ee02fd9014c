//! The tools on chains. Merge (commit) writes the data of a differencing disk into its parent, then deletes the differencing disk. Rebase changes
//! its parent; data that differ between the parents are first copied into the disk, unless the caller states that the parents have the same
//! data.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::error::{BadField, OpenError, escaped};
use crate::formats::chain::{Member, children_of, open_parent, refuse_loop, require_differencing};
use crate::formats::copy::content::{Content, ImageError};
use crate::formats::copy::overlay::{Overlaid, Overlay};
use crate::formats::copy::rebase_copy::RebaseCopy;
use crate::formats::parents::ParentRules;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host;
use crate::host::backing::{Access, BackingFile};
use crate::map::format::Format;

/// Bytes of the disk after which the child is opened again: each open starts with an empty map, which bounds the
/// memory.
const SLICE: u64 = 64 << 30;

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merged {
    /// The image that the child was merged into.
    pub parent: PathBuf,
    /// Children of the child that are in the directory of the child or its parent. They must be rebased to `parent`.
    pub orphans: Vec<PathBuf>,
    /// The copied data.
    pub copied: Overlaid,
}

/// The error of a merge. The child's data are unchanged, and another merge continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// An image could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Copying failed, or the caller stopped it ([`ImageError::Cancelled`]).
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The parent has other children, whose content would change.
    #[error("{}: other disks have it as their parent: {} (they would be lost; allow it with --force)", escaped(path),
        siblings.iter().map(|path| escaped(path).to_string()).collect::<Vec<_>>().join(", "))]
    Siblings {
        /// The parent.
        path: PathBuf,
        /// The other disks.
        siblings: Vec<PathBuf>,
    },
}

/// The part of merge and rebase that depends on the format.
pub(crate) trait ChainTools: Member {
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

/// Write the data of `child` into its parent, and delete the child: see [`Image::merge`](crate::Image::merge).
pub(crate) fn merge<M: ChainTools>(
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

/// Commit a child of `size` bytes in `file` into its parent `below`: write the child's data, and flush. `alone` opens
/// the child without its parents. `zeros` returns, in batches, the runs that the child defines as zeros without
/// storage.
pub(crate) fn commit_into_parent<F: Format>(
    file: &BackingFile,
    size: u64,
    alone: impl Fn() -> Result<F, MergeError>,
    zeros: impl Iterator<Item = Result<Vec<Range<u64>>, OpenError>>,
    below: &dyn Format,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<Overlaid, MergeError> {
    let below = Content::new(below);
    // The space of a fixed disk stays allocated.
    let may_unmap = below.format().info().kind.subformat != Some("fixed");
    let _holes = may_unmap.then(|| below.keep_holes());
    let flush = |path: &Path| {
        let path = path.into();
        move |source| ImageError::Flush { path, source }
    };
    // Blocks that may be cloned must be on stable storage in the child first.
    file.sync().map_err(flush(file.path()))?;
    let mut copied = Overlaid::default();
    for start in (0..size).step_by(SLICE as usize) {
        let above = alone()?;
        let mut overlay = Overlay::new(Content::new(&above), below, may_unmap);
        overlay.write(start..(start + SLICE).min(size), |done| progress(done, size))?;
        copied += overlay.done();
    }
    for runs in zeros {
        for run in runs? {
            copied.zeros += run.end - run.start;
            let zeroed = below.format().write_zeroes(run.start, run.end - run.start, may_unmap);
            zeroed.map_err(|error| ImageError::io(below.path(), "zero", run.start, error))?;
        }
        if !progress(size, size) {
            return Err(ImageError::Cancelled.into());
        }
    }
    below.format().flush().map_err(flush(below.path()))?;
    Ok(copied)
}

/// Delete a merged child, and flush its directory. If `child` is a symbolic link, the image that it leads to is deleted, and then the link.
fn remove(child: &Path) -> Result<(), OpenError> {
    let os = |action| OpenError::os(child, action);
    let image = child.canonicalize().map_err(os("cannot delete it"))?;
    let linked = std::fs::symlink_metadata(child).map_err(os("cannot delete it"))?.is_symlink();
    for path in [Some(&*image), Some(child).filter(|_| linked)].into_iter().flatten() {
        host::remove_file(path).map_err(os("cannot delete it"))?;
        host::sync_folder_of(path).map_err(os("cannot flush its directory"))?;
    }
    Ok(())
}

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

/// Change the parent of `child`, whatever the new parent contains: data that differ are first copied from the old
/// parent, which must still exist, to the child. Returns the number of bytes copied. `progress` is called with the
/// number of bytes processed and the total number, and returns whether to continue.
///
/// The copies are flushed before the parent is switched: after a power failure, or if `progress` stops the call, the
/// child has the old parent or the new one, and reads the same data with either.
pub(crate) fn rebase_copying<M: ChainTools>(
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
    let copied = RebaseCopy::new(Content::new(&old), Content::new(&*new), None).run(progress)?;
    old.close().map_err(|source| ImageError::Flush { path: child.into(), source })?;
    drop(old);
    M::note_parent(child, parent, rules)?;
    Ok(copied)
}
