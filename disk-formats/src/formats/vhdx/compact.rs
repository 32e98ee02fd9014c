//! Making an image as small as its content allows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;

use super::bat::{Entry, State};
use super::edit::Editor;
use super::journal::Visible;
use super::layout::Slot;
use super::region::Run;
use super::scan::{Scan, scan};
use super::spec::MIB;
use crate::error::OpenError;
use crate::host::store::{Store, copy_run, last_nonzero};
use crate::image::findings::Compacted;

/// Blocks whose entries change together.
const BATCH: usize = 64;
/// Blocks that are looked at in a pass over the table when they are moved, 16 bytes each.
const MOVES: usize = 1 << 20;

/// Release the blocks that hold nothing (zeros; of a differencing disk also blocks without a sector) and the space that
/// trimmed blocks hold, move others into the gaps, and cut the file. A fixed disk keeps all of its blocks. A power
/// failure leaves a good image at every moment. `progress` gets the blocks looked at and their number, and says whether
/// to go on; stopping leaves a good image. Children are not concerned: what the disk reads stays the same.
///
/// # Errors
/// [`OpenError::Invalid`] for a damaged image; the host's error, after which the image is good.
pub(crate) fn compact(
    store: Arc<dyn Store>,
    progress: impl FnMut(u64, u64) -> bool,
) -> Result<Compacted, OpenError> {
    let path = store.path().to_path_buf();
    let os = |source| OpenError::Os { path: path.clone(), action: "cannot compact", source };
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
    editor.begin(Visible::Unchanged)?;
    let mut done = Compacted::default();
    // A fixed disk keeps its blocks, whatever they hold.
    let go_on = match editor.opened.metadata.parameters.leave_allocated {
        true => true,
        false => release(editor, &mut done.released, progress)?,
    };
    if go_on {
        release_bitmaps(editor)?;
        done.moved = pack(editor)?;
        editor.pack_bat()?;
    }
    Ok(done)
}

/// Bytes of the block of an entry.
fn size_of_slot(editor: &Editor, index: u64) -> u64 {
    match editor.layout.slot(index) {
        Slot::Payload(_) => editor.layout.block_size(),
        Slot::Bitmap(_) => MIB,
    }
}

/// Entries to be changed: each with what it was.
type Batch = Vec<(u64, Entry, Entry)>;

/// Commit changes, then free the space of the old entries.
fn release_batch(editor: &mut Editor, batch: &mut Batch) -> io::Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    editor.set_entries(&batch.iter().map(|(index, _, to)| (*index, *to)).collect::<Vec<_>>())?;
    for (index, from, _) in batch.drain(..).filter(|(_, from, _)| from.holds_space()) {
        let len = size_of_slot(editor, index);
        editor.space.free(Run { offset: from.offset(), len });
    }
    Ok(())
}

/// Take the blocks that hold nothing out of the table, counted in `released`; whether to go on.
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

/// What the entry of a block that holds nothing becomes.
fn emptied(editor: &Editor, index: u64, entry: Entry) -> io::Result<Option<Entry>> {
    let (store, layout) = (&*editor.store, &editor.layout);
    let Slot::Payload(block) = layout.slot(index) else { return Ok(None) };
    Ok(match entry.state() {
        // The parent's, as before.
        State::PartiallyPresent if layout.has_parent => no_bits(editor, block)?.then_some(Entry::NOT_PRESENT),
        State::FullyPresent | State::PartiallyPresent => {
            let end = (entry.offset() + layout.block_size()).min(store.len()?);
            let zero = last_nonzero(store, entry.offset(), end)?.is_none();
            zero.then_some(if layout.has_parent { Entry::ZERO } else { Entry::NOT_PRESENT })
        }
        // Space that a trimmed block holds.
        State::Undefined | State::Unmapped if entry.holds_space() => Some(Entry::UNMAPPED),
        _ => None,
    })
}

/// Whether a partially present block has no sector.
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

/// Bitmap blocks that no partially present block needs.
fn release_bitmaps(editor: &mut Editor) -> io::Result<()> {
    let layout = editor.layout;
    // The entries of a chunk's blocks come before that of its bitmap block.
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

/// Move blocks down, those at the end first; how many.
fn pack(editor: &mut Editor) -> io::Result<u64> {
    let (mut moved, mut batch, mut limit) = (0, Batch::new(), u64::MAX);
    // Lengths for which there was no gap. What is freed later lies further up, so there is none for the blocks that follow.
    let mut full: Vec<u64> = Vec::new();
    loop {
        let highest = highest(editor, limit)?;
        for (from, index) in &highest {
            let len = size_of_slot(editor, *index);
            if full.contains(&len) {
                continue;
            }
            let Some(to) = editor.space.take_below(len, *from) else {
                full.push(len);
                continue;
            };
            copy_run(&*editor.store, *from, to.offset, len)?;
            let entry = editor.entry(*index)?;
            batch.push((*index, entry, entry.moved(to.offset)));
            moved += 1;
            if batch.len() == BATCH {
                release_batch(editor, &mut batch)?;
            }
        }
        release_batch(editor, &mut batch)?;
        // Bitmap blocks have a MiB, as may the others.
        let all_full = full.contains(&MIB) && full.contains(&editor.layout.block_size());
        match highest.last() {
            Some((lowest, _)) if highest.len() == MOVES && !all_full => limit = *lowest,
            _ => return Ok(moved),
        }
    }
}

/// The places below `limit` where blocks are, with the index of each, the highest first: as many as are moved in a pass.
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
    // Reversed twice.
    Ok(highest.into_sorted_vec().into_iter().map(|Reverse(place)| place).collect())
}
