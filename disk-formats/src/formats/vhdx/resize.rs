//! Resize: changes the virtual size of an image.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::edit::Editor;
use super::journal::{DataGuid, Sectors};
use super::layout::{ENTRY, Entry, Layout, Slot, State};
use super::metadata::Parameters;
use super::region::Run;
use super::scan::{Scan, find_back};
use super::spec::{LOG_SECTOR, item};
use crate::contract::error::{BadField, OpenError};
use crate::formats::info::check_shrink;
use crate::host::store::{Store, last_nonzero_of};

/// Unit of the search for data.
const SECTOR: u64 = 512;
/// Number of sectors of new entries that are written at once: 8 MiB.
const WAITING: usize = 2048;

/// Change the virtual size of a VHDX to `size`. Growing adds zeros; the BAT is moved if it has no space for the new
/// entries. Shrinking needs `shrink`, and a tail that reads as zeros: the guest must discard it first.
///
/// After a power failure the disk has either the old size or the new one.
///
/// # Errors
/// [`OpenError::Invalid`] for sizes that the disk cannot have, and if the tail holds data; [`OpenError::Unsupported`]
/// if shrinking is not allowed; the host's error.
pub(crate) fn resize(store: Arc<dyn Store>, size: u64, shrink: bool) -> Result<(), OpenError> {
    let path = store.path().to_path_buf();
    let os = OpenError::os(&path, "cannot resize");
    let Some((mut editor, parameters)) = checked(store, size, shrink, &[])? else { return Ok(()) };
    if size > parameters.size {
        return match grow_to(&mut editor, parameters, size) {
            Ok(()) => editor.close(),
            Err(error) => Err(editor.roll_back(error)),
        }
        .map_err(os);
    }
    match shrink_to(&mut editor, size) {
        Ok(()) => editor.close_and_cut().map(drop),
        Err(error) => Err(editor.roll_back(error)),
    }
    .map_err(os)
}

/// Refuse what [`resize`] refuses, and change nothing but what every tool repairs when it opens the image. The caller will zero the ranges
/// `cleared` of the disk, in bytes, before.
///
/// # Errors
/// As for [`resize`].
pub(crate) fn check_resize(
    store: Arc<dyn Store>,
    size: u64,
    shrink: bool,
    cleared: &[Range<u64>],
) -> Result<(), OpenError> {
    checked(store, size, shrink, cleared).map(drop)
}

/// The image, if it can have this size; `None` if it has it.
fn checked(
    store: Arc<dyn Store>,
    size: u64,
    shrink: bool,
    cleared: &[Range<u64>],
) -> Result<Option<(Editor, Parameters)>, OpenError> {
    let path = store.path().to_path_buf();
    let os = OpenError::os(&path, "cannot read the end of the disk");
    // The editor below replays the log and reads the metadata again.
    let now = super::opened::Opened::read(Arc::clone(&store), false)
        .map_err(|error| error.of(&path, "cannot read the end of the disk"))?;
    let parameters = now.metadata.parameters;
    Parameters { size, ..parameters }.check().map_err(|bad| bad.of(&path))?;
    check_shrink(&path, parameters.size, size, shrink)?;
    if size == parameters.size {
        return Ok(None);
    }
    drop(now);
    let editor = Editor::open(store)?;
    if size < parameters.size
        && let Some(at) = last_data(&editor, size, cleared).map_err(os)?
    {
        let expected = format!("at least {}: data are there", at + SECTOR);
        return Err(BadField::new("size", format!("{size} bytes"), expected).of(&path));
    }
    Ok(Some((editor, parameters)))
}

/// Add the change of the size item to `sectors`.
fn put_size(editor: &mut Editor, sectors: &mut Sectors, size: u64) -> io::Result<()> {
    let metadata = &editor.opened.metadata;
    metadata.change(&*editor.store, sectors, item::VIRTUAL_DISK_SIZE, &size.to_le_bytes())
}

fn shrink_to(editor: &mut Editor, size: u64) -> io::Result<()> {
    editor.start_log(DataGuid::New)?;
    zero_tail(editor, size)?;
    let old = editor.layout;
    let new = Layout { size, ..old };
    let mut sectors = Sectors::default();
    put_size(editor, &mut sectors, size)?;
    editor.journal.commit([sectors], editor.space.end())?;
    // Entries beyond the new end are not read any more. If a crash leaves some of them, they are cleared before the
    // disk grows again.
    let mut scan = Scan::new(&old);
    while let Some(mut part) = scan.part(&*editor.store, &old)? {
        part.retain(|(index, _)| match old.slot(*index) {
            Slot::Payload(block) => block >= new.blocks(),
            Slot::Bitmap(chunk) => chunk >= new.chunks(),
        });
        if part.is_empty() {
            continue;
        }
        let cleared: Vec<(u64, Entry)> = part.iter().map(|(index, _)| (*index, Entry::NOT_PRESENT)).collect();
        editor.set_entries(&cleared)?;
        for (index, entry) in part.into_iter().filter(|(_, entry)| entry.holds_space()) {
            editor.space.free(Run { offset: entry.offset(), len: old.slot_size(index) });
        }
    }
    Ok(())
}

/// Zero the part of the last block beyond the end of the disk, which must not become readable when the disk grows.
fn zero_tail(editor: &Editor, end: u64) -> io::Result<()> {
    let layout = &editor.layout;
    let within = end % layout.block_size();
    if within == 0 {
        return Ok(());
    }
    let entry = editor.entry(layout.payload_index(end >> layout.block_shift))?;
    if !entry.present() {
        return Ok(());
    }
    let (at, len) = (entry.offset() + within, layout.block_size() - within);
    let zeroed = editor.store.write_zeroes(at, len, editor.may_unmap());
    zeroed.map_err(io::Error::from)
}

/// Allocate the space that the larger disk needs, and write structures that nothing refers to yet. Then change size and
/// region tables by one log entry.
fn grow_to(editor: &mut Editor, parameters: Parameters, size: u64) -> io::Result<()> {
    editor.prepare()?;
    zero_tail(editor, editor.layout.size)?;
    let old = editor.layout;
    let new = Layout { size, ..old };
    let mut sectors = Sectors::default();
    let bat = match new.entries() * ENTRY > old.bat.len {
        true => {
            let bat = editor.take(new.bat_bytes())?;
            editor.copy_bat(bat)?;
            editor.name_bat(bat, &mut sectors)?;
            bat
        }
        false => old.bat,
    };
    // The space after the entries in use can be written without the log.
    let new = Layout { bat, ..new };
    let end = bat.offset + bat.len;
    let at = bat.offset + old.entries() * ENTRY;
    let spare = (at.next_multiple_of(LOG_SECTOR).min(end)).saturating_sub(at);
    editor.store.write_zeroes(at + spare, end - at - spare, false)?;
    let mut edge = Sectors::default();
    edge.patch(&*editor.store, at, &vec![0; spare as usize])?;
    write_direct(&*editor.store, edge)?;
    if parameters.leave_allocated {
        fill(editor, &new, old.blocks())?;
    }
    editor.store.sync()?;
    put_size(editor, &mut sectors, size)?;
    editor.start_log(DataGuid::New)?;
    editor.journal.commit([sectors], editor.space.end())
}

/// Allocate the new blocks of a fixed disk, from `first` on: in gaps of the file, then in one range at its end.
fn fill(editor: &mut Editor, new: &Layout, first: u64) -> io::Result<()> {
    let (len, end) = (new.block_size(), new.blocks());
    let mut bat = NewEntries { layout: *new, sectors: Sectors::default() };
    let mut block = first;
    while block < end
        && let Some(gap) = editor.take_gap(len)?
    {
        bat.put(&*editor.store, block, gap.offset)?;
        block += 1;
    }
    if block < end {
        let piece = editor.append((end - block) * len)?;
        for number in block..end {
            bat.put(&*editor.store, number, piece.offset + (number - block) * len)?;
        }
    }
    bat.flush(&*editor.store)
}

/// The new entries of a BAT, which nothing refers to yet. They are written in parts.
struct NewEntries {
    layout: Layout,
    sectors: Sectors,
}

impl NewEntries {
    /// Set the file offset of a block.
    fn put(&mut self, store: &dyn Store, block: u64, offset: u64) -> io::Result<()> {
        let at = self.layout.bat.offset + self.layout.payload_index(block) * ENTRY;
        self.sectors.patch(store, at, &Entry::fully(offset).0.to_le_bytes())?;
        if self.sectors.len() >= WAITING { self.flush(store) } else { Ok(()) }
    }

    fn flush(&mut self, store: &dyn Store) -> io::Result<()> {
        write_direct(store, std::mem::take(&mut self.sectors))
    }
}

/// Write sectors that nothing refers to yet.
fn write_direct(store: &dyn Store, sectors: Sectors) -> io::Result<()> {
    for update in sectors.into_updates() {
        if let super::log::Update::Data { offset, sector } = update {
            store.write_at(&sector[..], offset)?;
        }
    }
    Ok(())
}

/// The last sector of 512 bytes at or after `from`, outside of `cleared`, that does not read as zeros in this image alone. A sector whose bit is
/// clear is not in this image.
fn last_data(editor: &Editor, from: u64, cleared: &[Range<u64>]) -> io::Result<Option<u64>> {
    let (store, layout) = (&*editor.store, &editor.layout);
    let first = layout.payload_index(from >> layout.block_shift);
    find_back(store, layout, first, |index, entry| {
        let Slot::Payload(block) = layout.slot(index) else { return Ok(None) };
        let start = block << layout.block_shift;
        let end = (start + layout.block_size()).min(layout.size);
        if end <= from || !entry.present() {
            return Ok(None);
        }
        let bits = match entry.state() == State::PartiallyPresent && layout.has_parent {
            true => Some(bits_of(editor, block)?),
            false => None,
        };
        let data = entry.offset();
        let low = data + from.max(start) - start;
        // Some programs leave the last block truncated.
        let high = (data + end - start).min(store.len()?);
        let counts = |at: u64| {
            let bit = (at - data) >> layout.sector.shift();
            bits.as_ref().is_none_or(|bits| Layout::has_bit(bits, bit))
                && !cleared.iter().any(|range| range.contains(&(at - data + start)))
        };
        Ok(last_nonzero_of(store, low, high, counts)?.map(|at| at - data + start))
    })
}

/// The bits of a block of a differencing disk. The editor has checked the BAT, but not that the chunk has a bitmap block.
fn bits_of(editor: &Editor, block: u64) -> io::Result<Vec<u8>> {
    let layout = &editor.layout;
    let entry = editor.entry(layout.bitmap_index(layout.chunk(block)))?;
    if !entry.present() {
        let missing = "a block is partially present, but has no bitmap block (run `image check --repair`)";
        return Err(io::Error::other(missing));
    }
    let mut bits = vec![0; layout.bits_per_block().div_ceil(8) as usize];
    let at = entry.offset() + layout.bit(block << layout.block_shift) / 8;
    editor.store.read_at(&mut bits, at)?;
    Ok(bits)
}
