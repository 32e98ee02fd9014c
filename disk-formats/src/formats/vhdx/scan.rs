//! Reading a whole BAT, a part at a time: one of 64 TiB has 64 million entries, which are never held at once.

use std::io;
use std::ops::Range;

use super::bat::{Entry, State};
use super::layer::read_bat;
use super::layout::{ENTRY, Layout, Slot};
use super::region::Run;
use super::space::Space;
use super::spec::MIB;
use crate::formats::field::BadField;
use crate::host::store::Store;

/// Entries that are read at once.
const PART: u64 = 1 << 16;

/// Goes through a BAT from its start to its end.
pub(super) struct Scan {
    /// Indices that were not read so far.
    left: Range<u64>,
}

impl Scan {
    /// Through all entries that a disk needs.
    pub(super) fn new(layout: &Layout) -> Self {
        Self { left: 0..layout.entries() }
    }

    /// The next entries that are not 0, with their indices: at most 65,536, maybe none. `None` at the end. Parts that the host
    /// does not store are skipped.
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

/// The entries of these indices that are not 0.
fn used(store: &dyn Store, layout: &Layout, indices: Range<u64>) -> io::Result<Vec<(u64, Entry)>> {
    let entries = read_bat(store, layout, indices.start, indices.end - indices.start)?;
    Ok(indices.zip(entries).filter(|(_, entry)| *entry != Entry::NOT_PRESENT).collect())
}

/// Give each entry that is not 0 to `visit`, in the order of the indices.
pub(super) fn scan(store: &dyn Store, layout: &Layout, mut visit: impl FnMut(u64, Entry)) -> io::Result<()> {
    let mut scan = Scan::new(layout);
    while let Some(part) = scan.part(store, layout)? {
        part.into_iter().for_each(|(index, entry)| visit(index, entry));
    }
    Ok(())
}

/// Give each entry that is not 0, from the last index down to `first`, to `visit` until that finds something.
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

/// Mark what an entry uses, or say what is wrong with it.
pub(super) fn mark(
    space: &mut Space,
    layout: &Layout,
    index: u64,
    entry: Entry,
    len: u64,
) -> Option<BadField> {
    const REPAIR: &str = "(run `image check --repair`)";
    let slot = layout.slot(index);
    let (name, of) = match slot {
        Slot::Payload(block) => ("BAT entry", format!("block {block}")),
        Slot::Bitmap(chunk) => ("BAT entry", format!("the bitmap block of chunk {chunk}")),
    };
    let bad = |expected: String| {
        Some(BadField::new(name, format!("{:#x} of {of}", entry.0), format!("{expected} {REPAIR}")))
    };
    let (size, last) = match slot {
        Slot::Payload(block) => (layout.block_size(), block + 1 == layout.blocks()),
        Slot::Bitmap(_) => (MIB, false),
    };
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
        return bad(format!("a place inside the file of {} MiB", len / MIB));
    }
    let run = Run { offset: entry.offset(), len: size };
    if last && run.end() > len {
        // Some programs leave the last block short. What is missing is its own all the same.
        space.grow(run.end());
    } else if run.end() > len {
        return bad(format!("a place inside the file of {} MiB", len / MIB));
    }
    if !space.mark(run) {
        return bad("a place that nothing else uses".into());
    }
    None
}
