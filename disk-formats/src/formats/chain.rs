//! Chains of images of one format: opens the parents of a differencing disk in order, down to the last, finds the children
//! of an image, and refuses loops. Which parent a child names, and whether a file is that parent, is the format's ([`Member`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::OpenError;
use crate::formats::field::BadField;
use crate::formats::info::{ImageInfo, Scope};
use crate::formats::parents::{MAX_DEPTH, ParentRules, Search, identity};
use crate::host::backing::{Access, BackingFile};
use crate::image::images_beside;

/// An image by itself.
pub(crate) trait Member: Sized {
    /// Bytes of memory that the metadata of a chain may take.
    const MEMORY: u64;

    /// Open an image without its parents. Its metadata may take so many bytes of memory.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the field that is wrong; else as [`BackingFile::open`].
    fn open_within(path: &Path, access: Access, memory: u64) -> Result<Self, OpenError>;

    /// Open an image without its parents.
    fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        Self::open_within(path, access, Self::MEMORY)
    }

    /// What an error means where the image at `path` was to be a parent.
    fn as_parent(_path: &Path, error: OpenError) -> OpenError {
        error
    }

    /// Its file.
    fn file(&self) -> &Arc<BackingFile>;

    /// `fixed`, `dynamic` or `differencing`.
    fn subformat(&self) -> &'static str;

    /// Virtual size in bytes.
    fn size(&self) -> u64;

    /// Bytes of memory that its metadata take.
    fn memory(&self) -> u64 {
        0
    }

    /// Whether it names a parent.
    fn is_child(&self) -> bool;

    /// The files that its parent may be, the likeliest first.
    fn candidates(&self) -> Result<Vec<PathBuf>, OpenError>;

    /// Check that this is the parent that the child was made of, and unchanged since.
    ///
    /// # Errors
    /// What differs.
    fn check_parent(&self, parent: &Self, rules: &ParentRules) -> Result<(), BadField>;

    /// Whether it notes the identity of this image as that of its parent.
    fn names(&self, parent: &Self) -> bool;
}

/// An image that describes itself.
pub(crate) trait Describe: Member {
    /// What it says of itself.
    fn describe(&self) -> Result<ImageInfo, OpenError>;
}

/// Describe the image at `path`, and with [`Scope::Chain`] its parents, from the top down.
///
/// # Errors
/// As [`Member::open`], and with [`Scope::Chain`] [`open_parents`].
pub(crate) fn inspect<M: Describe>(
    path: &Path,
    scope: Scope,
    rules: &ParentRules,
) -> Result<Vec<ImageInfo>, OpenError> {
    let mut images = vec![M::open(path, Access::READ_ONLY)?];
    if scope == Scope::Chain {
        open_parents(&mut images, Access::READ_ONLY, rules)?;
    }
    images.iter().map(M::describe).collect()
}

/// Open the parents of the last image, down to one that has none.
///
/// # Errors
/// [`OpenError::Invalid`] with the parents that were tried, [`OpenError::Unsupported`] for chains that are too long.
pub(crate) fn open_parents<M: Member>(
    images: &mut Vec<M>,
    access: Access,
    rules: &ParentRules,
) -> Result<(), OpenError> {
    open_parents_within(images, access, rules, M::MEMORY)
}

/// The same, with metadata that take so many bytes of memory at the most.
pub(crate) fn open_parents_within<M: Member>(
    images: &mut Vec<M>,
    access: Access,
    rules: &ParentRules,
    memory: u64,
) -> Result<(), OpenError> {
    let Some(top) = images.first() else { return Ok(()) };
    let mut search = Search::new(top.file().path(), top.file().file(), rules)?;
    let mut left = memory.saturating_sub(top.memory());
    while let Some(child) = images.last().filter(|image| image.is_child()) {
        let parent = find_parent(child, Access { read_only: true, ..access }, rules, &mut search, left)?;
        let refused = |reason| OpenError::Unsupported { path: child.file().path().into(), reason };
        if images.len() == MAX_DEPTH {
            return Err(refused(format!("the chain has more than {MAX_DEPTH} images: merge some")));
        }
        let Some(rest) = left.checked_sub(parent.memory()) else {
            let reason = format!(
                "the metadata of its chain take more than {memory} bytes of memory: merge some images"
            );
            return Err(refused(reason));
        };
        left = rest;
        images.push(parent);
    }
    Ok(())
}

/// The parent of a differencing disk, opened by itself.
///
/// # Errors
/// [`OpenError::Unsupported`] for a disk of another kind; [`OpenError::Invalid`] with the parents that were tried.
pub(crate) fn open_parent<M: Member>(child: &M, access: Access, rules: &ParentRules) -> Result<M, OpenError> {
    refuse_no_child(child)?;
    let mut search = Search::new(child.file().path(), child.file().file(), rules)?;
    find_parent(child, access, rules, &mut search, M::MEMORY)
}

/// The parent that the child names.
fn find_parent<M: Member>(
    child: &M,
    access: Access,
    rules: &ParentRules,
    search: &mut Search,
    memory: u64,
) -> Result<M, OpenError> {
    let open = |real: &Path| M::open_within(real, access, memory).map_err(|error| M::as_parent(real, error));
    let check = |parent: &M| child.check_parent(parent, rules);
    search.find(child.file().path(), child.candidates()?, open, check)
}

/// Refuse an image that names no parent.
///
/// # Errors
/// [`OpenError::Unsupported`].
pub(crate) fn refuse_no_child<M: Member>(image: &M) -> Result<(), OpenError> {
    if image.is_child() {
        return Ok(());
    }
    let reason = format!("a {} disk has no parent", image.subformat());
    Err(OpenError::Unsupported { path: image.file().path().into(), reason })
}

/// Open the image at `parent`, the new parent of `child`, which may not be in its chain.
///
/// # Errors
/// [`OpenError::Invalid`] where it is; else those of opening the chain.
pub(crate) fn refuse_loop<M: Member>(child: &Path, parent: M, rules: &ParentRules) -> Result<(), OpenError> {
    let os = |source| OpenError::Os { path: child.into(), action: "cannot open", source };
    let own = identity(child, &std::fs::File::open(child).map_err(os)?)?;
    let mut images = vec![parent];
    let opened = open_parents(&mut images, Access::READ_ONLY, rules);
    for file in images.iter().map(Member::file) {
        if identity(file.path(), file.file())? == own {
            let value = file.path().display().to_string();
            return Err(BadField::new("parent", value, "an image that is not in the chain already").of(child));
        }
    }
    opened
}

/// Refuse a size of a differencing disk, from which on or to which it would end before its parent: what is cut off
/// would be the parent's data, and what is added must not be.
///
/// # Errors
/// [`OpenError::Invalid`]; those of opening the parent.
pub(crate) fn refuse_size_below_parent<M: Member>(
    image: &M,
    size: u64,
    rules: &ParentRules,
) -> Result<(), OpenError> {
    let old = image.size();
    if !image.is_child() || size == old {
        return Ok(());
    }
    // Its size counts, not its content.
    let parent = open_parent(image, Access::READ_ONLY, &ParentRules { any_time: true, ..rules.clone() })?;
    let least = parent.size();
    if size.min(old) >= least {
        return Ok(());
    }
    let place = parent.file().path().display();
    let expected = format!("{least} bytes or more, before and after: its parent {place} has as many");
    Err(BadField::new("size", format!("{size} bytes, {old} before"), expected).of(image.file().path()))
}

/// Differencing disks in the directory of `path` whose parent it is: they read something else, or are refused, once its
/// content or its size has changed.
///
/// # Errors
/// As [`Member::open`], of the image itself. Files beside it that cannot be opened are left out.
pub(crate) fn children<M: Member>(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    Ok(children_of(&M::open(path, Access::READ_ONLY)?, [path, path], path))
}

/// Disks beside these files whose parent is `parent`, without `except`.
pub(crate) fn children_of<M: Member>(parent: &M, beside: [&Path; 2], except: &Path) -> Vec<PathBuf> {
    images_beside(beside, except, |path| {
        M::open(path, Access::READ_ONLY).is_ok_and(|image| image.names(parent))
    })
}

/// The alignment that buffers need for direct I/O to any image.
pub(crate) fn buffer_alignment<M: Member>(images: &[M]) -> u32 {
    images.iter().filter_map(|image| image.file().direct()).map(|direct| direct.memory).max().unwrap_or(1)
}
