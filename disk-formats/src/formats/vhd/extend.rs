//! Makes the BAT larger in its place: what lies behind it moves to the end of the file.
//!
//! Each step is on stable storage before the next one begins:
//!
//! 1. Parent locators in the way: copies at the end of the file, then the header that refers to them.
//! 2. The footer, behind the space for the blocks that will move. If XenServer's batmap is in the way, this footer has another creator, by
//!    which XenServer ignores the batmap.
//! 3. The copies of the blocks.
//! 4. Their entries. From now on nothing refers to the space behind the table.
//! 5. The new entries there, all unallocated.
//! 6. The header with the number of entries, and the footer with the new size ([`Editor::switch`]).

use std::io;

use zerocopy::FromBytes;

use super::alloc::end_of;
use super::batmap::{self, Batmap};
use super::edit::{Editor, Sparse};
use super::footer;
use super::layout::{Layout, locator_areas};
use super::locator::{MAX_PATH, NewLocator};
use super::spec::{FOOTER_SIZE, Footer, HEADER_SIZE, SECTOR, UNALLOCATED};
use crate::formats::copy::holes::copy_run;
use crate::host::store::{Store, last_nonzero_of};

/// Bytes of new entries that are written at once.
const CHUNK: u64 = 1 << 20;

/// A range of the file.
type Range = (u64, u64);

fn overlap(one: Range, other: Range) -> bool {
    one.0 < one.1 && other.0 < other.1 && one.0 < other.1 && other.0 < one.1
}

/// Make the table large enough for `entries`, and change the size of the disk to `size`. Returns `false`, and leaves the table as it is, if
/// the space behind it cannot be freed: the header or unknown data are there, or BAT entries do not reach the end of the file.
pub(super) fn extend_table(editor: &mut Editor<'_>, entries: u32, size: u64) -> io::Result<bool> {
    let Some(mut plan) = Plan::new(editor, (entries, size), Vec::new())? else { return Ok(false) };
    if plan.locators {
        let Some(left) = move_locators(editor, plan.added.1)? else { return Ok(false) };
        match Plan::new(editor, (entries, size), left)? {
            Some(again) if !again.locators => plan = again,
            _ => return Ok(false),
        }
    }
    plan.move_blocks(editor)?;
    plan.clear(editor)?;
    let Some(mut header) = editor.sparse.as_ref().map(|sparse| sparse.header) else { return Ok(false) };
    header.max_table_entries = entries.into();
    footer::set_size(&mut editor.footer, size);
    editor.switch_by(plan.end, header, None, None)?;
    Ok(true)
}

/// How the table can grow in its place.
struct Plan {
    /// The part of the table to be added.
    added: Range,
    /// Blocks in it, and their new entries.
    moves: Vec<(usize, u32)>,
    /// Whether parent locators are in it.
    locators: bool,
    /// Whether XenServer's batmap is in it.
    batmap: bool,
    /// Ranges that nothing uses as soon as the blocks have moved. Behind the table they are zeroed, so that the next extension does not take
    /// them for unknown data.
    dead: Vec<Range>,
    /// Where everything ends when the blocks have moved: the place of the footer.
    end: u64,
}

impl Plan {
    /// `left`: ranges that nothing uses, although they may have data.
    fn new(editor: &Editor<'_>, (entries, size): (u32, u64), left: Vec<Range>) -> io::Result<Option<Self>> {
        let Some(Sparse { header, layout, table }) = &editor.sparse else { return Ok(None) };
        let (store, len) = (editor.store, editor.store.len()?);
        let added = (layout.bat + Layout::bat_bytes(layout.entries), layout.bat + Layout::bat_bytes(entries));
        if overlap(added, (layout.header, layout.header + HEADER_SIZE as u64)) {
            return Ok(None);
        }
        let areas: Vec<Range> =
            locator_areas(editor.subformat, header, len).map(|(_, at, _, space)| (at, at + space)).collect();
        let batmap = Batmap::find(store, layout, len)?;
        let map: Vec<Range> = batmap.iter().flat_map(Batmap::areas).collect();

        let blocks = || table.iter().enumerate().filter(|(_, entry)| **entry != UNALLOCATED);
        let ranges = || blocks().map(|(_, entry)| layout.block_range(*entry));
        let mut moving: Vec<(u32, usize)> = blocks()
            .filter(|(_, entry)| overlap(added, layout.block_range(**entry)))
            .map(|(block, entry)| (*entry, block))
            .collect();
        moving.sort_unstable();
        let footer = editor.trailing.map(|at| (at, at + FOOTER_SIZE as u64));
        let others = || areas.iter().chain(&map).chain(&left).copied().chain(footer).chain(layout.metadata());
        let mut known: Vec<Range> = ranges().chain(others()).filter(|range| overlap(added, *range)).collect();
        // What ends the last gap.
        let next = ranges().chain(others()).map(|(start, _)| start).filter(|start| *start >= added.1).min();
        known.extend(next.map(|start| (start, start)));
        if has_unknown(store, added, known, layout.least_hole())? {
            return Ok(None);
        }

        let new = Layout { size, entries, ..*layout };
        let used = end_of(table, (editor.subformat, header), layout, batmap.as_ref(), len).max(added.1);
        let mut at = new.footer_place(used, editor.trailing, editor.aligns_footer).next_multiple_of(SECTOR);
        let mut moves = Vec::new();
        for (_, block) in &moving {
            let start = new.next_block(at);
            let place = u32::try_from(start / SECTOR).ok().filter(|entry| *entry != UNALLOCATED);
            let Some(place) = place else { return Ok(None) };
            moves.push((*block, place));
            at = new.footer_place(new.block_range(place).1, None, editor.aligns_footer);
        }
        let batmap = map.iter().any(|area| overlap(added, *area));
        let locators = areas.iter().any(|area| overlap(added, *area));
        let mut dead = left;
        dead.extend(map.into_iter().filter(|_| batmap));
        let still = |range: Range| ranges().chain(areas.iter().copied()).any(|used| overlap(range, used));
        dead.retain(|range| !still(*range));
        dead.extend(moving.last().map(|(entry, _)| layout.block_range(*entry)));
        Ok(Some(Self { added, moves, locators, batmap, dead, end: at }))
    }

    /// Free the added part of the table.
    fn move_blocks(&self, editor: &mut Editor<'_>) -> io::Result<()> {
        let (store, len, end, footer) = (editor.store, editor.store.len()?, editor.end()?, editor.footer);
        // The header will be put before the footer, and the footer then has its place.
        let footer_at = self.end + HEADER_SIZE as u64;
        if let Err(error) = store.reserve(end, footer_at + FOOTER_SIZE as u64) {
            let _ = store.undo_growth(len);
            return Err(error);
        }
        if self.batmap {
            batmap::disown(&mut editor.footer);
        }
        if let Err(error) = self.copy_blocks(editor, footer_at) {
            // No entry refers to the copies.
            editor.footer = footer;
            let _ = editor.put_footer(end);
            return Err(error);
        }
        let Some(sparse) = &mut editor.sparse else { return Ok(()) };
        for (block, place) in &self.moves {
            if let Some(entry) = sparse.table.get_mut(*block) {
                *entry = *place;
            }
        }
        let blocks: Vec<usize> = self.moves.iter().map(|(block, _)| *block).collect();
        sparse.write_entries(store, &blocks)?;
        store.sync()
    }

    fn copy_blocks(&self, editor: &mut Editor<'_>, footer_at: u64) -> io::Result<()> {
        editor.put_footer(footer_at)?;
        let (store, Some(Sparse { layout, table, .. })) = (editor.store, &editor.sparse) else {
            return Ok(());
        };
        for (block, place) in &self.moves {
            let Some(entry) = table.get(*block) else { continue };
            let (from, to) = layout.block_range(*entry);
            copy_run(store, from, Layout::bitmap_at(*place), to - from, true)?;
        }
        store.sync()
    }

    /// Write the new entries.
    fn clear(&self, editor: &Editor<'_>) -> io::Result<()> {
        let (store, Some(sparse)) = (editor.store, &editor.sparse) else { return Ok(()) };
        if let Some(last) = sparse.table.len().checked_sub(1) {
            // Of its sector, all entries behind it.
            sparse.write_entries(store, &[last])?;
        }
        let empty = vec![0xFF; CHUNK as usize];
        let mut at = sparse.layout.bat + Layout::bat_bytes(sparse.layout.used_entries());
        while at < self.added.1 {
            let part = (self.added.1 - at).min(CHUNK);
            store.write_at(empty.get(..part as usize).unwrap_or_default(), at)?;
            at += part;
        }
        for (start, end) in &self.dead {
            let start = self.added.1.max(*start);
            if start < *end {
                store.write_zeroes(start, end - start, true).map_err(io::Error::from)?;
            }
        }
        store.sync()
    }
}

/// Whether there are data in `added` outside of the `known` ranges, in a gap that is smaller than a block ([`Layout::least_hole`]): they may be
/// another program's. An old footer is none of them, and neither are entries of an extension that was interrupted before step 6.
fn has_unknown(store: &dyn Store, added: Range, mut known: Vec<Range>, least: u64) -> io::Result<bool> {
    known.sort_unstable();
    let is_own = |at: u64| {
        let mut bytes = [0; FOOTER_SIZE];
        let is_footer =
            |bytes| Footer::read_from_bytes(bytes).is_ok_and(|footer| footer::validate(&footer, at).is_ok());
        store.read_at(&mut bytes, at).is_ok() && (bytes == [0xFF; FOOTER_SIZE] || is_footer(&bytes))
    };
    let mut at = added.0;
    for (start, end) in known {
        let gap = (at, start.min(added.1));
        if gap.0 < gap.1
            && start - at < least
            && last_nonzero_of(store, gap.0, gap.1, |at| !is_own(at))?.is_some()
        {
            return Ok(true);
        }
        at = at.max(end);
    }
    Ok(false)
}

/// Move all parent locators to the end of the file, at `least` or behind it. Returns the sectors where they were; `None` if a path is too long
/// to be one.
fn move_locators(editor: &mut Editor<'_>, least: u64) -> io::Result<Option<Vec<Range>>> {
    let Some(header) = editor.sparse.as_ref().map(|sparse| sparse.header) else { return Ok(None) };
    let (store, len) = (editor.store, editor.store.len()?);
    let (mut locators, mut left) = (Vec::new(), Vec::new());
    for (slot, at, bytes, _) in locator_areas(editor.subformat, &header, len) {
        let Some(old) = header.parent_locators.get(slot).filter(|_| bytes <= MAX_PATH) else {
            return Ok(None);
        };
        let mut path = vec![0; bytes as usize];
        store.read_at(&mut path, at)?;
        locators.push(NewLocator { platform_code: old.platform_code, path });
        left.push((at / SECTOR * SECTOR, (at + bytes).next_multiple_of(SECTOR)));
    }
    editor.switch_by(len.next_multiple_of(SECTOR).max(least), header, None, Some(&locators))?;
    Ok(Some(left))
}

#[cfg(test)]
mod tests;
