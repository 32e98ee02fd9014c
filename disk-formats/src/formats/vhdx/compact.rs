//! Compact: makes an image as small as its content allows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;

use super::edit::Editor;
use super::journal::DataGuid;
use super::layout::{Entry, Slot, State};
use super::region::Run;
use super::scan::{Scan, scan};
use super::spec::MIB;
use crate::contract::error::OpenError;
use crate::formats::copy::holes::copy_run;
use crate::formats::findings::Compacted;
use crate::host::store::{Store, last_nonzero};

/// Number of blocks whose entries are changed together.
const BATCH: usize = 64;
/// Maximum number of blocks that one pass over the BAT collects for moving, 16 bytes each.
const MOVES: usize = 1 << 20;

/// Free the empty blocks (all zeros; differencing disk: also blocks without a present sector) and the space that
/// trimmed blocks keep, move other blocks into the gaps, truncate the file, and deallocate the gaps that remain. A fixed disk keeps all its
/// blocks. The image is consistent after a power failure at any moment, and if `progress` stops the call. `progress` is called with
/// the number of blocks examined and the total number, and returns whether to continue. Children stay valid, because
/// the content of the disk is unchanged.
///
/// # Errors
/// [`OpenError::Invalid`] for a damaged image; the host's error, after which the image is consistent.
pub(crate) fn compact(
    store: Arc<dyn Store>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Compacted, OpenError> {
    let path = store.path().to_path_buf();
    let os = OpenError::os(&path, "cannot compact");
    let before = store.len().map_err(os)?;
    let mut editor = Editor::open(store)?;
    let done = match pack_down(&mut editor, progress) {
        Ok(done) => done,
        Err(error) => return Err(os(editor.roll_back(error))),
    };
    let after = editor.close_and_cut().map_err(os)?;
    Ok(Compacted { before, after, ..done })
}

fn pack_down(editor: &mut Editor, progress: impl FnMut(u64, u64) -> bool) -> io::Result<Compacted> {
    editor.start_log(DataGuid::Unchanged)?;
    let mut done = Compacted::default();
    // A fixed disk keeps its blocks, whatever they contain.
    let go_on = match editor.opened.metadata.parameters.leave_allocated {
        true => true,
        false => release(editor, &mut done.released, progress)?,
    };
    if go_on {
        release_bitmaps(editor)?;
        done.moved = pack(editor)?;
        editor.pack_bat()?;
        editor.unmap_gaps();
    }
    Ok(done)
}

/// Changes of entries: index, old entry, new entry.
type Batch = Vec<(u64, Entry, Entry)>;

/// Commit changes, then free the space of the old entries.
fn release_batch(editor: &mut Editor, batch: &mut Batch) -> io::Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    editor.set_entries(&batch.iter().map(|(index, _, to)| (*index, *to)).collect::<Vec<_>>())?;
    for (index, from, _) in batch.drain(..).filter(|(_, from, _)| from.holds_space()) {
        let len = editor.layout.slot_size(index);
        editor.space.free(Run { offset: from.offset(), len });
    }
    Ok(())
}

/// Free the empty blocks, counted in `released`. Returns whether to continue.
fn release(
    editor: &mut Editor,
    released: &mut u64,
    mut progress: impl FnMut(u64, u64) -> bool,
) -> io::Result<bool> {
    let (layout, total) = (editor.layout, editor.entries);
    let (mut batch, mut number, mut scan) = (Batch::new(), 0, Scan::new(&layout));
    while let Some(part) = scan.part(&*editor.store, &layout)? {
        for (index, entry) in part {
            number += 1;
            if let Some(to) = emptied(editor, index, entry)? {
                batch.push((index, entry, to));
                *released += 1;
            }
            if batch.len() == BATCH {
                release_batch(editor, &mut batch)?;
            }
            if !progress(number, total) {
                return release_batch(editor, &mut batch).map(|()| false);
            }
        }
    }
    release_batch(editor, &mut batch).map(|()| true)
}

/// The new entry of an empty block; `None` if the block is not empty.
fn emptied(editor: &Editor, index: u64, entry: Entry) -> io::Result<Option<Entry>> {
    let (store, layout) = (&*editor.store, &editor.layout);
    let Slot::Payload(block) = layout.slot(index) else { return Ok(None) };
    Ok(match entry.state() {
        // It reads from the parent, as before.
        State::PartiallyPresent if layout.has_parent => no_bits(editor, block)?.then_some(Entry::NOT_PRESENT),
        State::FullyPresent | State::PartiallyPresent => {
            let end = (entry.offset() + layout.block_size()).min(store.len()?);
            let zero = last_nonzero(store, entry.offset(), end)?.is_none();
            zero.then_some(if layout.has_parent { Entry::ZERO } else { Entry::NOT_PRESENT })
        }
        // A trimmed block that keeps space.
        State::Undefined | State::Unmapped if entry.holds_space() => Some(Entry::UNMAPPED),
        _ => None,
    })
}

/// Whether a partially present block has no present sector.
fn no_bits(editor: &Editor, block: u64) -> io::Result<bool> {
    let layout = &editor.layout;
    let entry = editor.entry(layout.bitmap_index(layout.chunk(block)))?;
    if !entry.present() {
        return Ok(false);
    }
    let mut bits = vec![0; (layout.bits_per_block() / 8) as usize];
    editor.store.read_at(&mut bits, entry.offset() + layout.bit(block << layout.block_shift) / 8)?;
    Ok(bits.iter().all(|byte| *byte == 0))
}

/// Free the bitmap blocks of chunks without partially present blocks.
fn release_bitmaps(editor: &mut Editor) -> io::Result<()> {
    let layout = editor.layout;
    // The entries of a chunk's payload blocks are before that of its bitmap block.
    let (mut needed, mut batch, mut scan) = (None, Batch::new(), Scan::new(&layout));
    while let Some(part) = scan.part(&*editor.store, &layout)? {
        for (index, entry) in part {
            match layout.slot(index) {
                Slot::Payload(block) if entry.state() == State::PartiallyPresent => {
                    needed = Some(layout.chunk(block));
                }
                Slot::Bitmap(chunk) if needed != Some(chunk) => {
                    batch.push((index, entry, Entry::NOT_PRESENT))
                }
                Slot::Payload(_) | Slot::Bitmap(_) => {}
            }
        }
        release_batch(editor, &mut batch)?;
    }
    Ok(())
}

/// Move blocks to lower offsets, the highest first. Returns the number of moved blocks.
fn pack(editor: &mut Editor) -> io::Result<u64> {
    let (mut moved, mut batch, mut limit) = (0, Batch::new(), u64::MAX);
    // Block sizes for which there was no gap. Space that is freed later has higher offsets, so there is no gap for
    // later blocks either.
    let mut full: Vec<u64> = Vec::new();
    loop {
        let highest = highest(editor, limit)?;
        for (from, index) in &highest {
            let len = editor.layout.slot_size(*index);
            if full.contains(&len) {
                continue;
            }
            let Some(to) = editor.space.take_below(len, *from) else {
                full.push(len);
                continue;
            };
            copy_run(&*editor.store, *from, to.offset, len, editor.may_unmap())?;
            let entry = editor.entry(*index)?;
            batch.push((*index, entry, entry.moved(to.offset)));
            moved += 1;
            if batch.len() == BATCH {
                release_batch(editor, &mut batch)?;
            }
        }
        release_batch(editor, &mut batch)?;
        // Bitmap blocks are 1 MiB; payload blocks may be, too.
        let all_full = full.contains(&MIB) && full.contains(&editor.layout.block_size());
        match highest.last() {
            Some((lowest, _)) if highest.len() == MOVES && !all_full => limit = *lowest,
            _ => return Ok(moved),
        }
    }
}

/// The highest blocks below `limit`, as offset and BAT index, in descending order: at most [`MOVES`].
fn highest(editor: &Editor, limit: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut highest = BinaryHeap::new();
    scan(&*editor.store, &editor.layout, |index, entry| {
        if entry.holds_space() && entry.offset() < limit {
            highest.push(Reverse((entry.offset(), index)));
        }
        if highest.len() > MOVES {
            highest.pop();
        }
    })?;
    // Sorted in ascending order of `Reverse`, so in descending order of the offsets.
    Ok(highest.into_sorted_vec().into_iter().map(|Reverse(place)| place).collect())
}
