//! Merging a differencing disk into its parent, and changing its parent.
//!
//! After a power failure, or if the caller stops the merge, the child's data are unchanged, and another merge continues:
//! before data are copied, the child records the data write GUID that the parent is about to get.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::chain::{self, Image, check_sectors};
use super::check::check;
use super::create::locator;
use super::edit::Editor;
use super::journal::{DataGuid, Sectors};
use super::layout::{Entry, Layout, Slot, State};
use super::opened::Opened;
use super::scan::Scan;
use super::spec::item;
use crate::contract::error::{BadField, OpenError};
use crate::formats::chain::{Member, refuse_loop, require_differencing};
use crate::formats::copy::overlay::Overlaid;
use crate::formats::findings::{End, Severity};
use crate::formats::guid;
use crate::formats::merge::{ChainTools, MergeError, commit_into_parent};
use crate::formats::parents::ParentRules;
use crate::formats::sparse::{Blocks, SparseDisk};
use crate::host::backing::{Access, BackingFile};
use crate::host::store::Store;
use crate::map::block_map::DEFAULT_MEMORY;
use crate::map::format::Format;

/// The action that errors of the host name.
const MERGE: &str = "cannot merge";

impl ChainTools for Image {
    /// Replays the log of the child, if it has one.
    fn open_to_merge(path: &Path) -> Result<Self, OpenError> {
        refuse_damaged(path)?;
        Self::open(path, Access::default())
    }

    fn commit(
        self,
        parent: Self,
        rules: &ParentRules,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Overlaid, MergeError> {
        let read_only = Access::READ_ONLY;
        let [child, path] = [&self, &parent].map(|image| image.file.path().to_path_buf());
        let (own, now) = (self.opened.layout.size, parent.opened.headers.data_write_guid());
        drop((parent, self));
        let next = guid::random().map_err(OpenError::os(&child, MERGE))?;
        announce(&child, now, next)?;
        let image = Self::open(&child, read_only)?;
        let parent = Self::open(&path, Access::default())?;
        let below = chain::open_chain(parent, Access::default(), &rules.below(&child), DEFAULT_MEMORY)?
            .with_identity(next);
        let alone = || Ok(chain::alone(&child, read_only)?);
        let zeros = zeros(&image.opened).map(|runs| runs.map_err(OpenError::os(&child, MERGE)));
        let copied = commit_into_parent(&image.file, own, alone, zeros, &below, progress)?;
        below.close().map_err(io::Error::other).map_err(OpenError::os(&path, MERGE))?;
        Ok(copied)
    }

    fn open_unchanged(self, rules: &ParentRules) -> Result<SparseDisk<impl Blocks>, OpenError> {
        let known = self.opened.headers.data_write_guid();
        Ok(chain::open_chain(self, Access::default(), rules, DEFAULT_MEMORY)?.with_identity(known))
    }

    fn open_to_read(path: &Path, rules: &ParentRules) -> Result<Arc<dyn Format>, OpenError> {
        chain::open(path, Access::READ_ONLY, rules)
    }

    /// Records the parent's data write GUID and paths.
    fn note_parent(child: &Path, parent: &Path, rules: &ParentRules) -> Result<(), OpenError> {
        let base = Self::open(parent, Access::READ_ONLY).map_err(|error| Self::as_parent(parent, error))?;
        let linkage = base.linkage()?;
        {
            let image = Self::open(child, Access::READ_ONLY)?;
            require_differencing(&image)?;
            check_sectors(&image, &base).map_err(|bad| bad.of(child))?;
        }
        refuse_loop(child, base, rules)?;
        let os = OpenError::os(child, "cannot write the parent's location");
        let locator = locator(child, parent, linkage).and_then(|locator| locator.encode()).map_err(os)?;
        let store: Arc<dyn Store> = Arc::new(BackingFile::open(child, Access::default())?);
        let editor = Editor::open(store)?;
        let mut sectors = Sectors::default();
        let metadata = &editor.opened.metadata;
        metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &locator).map_err(os)?;
        editor.commit_alone(sectors, DataGuid::Unchanged).map_err(os)
    }
}

fn refuse_damaged(child: &Path) -> Result<(), OpenError> {
    let file = Arc::new(BackingFile::open(child, Access::READ_ONLY)?);
    let report = check(file, false, End::Stays).map_err(OpenError::os(child, "cannot check"))?;
    match report.findings.into_iter().find(|finding| finding.severity == Severity::Damage) {
        None => Ok(()),
        Some(finding) => Err(BadField::new(finding.field, finding.value, finding.expected).of(child)),
    }
}

/// Record in the child the current data write GUID of the parent and the next one.
fn announce(child: &Path, now: Uuid, next: Uuid) -> Result<(), OpenError> {
    let store: Arc<dyn Store> = Arc::new(BackingFile::open(child, Access::default())?);
    let editor = Editor::open(store)?;
    let failed = OpenError::os(child, MERGE);
    let metadata = &editor.opened.metadata;
    let Some(locator) = &metadata.locator else { return Ok(()) };
    let item = locator.linked(now, Some(next)).encode().map_err(failed)?;
    let mut sectors = Sectors::default();
    metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &item).map_err(failed)?;
    editor.commit_alone(sectors, DataGuid::Unchanged).map_err(failed)
}

/// The ranges of blocks that are zeros or were trimmed, where the parent is not read. In batches of at most 32,768
/// ranges, because every other block of 64 TiB may be one.
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
        // The BAT of a differencing disk has entries up to the end of a chunk. Other programs may have written entries
        // beyond the disk's end.
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
