//! Making an image as small as its content allows.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::bat::{Entry, State};
use super::edit::Editor;
use super::journal::Visible;
use super::layout::Slot;
use super::region::Run;
use super::spec::MIB;
use crate::store::{Store, copy_run, last_nonzero};
use crate::{Access, BackingFile, Compacted, OpenError};

/// Blocks whose entries change together.
const BATCH: usize = 64;

/// Release the blocks that hold nothing (zeros; of a differencing disk also blocks without a sector) and the room that trimmed
/// blocks keep, move others into the gaps, and cut the file. A power failure leaves a good image at every moment. `progress`
/// gets the blocks looked at and their number, and says whether to go on; stopping leaves a good image. Children are not
/// concerned: what the disk reads stays the same.
///
/// # Errors
/// [`OpenError::Unsupported`] for a fixed disk; the host's error.
pub fn compact(path: &Path, progress: impl FnMut(u64, u64) -> bool) -> Result<Compacted, OpenError> {
    compact_in(Arc::new(BackingFile::open(path, Access::default())?), progress)
}

pub(super) fn compact_in(
    store: Arc<dyn Store>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Compacted, OpenError> {
    let path = store.path().to_path_buf();
    let os = |source| OpenError::Os { path: path.clone(), action: "cannot compact", source };
    let before = store.len().map_err(os)?;
    let mut editor = Editor::open(store, Visible::Unchanged)?;
    if editor.opened.metadata.parameters.leave_allocated {
        editor.close().map_err(os)?;
        let reason = "a fixed disk cannot be compacted: convert it to a dynamic one".into();
        return Err(OpenError::Unsupported { path, reason });
    }
    let mut done = Compacted { before, ..Compacted::default() };
    let go_on;
    (done.released, go_on) = release(&mut editor, progress).map_err(os)?;
    if go_on {
        release_bitmaps(&mut editor).map_err(os)?;
        done.moved = pack(&mut editor).map_err(os)?;
        editor.pack_bat().map_err(os)?;
    }
    done.after = editor.close_and_cut().map_err(os)?;
    Ok(done)
}

/// Bytes of what an entry is for.
fn room(editor: &Editor, index: u64) -> u64 {
    match editor.layout.slot(index) {
        Slot::Payload(_) => editor.layout.block_size(),
        Slot::Bitmap(_) => MIB,
    }
}

/// Make changes durable, then give the room of the old entries back.
fn release_batch(editor: &mut Editor, batch: &mut Vec<(u64, Entry)>) -> io::Result<()> {
    let old: Vec<Run> = batch
        .iter()
        .filter_map(|(index, _)| {
            let entry = editor.table.get(index).filter(|entry| entry.holds_room())?;
            Some(Run { offset: entry.offset(), len: room(editor, *index) })
        })
        .collect();
    editor.set_entries(batch)?;
    old.into_iter().for_each(|run| editor.space.give(run));
    batch.clear();
    Ok(())
}

/// Take the blocks that hold nothing out of the table; how many, and whether to go on.
fn release(editor: &mut Editor, mut progress: impl FnMut(u64, u64) -> bool) -> io::Result<(u64, bool)> {
    let layout = editor.layout;
    let entries: Vec<(u64, Entry)> = editor.table.iter().map(|(index, entry)| (*index, *entry)).collect();
    let total = entries.len() as u64;
    let (mut released, mut batch, mut go_on) = (0, Vec::new(), true);
    for (number, (index, entry)) in entries.into_iter().enumerate() {
        let Slot::Payload(block) = layout.slot(index) else { continue };
        let empty = match entry.state() {
            // The parent's, as before.
            State::PartiallyPresent if layout.has_parent => {
                no_bits(editor, block)?.then_some(Entry::NOT_PRESENT)
            }
            State::FullyPresent | State::PartiallyPresent => {
                let end = (entry.offset() + layout.block_size()).min(editor.store.len()?);
                let zero = last_nonzero(&*editor.store, entry.offset(), end)?.is_none();
                zero.then_some(if layout.has_parent { Entry::ZERO } else { Entry::NOT_PRESENT })
            }
            // Room that a trimmed block keeps.
            State::Undefined | State::Unmapped if entry.holds_room() => Some(Entry::UNMAPPED),
            _ => None,
        };
        if let Some(to) = empty {
            batch.push((index, to));
            released += 1;
        }
        if batch.len() == BATCH {
            release_batch(editor, &mut batch)?;
        }
        go_on = progress(number as u64 + 1, total);
        if !go_on {
            break;
        }
    }
    release_batch(editor, &mut batch)?;
    Ok((released, go_on))
}

/// Whether a partially present block has no sector.
fn no_bits(editor: &Editor, block: u64) -> io::Result<bool> {
    let layout = &editor.layout;
    let index = layout.bitmap_index(layout.chunk(block));
    let Some(entry) = editor.table.get(&index).filter(|entry| entry.present()) else { return Ok(false) };
    let mut bits = vec![0; (layout.bits_per_block() / 8) as usize];
    editor.store.read_at(&mut bits, entry.offset() + layout.bit(block << layout.block_shift) / 8)?;
    Ok(bits.iter().all(|byte| *byte == 0))
}

/// Bitmap blocks that no partially present block needs.
fn release_bitmaps(editor: &mut Editor) -> io::Result<()> {
    let layout = editor.layout;
    let mut needed: Vec<u64> = Vec::new();
    for (index, entry) in &editor.table {
        if let (Slot::Payload(block), State::PartiallyPresent) = (layout.slot(*index), entry.state()) {
            needed.push(layout.chunk(block));
        }
    }
    needed.dedup();
    let idle = editor.table.keys().filter(|index| match layout.slot(**index) {
        Slot::Payload(_) => false,
        Slot::Bitmap(chunk) => needed.binary_search(&chunk).is_err(),
    });
    let mut batch: Vec<(u64, Entry)> = idle.map(|index| (*index, Entry::NOT_PRESENT)).collect();
    release_batch(editor, &mut batch)
}

/// Move blocks down, those at the end first; how many.
fn pack(editor: &mut Editor) -> io::Result<u64> {
    let mut by_place: BTreeMap<u64, u64> = editor
        .table
        .iter()
        .filter(|(_, entry)| entry.holds_room())
        .map(|(index, entry)| (entry.offset(), *index))
        .collect();
    let (mut moved, mut batch) = (0, Vec::new());
    while let Some((from, index)) = by_place.pop_last() {
        let len = room(editor, index);
        let Some(to) = editor.space.take_below(len, from) else { continue };
        copy_run(&*editor.store, from, to.offset, len)?;
        let entry = editor.table.get(&index).copied().unwrap_or_default();
        batch.push((index, entry.moved(to.offset)));
        moved += 1;
        if batch.len() == BATCH {
            release_batch(editor, &mut batch)?;
        }
    }
    release_batch(editor, &mut batch)?;
    Ok(moved)
}
