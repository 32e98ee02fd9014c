//! Another virtual size for an image.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::bat::Entry;
use super::chain::{Image, open_parent};
use super::edit::Editor;
use super::journal::Visible;
use super::layout::{ENTRY, Layout, Slot};
use super::metadata::Parameters;
use super::region::Run;
use super::sectors::Sectors;
use super::spec::item;
use crate::field::BadField;
use crate::store::{Store, last_nonzero};
use crate::{Access, BackingFile, OpenError, ParentRules};

/// Give a VHDX the virtual size `size`. Growing adds zeros; the BAT moves where it has no room. Shrinking needs `shrink`, and a
/// tail that holds nothing but zeros: the guest must have given it up before.
///
/// A differencing disk ends where its parent does or behind: what is cut off would be the parent's data, and what is added
/// must not be. Its parent is found by `parents`.
///
/// After a power failure the disk has the old size or the new one.
///
/// # Errors
/// [`OpenError::Invalid`] for sizes that the disk cannot have, and where the tail holds data; [`OpenError::Unsupported`] where
/// shrinking is not allowed; the host's error.
pub fn resize(path: &Path, size: u64, shrink: bool, parents: &ParentRules) -> Result<(), OpenError> {
    let read_only = Access { read_only: true, direct: false };
    let image = Image::open(path, read_only)?;
    let old = image.opened.layout.size;
    if image.opened.metadata.locator.is_some() && size != old {
        // Its size counts, not its content.
        let rules = ParentRules { any_time: true, ..parents.clone() };
        let parent = open_parent(&image, read_only, &rules)?;
        let least = parent.opened.layout.size;
        if size.min(old) < least {
            let expected = format!(
                "{least} bytes or more, before and after: its parent {} has as many",
                parent.file.path().display()
            );
            return Err(BadField::new("size", format!("{size} bytes, {old} before"), expected).of(path));
        }
    }
    drop(image);
    resize_in(Arc::new(BackingFile::open(path, Access::default())?), size, shrink)
}

pub(super) fn resize_in(store: Arc<dyn Store>, size: u64, shrink: bool) -> Result<(), OpenError> {
    let path = store.path().to_path_buf();
    let os = |source| OpenError::Os { path: path.clone(), action: "cannot resize", source };
    // Before anything is changed, and again when the log is replayed.
    let now =
        super::opened::Opened::read(Arc::clone(&store), false).map_err(os)?.map_err(|bad| bad.of(&path))?;
    let parameters = now.metadata.parameters;
    Parameters { size, ..parameters }.check().map_err(|bad| bad.of(&path))?;
    if size < parameters.size && !shrink {
        let reason = format!("it has {} bytes: to make it smaller, allow it (--shrink)", parameters.size);
        return Err(OpenError::Unsupported { path, reason });
    }
    if size == parameters.size {
        return Ok(());
    }
    drop(now);
    let mut editor = Editor::open(Arc::clone(&store), Visible::New)?;
    if size < parameters.size {
        if let Some(at) = data_behind(&editor, size).map_err(os)? {
            editor.close().map_err(os)?;
            let expected = format!("at least {}: data are there", at + 512);
            return Err(BadField::new("size", format!("{size} bytes"), expected).of(&path));
        }
        shrink_to(&mut editor, size).map_err(os)?;
        return editor.close_and_cut().map(drop).map_err(os);
    }
    grow_to(&mut editor, parameters, size).map_err(os)?;
    editor.close().map_err(os)
}

/// The item with the size.
fn put_size(editor: &mut Editor, sectors: &mut Sectors, size: u64) -> io::Result<()> {
    let metadata = &editor.opened.metadata;
    metadata.change(&*editor.store, sectors, item::VIRTUAL_DISK_SIZE, &size.to_le_bytes())
}

fn shrink_to(editor: &mut Editor, size: u64) -> io::Result<()> {
    zero_tail(editor, size)?;
    let old = editor.layout;
    let new = Layout { size, ..old };
    let mut sectors = Sectors::default();
    put_size(editor, &mut sectors, size)?;
    editor.journal.commit([sectors], editor.space.end())?;
    // Nobody reads them any more. What a crash leaves of them is cleared before the disk grows again.
    let gone: Vec<(u64, Entry)> = editor
        .table
        .iter()
        .filter(|(index, _)| match old.slot(**index) {
            Slot::Payload(block) => block >= new.blocks(),
            Slot::Bitmap(chunk) => chunk >= new.chunks(),
        })
        .map(|(index, entry)| (*index, *entry))
        .collect();
    editor.set_entries(&gone.iter().map(|(index, _)| (*index, Entry::NOT_PRESENT)).collect::<Vec<_>>())?;
    for (index, entry) in gone.into_iter().filter(|(_, entry)| entry.holds_room()) {
        let len = match old.slot(index) {
            Slot::Payload(_) => old.block_size(),
            Slot::Bitmap(_) => super::spec::MIB,
        };
        editor.space.give(Run { offset: entry.offset(), len });
    }
    Ok(())
}

/// What the last block has behind the end of the disk must not show when it grows.
fn zero_tail(editor: &Editor, end: u64) -> io::Result<()> {
    let layout = &editor.layout;
    let within = end % layout.block_size();
    let index = layout.payload_index(end >> layout.block_shift);
    match editor.table.get(&index).filter(|entry| within > 0 && entry.present()) {
        Some(entry) => {
            let zeroed =
                editor.store.write_zeroes(entry.offset() + within, layout.block_size() - within, false);
            zeroed.map_err(io::Error::other)
        }
        None => Ok(()),
    }
}

fn grow_to(editor: &mut Editor, parameters: Parameters, size: u64) -> io::Result<()> {
    zero_tail(editor, editor.layout.size)?;
    let old = editor.layout;
    let new = Layout { size, ..old };
    let mut sectors = Sectors::default();
    let bat = match new.entries() * ENTRY > old.bat.len {
        true => {
            let bat = take_room(editor, new.bat_bytes())?;
            editor.copy_bat(bat)?;
            editor.name_bat(bat, &mut sectors)?;
            bat
        }
        false => old.bat,
    };
    // Behind the entries in use, so that it needs no log.
    let new = Layout { bat, ..new };
    let end = bat.offset + bat.len;
    let mut at = bat.offset + old.entries() * ENTRY;
    let spare = (at.next_multiple_of(4096).min(end)).saturating_sub(at);
    editor.store.write_zeroes(at + spare, end - at - spare, false).map_err(io::Error::other)?;
    let mut edge = Sectors::default();
    edge.patch(&*editor.store, at, &vec![0; spare as usize])?;
    write_direct(&*editor.store, edge)?;
    at += spare;
    debug_assert!(at <= end);
    if parameters.leave_allocated {
        fill(editor, &new, old.blocks())?;
    }
    editor.store.sync()?;
    put_size(editor, &mut sectors, size)?;
    // One entry of the log: tables and size change together.
    editor.journal.commit([sectors], editor.space.end())
}

/// The new blocks of a fixed disk get their room.
fn fill(editor: &mut Editor, new: &Layout, first: u64) -> io::Result<()> {
    let mut sectors = Sectors::default();
    for block in first..new.blocks() {
        let entry = Entry::fully(take_room(editor, new.block_size())?.offset);
        let at = new.bat.offset + new.payload_index(block) * ENTRY;
        sectors.patch(&*editor.store, at, &entry.0.to_le_bytes())?;
    }
    write_direct(&*editor.store, sectors)
}

/// Room of zeros.
fn take_room(editor: &mut Editor, len: u64) -> io::Result<Run> {
    let before = editor.space.end();
    let room = editor.space.take(len).ok_or(io::ErrorKind::StorageFull)?;
    match room.used_before {
        true => editor.store.write_zeroes(room.run.offset, len, false).map_err(io::Error::other)?,
        false => editor.store.reserve(before, room.run.end())?,
    }
    Ok(room.run)
}

/// Write sectors that nobody reads so far.
fn write_direct(store: &dyn Store, sectors: Sectors) -> io::Result<()> {
    for update in sectors.into_updates() {
        if let super::log::Update::Data { offset, sector } = update {
            store.write_at(&sector[..], offset)?;
        }
    }
    Ok(())
}

/// The last sector from `from` on that does not read as zeros, by this image alone: sectors of a parent count as well.
fn data_behind(editor: &Editor, from: u64) -> io::Result<Option<u64>> {
    let layout = &editor.layout;
    for (index, entry) in editor.table.iter().rev() {
        let Slot::Payload(block) = layout.slot(*index) else { continue };
        let start = block << layout.block_shift;
        let end = (start + layout.block_size()).min(layout.size);
        if end <= from || !entry.present() {
            continue;
        }
        let low = from.max(start) - start;
        let (low, high) = (entry.offset() + low, entry.offset() + end - start);
        if let Some(at) = last_nonzero(&*editor.store, low, high)? {
            return Ok(Some(at - entry.offset() + start));
        }
    }
    Ok(None)
}
