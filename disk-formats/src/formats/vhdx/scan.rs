//! Reads a BAT in parts. The BAT of a disk of 64 TiB has up to 67 million entries, which are never in memory at once.

use std::io;
use std::ops::Range;

use super::layer::read_bat;
use super::layout::{ENTRY, Entry, Layout, Slot, State};
use super::opened::Opened;
use super::region::Run;
use super::space::{MAX_FILE, Space};
use super::spec::MIB;
use crate::contract::error::{BadField, ReadError};
use crate::host::store::Store;

/// Number of entries that are read at once.
const PART: u64 = 1 << 16;

/// Reads a BAT from its start to its end.
pub(super) struct Scan {
    /// Indices that are left to read.
    left: Range<u64>,
}

impl Scan {
    /// All entries that the disk needs.
    pub(super) fn new(layout: &Layout) -> Self {
        Self { left: 0..layout.entries() }
    }

    /// The next entries that are not 0, with their indices: at most 65,536, possibly none. `None` at the end. Skips
    /// parts that are holes of the file.
    pub(super) fn part(
        &mut self,
        store: &dyn Store,
        layout: &Layout,
    ) -> io::Result<Option<Vec<(u64, Entry)>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let at = layout.bat.offset + self.left.start * ENTRY;
        let data = store.next_data(at)?.max(at);
        self.left.start = self.left.start.max((data - layout.bat.offset) / ENTRY).min(self.left.end);
        let first = self.left.start;
        self.left.start = (first + PART).min(self.left.end);
        used(store, layout, first..self.left.start).map(Some)
    }
}

/// The entries with these indices that are not 0.
fn used(store: &dyn Store, layout: &Layout, indices: Range<u64>) -> io::Result<Vec<(u64, Entry)>> {
    let entries = read_bat(store, layout, indices.start, indices.end - indices.start)?;
    Ok(indices.zip(entries).filter(|(_, entry)| *entry != Entry::NOT_PRESENT).collect())
}

/// Call `visit` for each entry that is not 0, in the order of the indices.
pub(super) fn scan(store: &dyn Store, layout: &Layout, mut visit: impl FnMut(u64, Entry)) -> io::Result<()> {
    let mut scan = Scan::new(layout);
    while let Some(part) = scan.part(store, layout)? {
        part.into_iter().for_each(|(index, entry)| visit(index, entry));
    }
    Ok(())
}

/// Call `visit` for each entry that is not 0, from the last index down to `first`, until it returns a result.
pub(super) fn find_back<T>(
    store: &dyn Store,
    layout: &Layout,
    first: u64,
    mut visit: impl FnMut(u64, Entry) -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let mut end = layout.entries();
    while end > first {
        let start = end.saturating_sub(PART).max(first);
        if store.next_data(layout.bat.offset + start * ENTRY)? < layout.bat.offset + end * ENTRY {
            for (index, entry) in used(store, layout, start..end)?.into_iter().rev() {
                if let Some(found) = visit(index, entry)? {
                    return Ok(Some(found));
                }
            }
        }
        end = start;
    }
    Ok(None)
}

/// The space that the structures of a file of `len` bytes use, without the blocks. The error for a file that is too
/// large states `limit`.
pub(super) fn fixed_space(image: &Opened, len: u64, limit: &str) -> Result<Space, BadField> {
    if len > MAX_FILE {
        return Err(BadField::new("file size", format!("{len} bytes"), limit));
    }
    let mut space = Space::new(len.next_multiple_of(MIB));
    for run in image.fixed_runs() {
        // These were checked not to overlap.
        space.mark(run);
    }
    Ok(space)
}

/// The used space of a file, and the number of BAT entries that are not 0; or the first defect. Arguments as for
/// [`fixed_space`].
pub(super) fn used_space(image: &Opened, len: u64, limit: &str) -> Result<(Space, u64), ReadError> {
    let mut space = fixed_space(image, len, limit)?;
    let repairable = |bad: BadField| BadField {
        expected: format!(
            "{} (`image check --repair` clears such entries: the data of their blocks are lost)",
            bad.expected
        ),
        ..bad
    };
    let (mut entries, mut refused) = (0, None);
    scan(&*image.store, &image.layout, |index, entry| {
        entries += 1;
        if refused.is_none() {
            refused = mark(&mut space, &image.layout, index, entry, len).map(repairable);
        }
    })?;
    match refused {
        Some(bad) => Err(bad.into()),
        None => Ok((space, entries)),
    }
}

/// Mark the space that an entry uses. Returns the defect of an invalid entry.
pub(super) fn mark(
    space: &mut Space,
    layout: &Layout,
    index: u64,
    entry: Entry,
    len: u64,
) -> Option<BadField> {
    let slot = layout.slot(index);
    let (name, of) = match slot {
        Slot::Payload(block) => ("BAT entry", format!("block {block}")),
        Slot::Bitmap(chunk) => ("BAT entry", format!("the bitmap block of chunk {chunk}")),
    };
    let bad = |expected: String| Some(BadField::new(name, format!("{:#x} of {of}", entry.0), expected));
    let last = matches!(slot, Slot::Payload(block) if block + 1 == layout.blocks());
    if matches!(entry.state(), State::Reserved(_)) {
        return bad("a state that is not reserved".into());
    }
    if let Slot::Bitmap(_) = slot {
        let state = entry.state();
        if !layout.has_parent && state != State::NotPresent {
            return bad("0, as a disk without a parent has no bitmaps".into());
        }
        if !entry.present() {
            return match state {
                State::NotPresent => None,
                _ => bad("state 0 or 6".into()),
            };
        }
    }
    if !entry.holds_space() {
        return None;
    }
    if entry.offset() >= len {
        return bad(format!("an offset inside the file of {} MiB", len / MIB));
    }
    let run = Run { offset: entry.offset(), len: layout.slot_size(index) };
    if last && run.end() > len {
        // Some programs leave the last block truncated. The missing part still belongs to it.
        space.grow(run.end());
    } else if run.end() > len {
        return bad(format!("a block inside the file of {} MiB", len / MIB));
    }
    if !space.mark(run) {
        return bad("space that nothing else uses".into());
    }
    None
}
