//! Chains of images of one format. This module opens the parents of a differencing disk in order, down to the root,
//! finds the children of an image, and refuses loops. The format ([`Member`]) knows the candidates for a child's parent
//! and checks them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::error::{BadField, OpenError, escaped};
use crate::formats::info::{ImageInfo, Scope};
use crate::formats::output::is_part;
use crate::formats::parents::{MAX_DEPTH, ParentRules, Search, identity, of_stat, repeated};
use crate::host::backing::{Access, BackingFile};

/// One image of a chain.
pub(crate) trait Member: Sized {
    /// Limit of the memory, in bytes, for the metadata of a chain.
    const MEMORY: u64;

    /// Open an image without its parents. `memory` limits the memory, in bytes, for its metadata.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the invalid field; else as [`BackingFile::open`].
    fn open_within(path: &Path, access: Access, memory: u64) -> Result<Self, OpenError>;

    /// Open an image without its parents.
    fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        Self::open_within(path, access, Self::MEMORY)
    }

    /// Convert an error of opening the image at `path` as a parent.
    fn as_parent(_path: &Path, error: OpenError) -> OpenError {
        error
    }

    /// Open the parent that the caller names for this child.
    fn open_named_parent(&self, path: &Path, access: Access, memory: u64) -> Result<Self, OpenError> {
        Self::open_within(path, access, memory)
    }

    /// Whether the child has recorded no identity of its parent, so that a search cannot know it.
    fn is_parent_nameless(&self) -> bool {
        false
    }

    /// The image's file.
    fn file(&self) -> &Arc<BackingFile>;

    /// `fixed`, `dynamic` or `differencing`.
    fn subformat(&self) -> &'static str;

    /// Virtual size in bytes.
    fn size(&self) -> u64;

    /// Memory in bytes that its metadata use.
    fn memory(&self) -> u64 {
        0
    }

    /// Whether it is a differencing disk.
    fn is_child(&self) -> bool;

    /// Paths that the parent may have, the most likely first.
    fn candidates(&self) -> Result<Vec<PathBuf>, OpenError>;

    /// Check that `parent` is the parent that the child was created over, and that it has not changed since.
    ///
    /// # Errors
    /// [`OpenError::ParentChanged`]; [`OpenError::Invalid`] names a field that makes it another disk.
    fn check_parent(&self, parent: &Self, rules: &ParentRules) -> Result<(), OpenError>;

    /// Whether the child has recorded the identity of `parent` as its parent's.
    fn has_parent_id(&self, parent: &Self) -> bool;

    /// Describe the image, for `image info`.
    fn describe(&self) -> Result<ImageInfo, OpenError>;
}

/// Describe the image at `path`, and with [`Scope::Chain`] its parents, from the top down.
///
/// # Errors
/// As [`Member::open`], and with [`Scope::Chain`] [`open_parents`].
pub(crate) fn inspect<M: Member>(
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
/// [`OpenError::Invalid`] lists the parents that were tried; [`OpenError::Unsupported`] for chains that are too long.
pub(crate) fn open_parents<M: Member>(
    images: &mut Vec<M>,
    access: Access,
    rules: &ParentRules,
) -> Result<(), OpenError> {
    open_parents_within(images, access, rules, M::MEMORY)
}

/// As [`open_parents`], with `memory` as the limit, in bytes, for the metadata of the chain.
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
        let refused = |reason| OpenError::unsupported(child.file().path(), reason);
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

/// Open the parent of a differencing disk, without the parent's own parents.
///
/// # Errors
/// [`OpenError::Unsupported`] if `child` is not a differencing disk; [`OpenError::Invalid`] lists the parents that were
/// tried.
pub(crate) fn open_parent<M: Member>(child: &M, access: Access, rules: &ParentRules) -> Result<M, OpenError> {
    require_differencing(child)?;
    let mut search = Search::new(child.file().path(), child.file().file(), rules)?;
    find_parent(child, access, rules, &mut search, M::MEMORY)
}

/// Search for the parent of `child`.
fn find_parent<M: Member>(
    child: &M,
    access: Access,
    rules: &ParentRules,
    search: &mut Search,
    memory: u64,
) -> Result<M, OpenError> {
    let path = child.file().path();
    let check = |parent: &M| child.check_parent(parent, rules);
    match search.take_named() {
        Some(parent) => {
            let open = |named: &Path| child.open_named_parent(named, access, memory);
            search.open_named(
                path,
                &parent,
                |named| open(named).map_err(|error| M::as_parent(named, error)),
                check,
            )
        }
        None => {
            let open = |real: &Path| M::open_within(real, access, memory);
            let open = |real: &Path| open(real).map_err(|error| M::as_parent(real, error));
            let tried = child.candidates()?;
            search.find(path, tried.clone(), open, check).map_err(|error| {
                match child.is_parent_nameless() && !error.is_access() {
                    true => OpenError::ParentMissing { path: path.into(), tried, nameless: true },
                    false => error,
                }
            })
        }
    }
}

/// Refuse an image that is not a differencing disk.
///
/// # Errors
/// [`OpenError::Unsupported`].
pub(crate) fn require_differencing<M: Member>(image: &M) -> Result<(), OpenError> {
    if image.is_child() {
        return Ok(());
    }
    let reason = format!("a {} disk has no parent", image.subformat());
    Err(OpenError::unsupported(image.file().path(), reason))
}

/// Open the chain of `parent`, the new parent of `child`, and refuse it if it contains `child`, or has no place for another image.
///
/// # Errors
/// [`OpenError::Invalid`] for a loop; [`OpenError::Unsupported`] for a chain of [`MAX_DEPTH`] images; else the errors of opening the chain.
pub(crate) fn refuse_loop<M: Member>(child: &Path, parent: M, rules: &ParentRules) -> Result<(), OpenError> {
    let os = OpenError::os(child, "cannot open");
    let own = of_stat(&std::fs::metadata(child).map_err(os)?);
    let mut images = vec![parent];
    let opened = open_parents(&mut images, Access::READ_ONLY, &rules.below(child));
    for file in images.iter().map(Member::file) {
        if identity(file.path(), file.file())? == own {
            return Err(repeated(child, file.path()));
        }
    }
    opened?;
    images
        .first()
        .filter(|_| images.len() >= MAX_DEPTH)
        .map_or(Ok(()), |parent| Err(full_chain(parent, MAX_DEPTH)))
}

/// Refuse `parent` as the parent of a new child whose chain would be too long to be opened.
///
/// Its own parents are only counted, one open at a time. Where one is not found, the count ends: other rules may find it later.
///
/// # Errors
/// [`OpenError::Unsupported`]; errors of resolving the directory.
pub(crate) fn refuse_full_chain<M: Member>(parent: &M) -> Result<(), OpenError> {
    refuse_chain_of(parent, MAX_DEPTH)
}

/// As [`refuse_full_chain`], for chains of so many images.
fn refuse_chain_of<M: Member>(parent: &M, most: usize) -> Result<(), OpenError> {
    let rules = ParentRules { any_time: true, ..ParentRules::default() };
    let mut search = Search::new(parent.file().path(), parent.file().file(), &rules)?;
    let (mut below, mut images) = (None::<M>, 1);
    while images < most {
        let image = below.as_ref().unwrap_or(parent);
        if !image.is_child() {
            return Ok(());
        }
        match find_parent(image, Access::READ_ONLY, &rules, &mut search, M::MEMORY) {
            Ok(found) => below = Some(found),
            Err(_) => return Ok(()),
        }
        images += 1;
    }
    Err(full_chain(parent, most))
}

fn full_chain<M: Member>(parent: &M, most: usize) -> OpenError {
    let reason = format!("its chain has {most} images, so a child of it could not be opened: merge some");
    OpenError::unsupported(parent.file().path(), reason)
}

/// Refuse to resize a differencing disk whose old or new size is below its parent's: cutting off would hide the
/// parent's data, and growing would expose them.
///
/// # Errors
/// [`OpenError::Invalid`]; errors of opening the parent.
pub(crate) fn refuse_size_below_parent<M: Member>(
    image: &M,
    size: u64,
    rules: &ParentRules,
) -> Result<(), OpenError> {
    let old = image.size();
    if !image.is_child() || size == old {
        return Ok(());
    }
    // Only the parent's size matters, so a changed parent is accepted.
    let parent = open_parent(image, Access::READ_ONLY, &ParentRules { any_time: true, ..rules.clone() })?;
    let least = parent.size();
    if size.min(old) >= least {
        return Ok(());
    }
    let place = escaped(parent.file().path());
    let expected = format!("at least {least} bytes (the size of its parent {place}), before and after");
    Err(BadField::new("size", format!("{size} bytes, {old} before"), expected).of(image.file().path()))
}

/// Differencing disks in the directory of `path` that have the image as their parent. If the image's data or size
/// change, they read other data or are refused.
///
/// # Errors
/// As [`Member::open`] for the image itself. Files in the directory that cannot be opened are skipped.
pub(crate) fn children<M: Member>(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    Ok(children_of(&M::open(path, Access::READ_ONLY)?, [path, path], path))
}

/// Images in the directories of `beside` whose parent is `parent`, without `except`.
pub(crate) fn children_of<M: Member>(parent: &M, beside: [&Path; 2], except: &Path) -> Vec<PathBuf> {
    images_beside(beside, except, |path| {
        M::open(path, Access::READ_ONLY).is_ok_and(|image| image.has_parent_id(parent))
    })
}

/// Files in the directories of `beside` for which `stands` is true, without `except` and other names of it. A file with several names is listed
/// once; outputs that are incomplete are not listed.
fn images_beside(beside: [&Path; 2], except: &Path, stands: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let identity =
        |path: &Path| Some(of_stat(&std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?));
    let folder = |path: &Path| path.canonicalize().ok()?.parent().map(Path::to_path_buf);
    let mut folders: Vec<PathBuf> = beside.into_iter().filter_map(folder).collect();
    folders.dedup();
    let mut seen: HashSet<(u64, u64)> = identity(except).into_iter().collect();
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    files
        .map(|entry| entry.path())
        .filter(|path| !is_part(path) && identity(path).is_some_and(|identity| seen.insert(identity)))
        .filter_map(|path| path.canonicalize().ok().filter(|path| stands(path)))
        .collect()
}

/// The buffer alignment that direct I/O to all images requires.
pub(crate) fn buffer_alignment<M: Member>(images: &[M]) -> u32 {
    images.iter().filter_map(|image| image.file().direct()).map(|direct| direct.memory).max().unwrap_or(1)
}

#[cfg(all(test, feature = "vhd", feature = "vhdx"))]
mod tests {
    use super::*;
    use crate::formats::{vhd, vhdx};

    #[test]
    fn a_chain_takes_no_child_that_could_not_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        vhd::create_dynamic(&path("0.vhd"), 1 << 20, None).unwrap();
        vhdx::create_dynamic(&path("0.vhdx"), 1 << 20, vhdx::CreateOptions::default()).unwrap();
        for number in 0..3 {
            let of = |number: i32, format| path(&format!("{number}.{format}"));
            vhd::create_differencing(&of(number + 1, "vhd"), &of(number, "vhd"), None).unwrap();
            vhdx::create_differencing(&of(number + 1, "vhdx"), &of(number, "vhdx"), None).unwrap();
        }
        let refused = |format| match format {
            "vhd" => refuse_chain_of(&vhd::Image::open(&path("3.vhd"), Access::READ_ONLY).unwrap(), 4),
            _ => refuse_chain_of(&vhdx::Image::open(&path("3.vhdx"), Access::READ_ONLY).unwrap(), 4),
        };
        let allowed = |format| match format {
            "vhd" => refuse_chain_of(&vhd::Image::open(&path("3.vhd"), Access::READ_ONLY).unwrap(), 5),
            _ => refuse_chain_of(&vhdx::Image::open(&path("3.vhdx"), Access::READ_ONLY).unwrap(), 5),
        };
        for format in ["vhd", "vhdx"] {
            let text = refused(format).unwrap_err().to_string();
            assert!(
                text.ends_with("its chain has 4 images, so a child of it could not be opened: merge some"),
                "{text}"
            );
            allowed(format).unwrap();
            // As far as it is found.
            std::fs::rename(path(&format!("0.{format}")), path("elsewhere")).unwrap();
            refused(format).unwrap();
        }
    }
}
