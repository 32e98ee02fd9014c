//! The block allocation table of an open disk, and new blocks for it.

use std::io;
use std::path::Path;

use zerocopy::IntoBytes;

use super::footer::{self, Found};
use super::layer::{Entries, read_bat};
use super::layout::{Layout, locator_areas};
use super::spec::{DynamicHeader, FOOTER_SIZE, Footer, SECTOR, UNALLOCATED};
use crate::field::BadField;
use crate::store::{Store, io_error};
use crate::{IoError, OpenError};

/// Data of blocks lie on this boundary, so that guests' pages meet the file system's blocks.
const ALIGNMENT: u64 = 4096;
/// Entries in a sector of the table.
const ENTRIES_PER_SECTOR: u32 = (SECTOR / 4) as u32;

/// The table in memory, and where the next block goes.
pub(super) struct Allocator {
    layout: Layout,
    table: Vec<u32>,
    footer: Footer,
    /// Behind the last block: the next one begins here, or further on to be aligned.
    end: u64,
    /// Bytes of the file.
    len: u64,
    /// Something lies behind `end`: the footer, or leavings of blocks that a crash or a failure cut short.
    tail: bool,
    /// The copy of the footer at the start is not what it should be.
    copy_stale: bool,
    /// Blocks whose entries are not on disk yet.
    pending: Vec<u32>,
}

impl Allocator {
    /// Read the table of an image and check it.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where the disk is opened for writing and entries point into the metadata, behind the end of
    /// the file, or to overlapping blocks: writing would do more harm.
    pub(super) fn open(
        store: &dyn Store,
        found: &Found,
        header: &DynamicHeader,
        layout: Layout,
        writable: bool,
    ) -> Result<Self, OpenError> {
        let path = store.path();
        let os = |source| OpenError::Os { path: path.into(), action: "cannot read the BAT", source };
        let len = store.len().map_err(os)?;
        let table = read_bat(store, &layout, 0, u64::from(layout.used_entries())).map_err(os)?;
        if writable {
            check_table(path, &table, &layout, len)?;
        }
        let copy = footer::copy(store, len).map_err(os)?;
        let copy_stale = copy.is_none_or(|copy| copy.as_bytes() != found.footer.as_bytes());
        let end = end_of(&table, header, &layout, len);
        Ok(Self {
            layout,
            table,
            footer: found.footer,
            end,
            len,
            tail: len > end,
            copy_stale,
            pending: Vec::new(),
        })
    }

    /// BAT entries of a range.
    pub(super) fn entries(&self, offset: u64, len: u64) -> Entries {
        Entries::of_table(&self.table, &self.layout, offset, len)
    }

    /// The entry of a block.
    pub(super) fn entry(&self, block: u64) -> u32 {
        usize::try_from(block).ok().and_then(|block| self.table.get(block)).copied().unwrap_or(UNALLOCATED)
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Take what has to be recorded.
    pub(super) fn take_pending(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.pending)
    }

    /// It could not be recorded.
    pub(super) fn give_back(&mut self, blocks: Vec<u32>) {
        self.pending.extend(blocks);
    }

    /// Give a block room at the end of the file, all zeros. The trailing footer is gone until [`close`](Self::close) puts it
    /// behind the block: until then the copy at the start is the only one.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error: the disk is as it was.
    pub(super) fn allocate(
        &mut self,
        store: &dyn Store,
        layout: &Layout,
        block: u64,
    ) -> Result<u32, IoError> {
        let alignment = ALIGNMENT.min(layout.block_size());
        let data = (self.end + layout.bitmap).next_multiple_of(alignment);
        let end = data + layout.block_size();
        let entry = u32::try_from((data - layout.bitmap) / SECTOR).ok().filter(|entry| *entry != UNALLOCATED);
        let (Some(entry), Ok(index)) = (entry, usize::try_from(block)) else { return Err(IoError::NoSpace) };
        let Some(slot) = self.table.get_mut(index) else { return Err(IoError::OutOfRange) };
        if self.tail {
            if self.copy_stale {
                // Soon the only one.
                store.write_at(self.footer.as_bytes(), 0).map_err(|error| io_error(&error))?;
                store.sync().map_err(|error| io_error(&error))?;
                self.copy_stale = false;
            }
            store.set_size(self.end).map_err(|error| io_error(&error))?;
            self.tail = false;
            self.len = self.end;
        }
        if let Err(error) = store.reserve(self.end, end) {
            // As it was, as far as the host lets us; the copy at the start holds the rest up.
            self.tail = true;
            let _ = store.set_size(self.end).and_then(|()| self.close(store));
            return Err(io_error(&error));
        }
        *slot = entry;
        (self.end, self.len) = (end, end);
        self.pending.push(index as u32);
        Ok(entry)
    }

    /// Put the footer behind the last block.
    pub(super) fn close(&mut self, store: &dyn Store) -> io::Result<()> {
        // If it does not get there in full, something may be there all the same.
        self.tail = true;
        store.write_at(self.footer.as_bytes(), self.end)?;
        self.len = self.end + FOOTER_SIZE as u64;
        Ok(())
    }

    /// The sectors of the table that hold `blocks`, by byte offset in the table. Entries of blocks that are pending beside
    /// these stay away: their blocks are not durable yet.
    pub(super) fn table_sectors(&self, blocks: &[u32]) -> Vec<(u64, [u8; SECTOR as usize])> {
        let mut sectors: Vec<u32> = blocks.iter().map(|block| block / ENTRIES_PER_SECTOR).collect();
        sectors.sort_unstable();
        sectors.dedup();
        sectors.into_iter().map(|sector| (u64::from(sector) * SECTOR, self.table_sector(sector))).collect()
    }

    fn table_sector(&self, sector: u32) -> [u8; SECTOR as usize] {
        let first = sector * ENTRIES_PER_SECTOR;
        let mut bytes = [0xFF; SECTOR as usize];
        for (slot, block) in bytes.chunks_exact_mut(4).zip(first..) {
            if !self.pending.contains(&block) {
                slot.copy_from_slice(&self.entry(u64::from(block)).to_be_bytes());
            }
        }
        bytes
    }
}

/// Behind everything in the file but the trailing footer.
pub(super) fn end_of(table: &[u32], header: &DynamicHeader, layout: &Layout, len: u64) -> u64 {
    let blocks =
        table.iter().filter(|entry| **entry != UNALLOCATED).map(|entry| layout.block_range(*entry).1);
    let areas = locator_areas(header, len).map(|(_, at, _, space)| at.saturating_add(space).min(len));
    let metadata = layout.metadata().map(|(_, end)| end);
    blocks.chain(areas).chain(metadata).fold(0, u64::max).next_multiple_of(SECTOR)
}

/// Check each entry.
fn check_table(path: &Path, table: &[u32], layout: &Layout, len: u64) -> Result<(), OpenError> {
    let repair = "(run `image check --repair`)";
    let mut starts: Vec<(u32, usize)> = Vec::new();
    for (block, entry) in table.iter().enumerate().filter(|(_, entry)| **entry != UNALLOCATED) {
        let (bitmap, end) = layout.block_range(*entry);
        if layout.hits_metadata(bitmap, end) || bitmap + layout.bitmap > len {
            let expected =
                format!("outside the metadata and before sector {} for block {block} {repair}", len / SECTOR);
            return Err(BadField::new("BAT entry", entry.to_string(), expected).of(path));
        }
        starts.push((*entry, block));
    }
    starts.sort_unstable();
    let pitch = (layout.bitmap + layout.block_size()) / SECTOR;
    for pair in starts.windows(2) {
        if let [(one, first), (other, second)] = pair
            && u64::from(*other - *one) < pitch
        {
            let value = format!("{one} of block {first} and {other} of block {second}");
            let expected = format!("{pitch} sectors or more apart {repair}");
            return Err(BadField::new("BAT entry", value, expected).of(path));
        }
    }
    Ok(())
}
