//! Merge (commit): a differencing disk into its parent.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::bat::{Entry, State};
use super::chain::{self, Image};
use super::edit::Editor;
use super::journal::Visible;
use super::layout::{Layout, Slot};
use super::opened::Opened;
use super::scan::Scan;
use super::sectors::Sectors;
use super::spec::item;
use crate::error::OpenError;
use crate::formats::field::BadField;
use crate::formats::guid;
use crate::formats::parents::ParentRules;
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::image::findings::Severity;
use crate::image::{MergeError, Merged, commit_into_parent, images_beside, remove};

/// Write what `child` holds into its parent, and delete the child. Children of the child must be rebased to the parent
/// afterwards ([`rebase`](super::rebase)). Unless `force` is set, merging is refused if the parent has other children
/// in the same directories. `progress` gets the bytes of the disk done and their number, and says whether to go on. On
/// a file system that can clone, whole blocks are cloned instead of copied.
///
/// After a power failure, or when it was stopped, the child is there as it was, and merging again continues: before the
/// copy it notes the identity that its parent's data are about to get.
///
/// # Errors
/// [`MergeError`].
pub fn merge(
    child: &Path,
    rules: &ParentRules,
    force: bool,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Merged, MergeError> {
    let read_only = Access { read_only: true, direct: false };
    // Its log is replayed, if it has one; and nothing of a damaged child may be written to the parent.
    refuse_damaged(child)?;
    let image = Image::open(child, Access::default())?;
    let base = chain::open_parent(&image, read_only, rules)?;
    let path = base.file.path().to_path_buf();
    let (size, own) = (base.opened.layout.size, image.opened.layout.size);
    if size < own {
        let expected = format!("at least the {own} bytes of the child: resize it first");
        return Err(BadField::new("size", format!("{size} bytes"), expected).of(&path).into());
    }
    let now = base.opened.headers.data_write_guid();
    let siblings = children_of(now, [child, &path], child);
    let orphans = children_of(image.opened.headers.data_write_guid(), [child, &path], child);
    if !force && !siblings.is_empty() {
        return Err(MergeError::Siblings { path, siblings });
    }
    drop((base, image));
    let next = guid::random().map_err(|source| os(child, source))?;
    announce(child, now, next)?;
    let image = Image::open(child, read_only)?;
    let parent = Image::open(&path, Access::default())?;
    let below = chain::open_chain(parent, Access::default(), rules)?.with_identity(next);
    let alone = || Ok(chain::alone(child, read_only)?);
    let zeros = zeros(&image.opened).map(|runs| runs.map_err(|source| os(child, source)));
    let copied = commit_into_parent(&image.file, own, alone, zeros, &below, progress)?;
    below.close().map_err(|source| os(&path, io::Error::other(source)))?;
    drop((below, image));
    remove(child)?;
    Ok(Merged { parent: path, orphans, copied })
}

fn refuse_damaged(child: &Path) -> Result<(), OpenError> {
    let report = super::check(child, false)?;
    match report.findings.into_iter().find(|finding| finding.severity == Severity::Damage) {
        None => Ok(()),
        Some(finding) => Err(OpenError::Invalid {
            path: child.into(),
            field: finding.field,
            value: finding.value,
            expected: finding.expected,
        }),
    }
}

fn os(path: &Path, source: io::Error) -> OpenError {
    OpenError::Os { path: path.into(), action: "cannot merge", source }
}

/// Note in the child the identity that the parent's data have and the one that they will have.
fn announce(child: &Path, now: Uuid, next: Uuid) -> Result<(), OpenError> {
    let store: Arc<dyn Store> = Arc::new(BackingFile::open(child, Access::default())?);
    let editor = Editor::open(store)?;
    let failed = |source| os(child, source);
    let metadata = &editor.opened.metadata;
    let Some(locator) = &metadata.locator else { return Ok(()) };
    let item = locator.linked(now, Some(next)).encode().map_err(failed)?;
    let mut sectors = Sectors::default();
    metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &item).map_err(failed)?;
    editor.commit_alone(sectors, Visible::Unchanged).map_err(failed)
}

/// The blocks that are zeros, or were trimmed: the parent is not read there. In batches of at most 32,768 runs, as
/// every other block of 64 TiB may be one.
pub(super) fn zeros(image: &Opened) -> impl Iterator<Item = io::Result<Vec<Range<u64>>>> + '_ {
    let layout = image.layout;
    let mut scan = Scan::new(&layout);
    std::iter::from_fn(move || scan.part(&*image.store, &layout).transpose())
        .map(move |part| part.map(|entries| runs_of_zeros(&layout, &entries)))
}

fn runs_of_zeros(layout: &Layout, entries: &[(u64, Entry)]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (index, entry) in entries {
        let (Slot::Payload(block), State::Undefined | State::Zero | State::Unmapped) =
            (layout.slot(*index), entry.state())
        else {
            continue;
        };
        // The table of a child has entries up to the end of a chunk, and another program may have written those behind
        // the disk's end.
        let start = block << layout.block_shift;
        if start >= layout.size {
            continue;
        }
        let end = (start + layout.block_size()).min(layout.size);
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

/// Differencing disks in the directory of `path` whose parent it is: they are refused once its content or its size has changed.
///
/// # Errors
/// As [`open`](super::open), of the image itself. Files beside it that cannot be opened are left out.
pub fn children(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let image = Image::open(path, Access { read_only: true, direct: false })?;
    Ok(children_of(image.opened.headers.data_write_guid(), [path, path], path))
}

/// Disks beside these files whose parent has the data with this identity, without `except`.
fn children_of(identity: Uuid, beside: [&Path; 2], except: &Path) -> Vec<PathBuf> {
    images_beside(beside, except, |path| {
        let image = Image::open(path, Access { read_only: true, direct: false });
        image.is_ok_and(|image| {
            let locator = image.opened.metadata.locator.as_ref();
            locator.is_some_and(|locator| locator.accepts(identity))
        })
    })
}
