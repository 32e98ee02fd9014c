//! Resize: changes the virtual size of an image.

use std::io;
use std::sync::Arc;

use super::edit::{Editor, Sparse};
use super::footer::{self, Found, Source, Subformat};
use super::spec::{FOOTER_SIZE, SECTOR, UNALLOCATED};
use crate::error::OpenError;
use crate::formats::field::BadField;
use crate::formats::file_info::check_shrink;
use crate::host::store::{Store, last_nonzero};

/// Bytes that are zeroed at once.
const CHUNK: u64 = 1 << 20;

/// Change the virtual size of a VHD to `size`. Growing adds zeros. Shrinking needs `shrink`, and a tail that reads as
/// zeros: the guest must discard it first.
///
/// After a power failure the disk has either the old size or the new one.
///
/// # Errors
/// [`OpenError::Invalid`] for sizes that the kind of disk does not support, and if the tail holds data;
/// [`OpenError::Unsupported`] if shrinking is not allowed, or the disk has a saved state; the host's error.
pub(crate) fn resize(store: Arc<dyn Store>, size: u64, shrink: bool) -> Result<(), OpenError> {
    resize_in(&*store, size, shrink)
}

pub(super) fn resize_in(store: &dyn Store, size: u64, shrink: bool) -> Result<(), OpenError> {
    let path = store.path();
    let os = |source| OpenError::Os { path: path.into(), action: "cannot resize", source };
    let mut editor = Editor::open(store)?;
    footer::check_size("size", size, editor.subformat).map_err(|bad| bad.of(path))?;
    if size == editor.size {
        return Ok(());
    }
    check_shrink(path, editor.size, size, shrink)?;
    if size < editor.size
        && let Some(at) = first_data(&editor, size).map_err(os)?
    {
        let expected = format!("at least {} bytes: there is data", at + SECTOR);
        return Err(BadField::new("size", format!("{size} bytes"), expected).of(path));
    }
    match editor.subformat {
        Subformat::Fixed => resize_fixed(&mut editor, size),
        Subformat::Dynamic | Subformat::Differencing => resize_sparse(&mut editor, size),
    }
    .map_err(os)
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
    let found = footer::find(editor.store)?;
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
            zero(store, from, to)?;
        }
    }
    let needed = size.div_ceil(layout.block_size()) as usize;
    // If the table has space for the new entries, it is enough to change the footer.
    let (header, new_table) = (
        *header,
        (needed > layout.entries as usize).then(|| {
            let mut table = table.clone();
            table.resize(needed, UNALLOCATED);
            table
        }),
    );
    let spare = table.len()..needed.min(layout.entries as usize);
    if !spare.is_empty() {
        clear_entries(store, layout.bat, table, spare)?;
    }
    footer::set_size(&mut editor.footer, size);
    if new_table.is_some() {
        return editor.switch(header, new_table, None);
    }
    editor.put_footer(end)
}

/// Mark the entries beyond the old size as unallocated, whatever the program that wrote them left there.
fn clear_entries(
    store: &dyn Store,
    bat: u64,
    table: &[u32],
    spare: std::ops::Range<usize>,
) -> io::Result<()> {
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

fn zero(store: &dyn Store, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; CHUNK as usize];
    let mut at = from;
    while at < to {
        let part = (to - at).min(CHUNK) as usize;
        store.write_at(zeros.get(..part).unwrap_or_default(), at)?;
        at += part as u64;
    }
    Ok(())
}

/// The last sector at or after `from` that does not read as zeros in this image alone. Sectors that hide a parent's
/// data count, too.
fn first_data(editor: &Editor<'_>, from: u64) -> io::Result<Option<u64>> {
    let Some(Sparse { layout, table, .. }) = &editor.sparse else {
        return last_nonzero(editor.store, from, editor.size);
    };
    let first = (from >> layout.block_shift) as usize;
    for (block, entry) in table.iter().enumerate().skip(first).rev() {
        let start = (block as u64) << layout.block_shift;
        let end = (start + layout.block_size()).min(editor.size);
        let from = from.max(start);
        if *entry == UNALLOCATED {
            continue;
        }
        let data = layout.data_at(*entry);
        let len = editor.store.len()?;
        let (low, high) = ((data + from - start).min(len), (data + end - start).min(len));
        if let Some(at) = last_nonzero(editor.store, low, high)? {
            return Ok(Some(at - data + start));
        }
    }
    Ok(None)
}
