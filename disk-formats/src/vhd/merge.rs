//! Bringing what a differencing disk holds to its parent.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::chain::{self, Image, ParentRules, open_sparse};
use super::edit::Editor;
use super::footer::{self, Subformat};
use super::layer::read_bat;
use super::layout::Layout;
use super::sparse::SparseVhd;
use super::spec::{SECTOR, UNALLOCATED};
use crate::image::sync_folder_of;
use crate::store::{Store, io_error};
use crate::{Access, BackingFile, Format, IoError, OpenError};

/// Bytes copied at once.
const CHUNK: u64 = 1 << 20;

/// What a merge has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// What the child was merged into.
    pub parent: PathBuf,
    /// Disks that stood on the child, as far as they lie beside it or its parent: they must be told of the new parent
    /// ([`rebase`](super::rebase)).
    pub orphans: Vec<PathBuf>,
}

/// Why a merge did not come to its end. The child is as it was, and merging again goes on.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// An image could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Copying failed.
    #[error("{}: cannot merge into it: {source}", path.display())]
    Io {
        /// The parent.
        path: PathBuf,
        /// The cause.
        source: IoError,
    },
    /// Other disks stand on the parent: what they see would change.
    #[error("{}: other disks stand on it: {} (they would be lost; allow it with --force)", path.display(),
        siblings.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    Siblings {
        /// The parent.
        path: PathBuf,
        /// The other disks.
        siblings: Vec<PathBuf>,
    },
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

/// Write what `child` holds into its parent, and delete the child. Disks that stand on the child must be told of the parent
/// afterwards ([`rebase`](super::rebase)). Other disks that stand on the parent, as far as they lie in the same directories,
/// are refused, unless `force` is set. `progress` gets the blocks done and their number, and says whether to go on.
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
    let parent = Parent::open(&path, rules)?;
    let failed = |source| MergeError::Io { path: path.clone(), source };
    let Some((_, layout)) = &image.sparse else { return Ok(Merged { parent: path, orphans }) };
    copy(&*image.file, layout, |offset, data| parent.write(offset, data), progress).map_err(
        |stop| match stop {
            Stop::Io(error) => failed(error),
            Stop::Read(source) => {
                OpenError::Os { path: child.into(), action: "cannot read its blocks", source }.into()
            }
            Stop::Asked => MergeError::Stopped,
        },
    )?;
    parent.flush().map_err(failed)?;
    drop(parent);
    // In this order: a child that is still there could not be merged again after its parent got another stamp.
    std::fs::remove_file(child).map_err(|source| OpenError::Os {
        path: child.into(),
        action: "cannot delete it",
        source,
    })?;
    sync_folder_of(child).map_err(|source| OpenError::Os {
        path: child.into(),
        action: "cannot make its deletion durable",
        source,
    })?;
    stamp(&path)?;
    Ok(Merged { parent: path, orphans })
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
            if *path == own || !path.is_file() {
                return false;
            }
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

enum Parent {
    Fixed(Arc<BackingFile>),
    Sparse(Box<SparseVhd>),
}

impl Parent {
    fn open(path: &Path, rules: &ParentRules) -> Result<Self, OpenError> {
        let image = Image::open(path, Access::default())?;
        Ok(match image.found.subformat {
            Subformat::Fixed => Self::Fixed(image.file),
            _ => Self::Sparse(Box::new(open_sparse(image, Access::default(), rules)?)),
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        match self {
            Self::Fixed(file) => file.write_at(data, offset).map_err(|error| io_error(&error)),
            Self::Sparse(disk) if data.iter().all(|byte| *byte == 0) => {
                disk.write_zeroes(offset, data.len() as u64, true)
            }
            Self::Sparse(disk) => disk.write_now(offset, data),
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        match self {
            Self::Fixed(file) => file.sync(),
            Self::Sparse(disk) => disk.flush(),
        }
    }
}

#[derive(Debug)]
pub(super) enum Stop {
    /// Writing failed.
    Io(IoError),
    /// Reading failed.
    Read(std::io::Error),
    Asked,
}

/// Give each run of sectors that an image has to `write`.
pub(super) fn copy(
    store: &dyn Store,
    layout: &Layout,
    write: impl Fn(u64, &[u8]) -> Result<(), IoError>,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<(), Stop> {
    let table = read_bat(store, layout, 0, u64::from(layout.used_entries())).map_err(Stop::Read)?;
    let total = table.len() as u64;
    for (block, entry) in table.into_iter().enumerate() {
        if entry != UNALLOCATED {
            let start = (block as u64) << layout.block_shift;
            let mut bits = vec![0; layout.bitmap as usize];
            store.read_at(&mut bits, Layout::bitmap_at(entry)).map_err(Stop::Read)?;
            let sectors = layout.block_size().min(layout.size - start) / SECTOR;
            for (first, count) in runs(&bits, sectors) {
                copy_run(
                    store,
                    layout.data_at(entry) + first * SECTOR,
                    start + first * SECTOR,
                    count * SECTOR,
                    &write,
                )?;
            }
        }
        if !progress(block as u64 + 1, total) {
            return Err(Stop::Asked);
        }
    }
    Ok(())
}

fn copy_run(
    store: &dyn Store,
    from: u64,
    to: u64,
    len: u64,
    write: impl Fn(u64, &[u8]) -> Result<(), IoError>,
) -> Result<(), Stop> {
    let mut bytes = vec![0; CHUNK.min(len) as usize];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(CHUNK);
        let chunk = bytes.get_mut(..part as usize).unwrap_or_default();
        store.read_at(chunk, from + done).map_err(Stop::Read)?;
        write(to + done, chunk).map_err(Stop::Io)?;
        done += part;
    }
    Ok(())
}

/// Runs of set bits among the first `sectors`: `(first, count)`.
fn runs(bits: &[u8], sectors: u64) -> Vec<(u64, u64)> {
    let set =
        |sector: u64| bits.get((sector / 8) as usize).is_some_and(|byte| byte & (0x80 >> (sector % 8)) != 0);
    let (mut found, mut first) = (Vec::new(), None);
    for sector in 0..=sectors {
        match (first, sector < sectors && set(sector)) {
            (None, true) => first = Some(sector),
            (Some(from), false) => {
                found.push((from, sector - from));
                first = None;
            }
            _ => {}
        }
    }
    found
}
