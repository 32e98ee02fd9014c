//! Compact: makes a dynamic or differencing image as small as its content allows.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use zerocopy::big_endian::U32;

use super::alloc::end_of;
use super::batmap::{self, Batmap};
use super::edit::{Editor, Sparse};
use super::footer::Subformat;
use super::layout::{Layout, locator_areas};
use super::spec::{SECTOR, UNALLOCATED};
use crate::contract::error::OpenError;
use crate::formats::copy::holes::copy_run;
use crate::formats::findings::Compacted;
use crate::host::store::{Store, last_nonzero};

/// Number of blocks that are moved between two flushes.
const BATCH: usize = 64;

/// Free the empty blocks (dynamic disk: all zeros; differencing disk: no sector present), move other blocks into the
/// gaps, and truncate the file. The image is consistent after a power failure at any moment, and if `progress` stops
/// the call. `progress` is called with the number of blocks examined and the total number, and returns whether to
/// continue.
///
/// # Errors
/// [`OpenError::Unsupported`] for a fixed disk; the host's error.
pub(crate) fn compact(
    store: Arc<dyn Store>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Compacted, OpenError> {
    compact_in(&*store, progress)
}

pub(super) fn compact_in(
    store: &dyn Store,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> Result<Compacted, OpenError> {
    let path = store.path();
    let os = OpenError::os(path, "cannot compact");
    let mut editor = Editor::open(store)?;
    let subformat = editor.subformat;
    let differencing = subformat == Subformat::Differencing;
    let Some(sparse) = &editor.sparse else {
        let reason = "a fixed disk cannot be compacted: convert it to a dynamic one";
        return Err(OpenError::unsupported(path, reason));
    };
    let mut done = Compacted { before: store.len().map_err(os)?, ..Compacted::default() };
    let head = head(&editor, done.before).map_err(os)?;
    let empty = empty_blocks(store, sparse, differencing, editor.size, &mut progress).map_err(os)?;
    done.released = empty.len() as u64;
    let creator = release(&mut editor, &empty).map_err(os)?;
    if let Some(sparse) = &mut editor.sparse {
        let total = sparse.table.len() as u64;
        done.moved = pack(store, subformat, sparse, head, || progress(total, total)).map_err(os)?;
    }
    (editor.footer.creator_application, editor.footer.creator_version) = creator;
    let end = editor.end().map_err(os)?.max(head.1);
    editor.put_footer(end).map_err(os)?;
    done.after = store.len().map_err(os)?;
    Ok(done)
}

/// The range between the metadata and the first block, or the footer if there are no blocks, if it is smaller than a
/// block: padding, or data of another program in a place that this program does not know. It stays.
fn head(editor: &Editor<'_>, len: u64) -> io::Result<(u64, u64)> {
    let Some(Sparse { header, layout, table, .. }) = &editor.sparse else { return Ok((0, 0)) };
    let batmap = Batmap::find(editor.store, layout, len)?;
    let start = end_of(&[], (editor.subformat, header), layout, batmap.as_ref(), len);
    let first = table.iter().filter(|entry| **entry != UNALLOCATED).min().copied().map(Layout::bitmap_at);
    let end = match first {
        Some(first) => first,
        None => editor.end()?,
    };
    Ok(if end > start && end - start < layout.least_hole() { (start, end) } else { (0, 0) })
}

/// The empty blocks.
fn empty_blocks(
    store: &dyn Store,
    sparse: &Sparse,
    differencing: bool,
    size: u64,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> io::Result<Vec<usize>> {
    let layout = sparse.layout;
    let (total, len) = (sparse.table.len() as u64, store.len()?);
    let mut empty = Vec::new();
    for (block, entry) in sparse.table.iter().enumerate() {
        if *entry != UNALLOCATED {
            let start = (block as u64) << layout.block_shift;
            let data = layout.data_at(*entry);
            let (from, to) = match differencing {
                true => (data - layout.bitmap, data),
                false => (data, data + layout.block_size().min(size - start)),
            };
            if last_nonzero(store, from.min(len), to.min(len))?.is_none() {
                empty.push(block);
            }
        }
        if !progress(block as u64 + 1, total) {
            break;
        }
    }
    Ok(empty)
}

/// Remove the entries of these blocks from the BAT, and their bits from a batmap. Returns the creator of the image and
/// its version. If there is a batmap, the footer has another creator until the caller writes it, so that at every
/// moment the batmap is right or ignored.
fn release(editor: &mut Editor<'_>, blocks: &[usize]) -> io::Result<([u8; 4], U32)> {
    let creator = (editor.footer.creator_application, editor.footer.creator_version);
    let (store, len) = (editor.store, editor.store.len()?);
    let batmap = editor.sparse.as_ref().map(|sparse| Batmap::find(store, &sparse.layout, len)).transpose()?;
    if let Some(mut batmap) = batmap.flatten().filter(|_| !blocks.is_empty()) {
        batmap::disown(&mut editor.footer);
        let end = editor.end()?;
        editor.put_footer(end)?;
        let blocks: Vec<u32> = blocks.iter().map(|block| *block as u32).collect();
        batmap.clear(store, &blocks)?;
    }
    let Some(sparse) = &mut editor.sparse else { return Ok(creator) };
    for block in blocks {
        if let Some(entry) = sparse.table.get_mut(*block) {
            *entry = UNALLOCATED;
        }
    }
    sparse.write_entries(store, blocks)?;
    store.sync()?;
    Ok(creator)
}

/// Move the last blocks of the file into the first gaps that fit.
fn pack(
    store: &dyn Store,
    subformat: Subformat,
    sparse: &mut Sparse,
    head: (u64, u64),
    mut go_on: impl FnMut() -> bool,
) -> io::Result<u64> {
    let layout = sparse.layout;
    let mut places = VecDeque::from(free_places(store, subformat, sparse, head)?);
    let mut blocks: Vec<(u32, usize)> = sparse
        .table
        .iter()
        .enumerate()
        .filter(|(_, entry)| **entry != UNALLOCATED)
        .map(|(block, entry)| (*entry, block))
        .collect();
    blocks.sort_unstable();
    let mut moved = 0;
    loop {
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && go_on()
            && let (Some((entry, block)), Some(place)) = (blocks.last().copied(), places.front().copied())
            && place < entry
        {
            places.pop_front();
            blocks.pop();
            let (from, end) = layout.block_range(entry);
            if store.len()? < end {
                // A truncated block: its missing sectors are zeros.
                store.set_size(end)?;
            }
            copy_run(store, from, u64::from(place) * SECTOR, end - from, true)?;
            batch.push((block, place));
        }
        if batch.is_empty() {
            return Ok(moved);
        }
        store.sync()?;
        for (block, place) in &batch {
            if let Some(entry) = sparse.table.get_mut(*block) {
                *entry = *place;
            }
        }
        let changed: Vec<usize> = batch.iter().map(|(block, _)| *block).collect();
        sparse.write_entries(store, &changed)?;
        store.sync()?;
        moved += batch.len() as u64;
    }
}

/// Gaps between used ranges that can hold a block, as BAT entries in ascending order.
fn free_places(
    store: &dyn Store,
    subformat: Subformat,
    sparse: &Sparse,
    head: (u64, u64),
) -> io::Result<Vec<u32>> {
    let (layout, len) = (sparse.layout, store.len()?);
    let areas = locator_areas(subformat, &sparse.header, len).map(|(_, at, _, space)| (at, at + space));
    let batmap = Batmap::find(store, &layout, len)?;
    let areas = areas.chain(batmap.iter().flat_map(Batmap::areas)).chain([head]);
    let blocks =
        sparse.table.iter().filter(|entry| **entry != UNALLOCATED).map(|entry| layout.block_range(*entry));
    let mut used: Vec<(u64, u64)> = layout.metadata().into_iter().chain(areas).chain(blocks).collect();
    used.sort_unstable();
    let alignment = layout.alignment();
    let (mut at, mut places) = (0, Vec::new());
    for (start, end) in used {
        loop {
            let data = (at + layout.bitmap).next_multiple_of(alignment);
            if data + layout.block_size() > start {
                break;
            }
            places.extend(u32::try_from((data - layout.bitmap) / SECTOR));
            at = data + layout.block_size();
        }
        at = at.max(end);
    }
    Ok(places)
}
