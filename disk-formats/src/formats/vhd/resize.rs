//! Resize: changes the virtual size of an image.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::edit::{Editor, Sparse};
use super::extend::extend_table;
use super::footer::{self, Found, Source, Subformat};
use super::layout::{self, Layout};
use super::spec::{FOOTER_SIZE, SECTOR, UNALLOCATED};
use crate::contract::error::{BadField, OpenError, or_bad};
use crate::formats::info::check_shrink;
use crate::host::store::{Store, last_nonzero_of};

/// Change the virtual size of a VHD to `size`. Growing adds zeros; the BAT grows in its place if it has no space for the new entries.
/// Shrinking needs `shrink`, and a tail that reads as zeros: the guest must discard it first.
///
/// After a power failure the disk has either the old size or the new one.
///
/// # Errors
/// [`OpenError::Invalid`] for sizes that the kind of disk does not support, and if the tail holds data;
/// [`OpenError::Unsupported`] if shrinking is not allowed, or the disk has a saved state; the host's error.
pub(crate) fn resize(store: Arc<dyn Store>, size: u64, shrink: bool) -> Result<(), OpenError> {
    resize_in(&*store, size, shrink)
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
    checked(&*store, size, shrink, cleared).map(drop)
}

pub(super) fn resize_in(store: &dyn Store, size: u64, shrink: bool) -> Result<(), OpenError> {
    let mut editor = checked(store, size, shrink, &[])?;
    if size == editor.size {
        return Ok(());
    }
    match editor.subformat {
        Subformat::Fixed => resize_fixed(&mut editor, size),
        Subformat::Dynamic | Subformat::Differencing => resize_sparse(&mut editor, size),
    }
    .map_err(OpenError::os(store.path(), "cannot resize"))
}

/// The image, if it can have this size.
fn checked<'a>(
    store: &'a dyn Store,
    size: u64,
    shrink: bool,
    cleared: &[Range<u64>],
) -> Result<Editor<'a>, OpenError> {
    let path = store.path();
    let editor = Editor::open(store)?;
    footer::check_size("size", size, editor.subformat).map_err(|bad| bad.of(path))?;
    if let Some(Sparse { layout, .. }) = editor.sparse.as_ref().filter(|_| size > editor.size) {
        layout::check_blocks(size, layout.block_size()).map_err(|most| {
            let expected = format!("with blocks of {} bytes, {most}", layout.block_size());
            BadField::new("size", format!("{size} bytes"), expected).of(path)
        })?;
    }
    check_shrink(path, editor.size, size, shrink)?;
    let data = if size < editor.size { last_data(&editor, size, cleared) } else { Ok(None) };
    let os = OpenError::os(path, "cannot read the end of the disk");
    match data.map_err(os)? {
        None => Ok(editor),
        Some(at) => {
            let expected = format!("at least {} bytes: there is data", at + SECTOR);
            Err(BadField::new("size", format!("{size} bytes"), expected).of(path))
        }
    }
}

fn resize_fixed(editor: &mut Editor<'_>, size: u64) -> io::Result<()> {
    // The footer moves while the disk has the smaller of the two sizes: both offsets are outside of it.
    match size > editor.size {
        true => grow_fixed(editor, size),
        false => shrink_fixed(editor, size),
    }
}

fn grow_fixed(editor: &mut Editor<'_>, size: u64) -> io::Result<()> {
    let (store, old, len) = (editor.store, editor.size, editor.store.len()?);
    // This footer still has the old size, because after a crash it may already be the end of the file.
    let moved = if len < size + FOOTER_SIZE as u64 { editor.put_footer(size) } else { Ok(()) };
    if let Err(error) = moved.and_then(|()| store.reserve(old, size)) {
        // Restore the file.
        let _ = store.undo_growth(len);
        return Err(error);
    }
    // Zero the old footer, and everything else beyond the old end of the disk.
    let behind = len.min(size).saturating_sub(old);
    store.write_zeroes(old, behind, false)?;
    store.sync()?;
    footer::set_size(&mut editor.footer, size);
    editor.size = size;
    editor.put_footer(size)
}

fn shrink_fixed(editor: &mut Editor<'_>, size: u64) -> io::Result<()> {
    let found = or_bad(footer::find(editor.store))?;
    footer::set_size(&mut editor.footer, size);
    editor.footer.seal();
    editor.size = size;
    if let Ok(Found { source: Source::Trailing(at), .. }) = found {
        footer::rewrite(editor.store, &editor.footer, Some(at))?;
    }
    editor.put_footer(size)
}

fn resize_sparse(editor: &mut Editor<'_>, size: u64) -> io::Result<()> {
    let (store, old, end) = (editor.store, editor.size, editor.end()?);
    let Some(Sparse { header, layout, table }) = &editor.sparse else { return Ok(()) };
    if size > old {
        // The part of the last block beyond the end of the disk becomes readable.
        let last = table.get((old >> layout.block_shift) as usize).copied().unwrap_or(UNALLOCATED);
        let within = old & (layout.block_size() - 1);
        if last != UNALLOCATED && within != 0 {
            let (from, to) = (layout.data_at(last) + within, layout.data_at(last) + layout.block_size());
            let to = to.min(store.len()?);
            store.write_zeroes(from, to.saturating_sub(from), true)?;
            store.sync()?;
        }
    }
    let needed = size.div_ceil(layout.block_size()) as usize;
    if needed > layout.entries as usize {
        let (header, mut table) = (*header, table.clone());
        if extend_table(editor, needed as u32, size)? {
            return Ok(());
        }
        table.resize(needed, UNALLOCATED);
        footer::set_size(&mut editor.footer, size);
        return editor.switch(header, Some(table), None);
    }
    // The table has space for the new entries: it is enough to change the footer.
    let spare = table.len()..needed;
    if !spare.is_empty() {
        clear_entries(store, layout.bat, table, spare)?;
    }
    footer::set_size(&mut editor.footer, size);
    editor.put_footer(end)
}

/// Mark the entries beyond the old size as unallocated, whatever the program that wrote them left there.
fn clear_entries(store: &dyn Store, bat: u64, table: &[u32], spare: Range<usize>) -> io::Result<()> {
    let per_sector = SECTOR as usize / 4;
    for sector in spare.start / per_sector..spare.end.div_ceil(per_sector) {
        let at = bat + sector as u64 * SECTOR;
        let mut bytes = [0; SECTOR as usize];
        store.read_at(&mut bytes, at)?;
        let before = bytes;
        for (slot, block) in bytes.chunks_exact_mut(4).zip(sector * per_sector..) {
            if block >= table.len() {
                slot.fill(0xFF);
            }
        }
        if bytes != before {
            store.write_at(&bytes, at)?;
        }
    }
    store.sync()
}

/// The last sector at or after `from`, outside of `cleared`, that does not read as zeros in this image alone. A sector whose bit is clear is not
/// in this image.
fn last_data(editor: &Editor<'_>, from: u64, cleared: &[Range<u64>]) -> io::Result<Option<u64>> {
    let (store, len) = (editor.store, editor.store.len()?);
    let stays = |at: u64| !cleared.iter().any(|range| range.contains(&at));
    let Some(Sparse { layout, table, .. }) = &editor.sparse else {
        return last_nonzero_of(store, from, editor.size, stays);
    };
    let first = (from >> layout.block_shift) as usize;
    for (block, entry) in
        table.iter().enumerate().skip(first).rev().filter(|(_, entry)| **entry != UNALLOCATED)
    {
        let start = (block as u64) << layout.block_shift;
        let end = (start + layout.block_size()).min(editor.size);
        let mut bits = vec![0; layout.bitmap as usize];
        store.read_at(&mut bits, Layout::bitmap_at(*entry))?;
        let data = layout.data_at(*entry);
        let (low, high) = ((data + from.max(start) - start).min(len), (data + end - start).min(len));
        let found = last_nonzero_of(store, low, high, |at| {
            Layout::has_bit(&bits, (at - data) / SECTOR) && stays(at - data + start)
        })?;
        if let Some(at) = found {
            return Ok(Some(at - data + start));
        }
    }
    Ok(None)
}
