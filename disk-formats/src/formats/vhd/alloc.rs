//! The block allocation table of an open disk, and new blocks for it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use zerocopy::IntoBytes;

use super::footer::{self, Found, Source, Subformat};
use super::layer::{Entries, read_bat};
use super::layout::{Layout, locator_areas, locator_paths};
use super::spec::{DynamicHeader, FOOTER_SIZE, Footer, SECTOR, UNALLOCATED};
use super::stamp;
use crate::error::{IoError, OpenError};
use crate::formats::field::BadField;
use crate::host::store::{Store, io_error};

/// Entries in a sector of the table.
const ENTRIES_PER_SECTOR: u32 = (SECTOR / 4) as u32;

/// What lies behind the last block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// The footer, and nothing else.
    Footer,
    /// Zeros, where the footer will be: the file never ends with what a guest wrote, which could look like a footer.
    Zeros,
    /// Anything: remains of allocations that a crash or an error interrupted.
    Leavings,
}

/// The table in memory, and where the next block goes.
pub(super) struct Allocator {
    layout: Layout,
    table: Vec<u32>,
    footer: Footer,
    /// Behind the last block: the next one begins here, or further on to be aligned.
    end: u64,
    /// Bytes of the file.
    len: u64,
    tail: Tail,
    /// Where the trailing footer is, until the first block is allocated.
    footer_at: u64,
    /// The copy of the footer at the start is not what it should be.
    copy_stale: bool,
    /// Blocks whose entries are not on disk yet, and those that a flush is writing.
    pending: BTreeSet<u32>,
    recording: BTreeSet<u32>,
}

impl Allocator {
    /// Read the table of an image and check it. A disk that is opened for writing gets its trailing footer back where
    /// that is lost: otherwise a guest could write the last sector of the file, and forge a footer.
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
            let paths = match found.subformat {
                Subformat::Differencing => locator_paths(header, len),
                _ => Vec::new(),
            };
            check_table(path, &table, &layout, &paths, len)?;
        }
        let copy = footer::copy(store, len).map_err(os)?;
        let copy_stale = copy.is_none_or(|copy| copy.as_bytes() != found.footer.as_bytes());
        let end = end_of(&table, header, &layout, len);
        let footer_at = match found.source {
            Source::Trailing(at) => Some(at),
            Source::Copy => None,
        };
        let tail = match footer_at == Some(end) && len == end + FOOTER_SIZE as u64 {
            true => Tail::Footer,
            false => Tail::Leavings,
        };
        let footer = found.footer;
        let mut allocator = Self {
            layout,
            table,
            footer,
            end,
            len,
            tail,
            footer_at: footer_at.map_or(end, |at| at.max(end)),
            copy_stale,
            pending: BTreeSet::new(),
            recording: BTreeSet::new(),
        };
        if writable && footer_at.is_none_or(|at| at < end) {
            let os = |source| OpenError::Os { path: path.into(), action: "cannot write its footer", source };
            allocator.enclose(store).map_err(os)?;
        }
        Ok(allocator)
    }

    /// Put the footer right behind the last block, and cut the file behind it. One of the two footers is on stable
    /// storage at every moment.
    fn enclose(&mut self, store: &dyn Store) -> io::Result<()> {
        if self.copy_stale {
            store.write_at(self.footer.as_bytes(), 0)?;
            store.sync()?;
            self.copy_stale = false;
        }
        if self.tail == Tail::Leavings {
            self.close(store)?;
            // What was there would be the end of the file, if the power failed and only its size was new.
            store.sync()?;
            store.set_size(self.len)?;
            self.tail = Tail::Footer;
        }
        Ok(())
    }

    /// Give the disk a new time stamp, on stable storage. Before the first block is allocated.
    pub(super) fn renew_stamp(&mut self, store: &dyn Store) -> io::Result<()> {
        stamp::renew(&mut self.footer, store);
        footer::rewrite(store, &self.footer, Some(self.footer_at))?;
        self.len = self.len.max(self.footer_at + FOOTER_SIZE as u64);
        self.copy_stale = false;
        Ok(())
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

    /// Blocks whose entries wait for a flush.
    pub(super) fn changes(&self) -> usize {
        self.pending.len()
    }

    /// Whether the block is new: its entry or its bitmap may not be on disk.
    pub(super) fn is_new(&self, block: u64) -> bool {
        u32::try_from(block)
            .is_ok_and(|block| self.pending.contains(&block) || self.recording.contains(&block))
    }

    /// Take what has to be recorded; one flush at a time.
    pub(super) fn begin_record(&mut self) -> Vec<u32> {
        self.recording = std::mem::take(&mut self.pending);
        self.recording.iter().copied().collect()
    }

    /// The blocks are recorded (`done`), or have to be recorded again.
    pub(super) fn recorded(&mut self, done: bool) {
        let recording = std::mem::take(&mut self.recording);
        if !done {
            self.pending.extend(recording);
        }
    }

    /// Allocate a block at the end of the file, all zeros, and space for the footer behind it. There is no trailing
    /// footer until [`close`](Self::close) puts it there: until then the copy at the start is the only one.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error: the disk is as it was.
    pub(super) fn allocate(
        &mut self,
        store: &dyn Store,
        layout: &Layout,
        block: u64,
    ) -> Result<u32, IoError> {
        let data = (self.end + layout.bitmap).next_multiple_of(layout.alignment());
        let end = data + layout.block_size();
        let entry = u32::try_from((data - layout.bitmap) / SECTOR).ok().filter(|entry| *entry != UNALLOCATED);
        let (Some(entry), Ok(index)) = (entry, usize::try_from(block)) else { return Err(IoError::NoSpace) };
        if index >= self.table.len() {
            return Err(IoError::OutOfRange);
        }
        self.enclose(store).map_err(|error| io_error(&error))?;
        let len = end + FOOTER_SIZE as u64;
        if let Err(error) = self.extend_with_zeros(store, len) {
            // Restore the file, as far as the host allows; if it does not, the copy at the start still makes the image
            // valid.
            let restored = self.close(store).and_then(|()| store.set_size(self.len));
            self.tail = if restored.is_ok() { Tail::Footer } else { Tail::Leavings };
            return Err(io_error(&error));
        }
        if let Some(slot) = self.table.get_mut(index) {
            *slot = entry;
        }
        (self.end, self.len, self.tail) = (end, len, Tail::Zeros);
        self.pending.insert(index as u32);
        Ok(entry)
    }

    /// Have zeros from the end of the last block up to `len`, the end of the file.
    fn extend_with_zeros(&mut self, store: &dyn Store, len: u64) -> io::Result<()> {
        store.reserve(self.end, len)?;
        match self.tail {
            Tail::Zeros => Ok(()),
            _ => store.write_at(&[0; FOOTER_SIZE], self.end),
        }
    }

    /// Put the footer behind the last block.
    pub(super) fn close(&mut self, store: &dyn Store) -> io::Result<()> {
        // If it does not get there in full, something may be there all the same.
        let before = std::mem::replace(&mut self.tail, Tail::Leavings);
        store.write_at(self.footer.as_bytes(), self.end)?;
        self.len = self.end + FOOTER_SIZE as u64;
        if before != Tail::Leavings {
            self.tail = Tail::Footer;
        }
        Ok(())
    }

    /// The sectors of the table that hold these blocks, in rising order.
    pub(super) fn table_sectors(blocks: &[u32]) -> impl Iterator<Item = u32> {
        let mut last = None;
        blocks
            .iter()
            .map(|block| block / ENTRIES_PER_SECTOR)
            .filter(move |sector| last.replace(*sector) != Some(*sector))
    }

    /// A sector of the table, and its byte offset there. Entries of pending blocks are left out: these blocks are not
    /// on stable storage yet.
    pub(super) fn table_sector(&self, sector: u32) -> (u64, [u8; SECTOR as usize]) {
        let first = sector * ENTRIES_PER_SECTOR;
        let mut bytes = [0xFF; SECTOR as usize];
        for (slot, block) in bytes.chunks_exact_mut(4).zip(first..) {
            if !self.pending.contains(&block) {
                slot.copy_from_slice(&self.entry(u64::from(block)).to_be_bytes());
            }
        }
        (u64::from(sector) * SECTOR, bytes)
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
fn check_table(
    path: &Path,
    table: &[u32],
    layout: &Layout,
    paths: &[(u64, u64)],
    len: u64,
) -> Result<(), OpenError> {
    let repair = "(run `image check --repair`)";
    let mut starts: Vec<(u32, usize)> = Vec::new();
    for (block, entry) in table.iter().enumerate().filter(|(_, entry)| **entry != UNALLOCATED) {
        let (bitmap, end) = layout.block_range(*entry);
        if layout.hits_metadata(bitmap, end) || bitmap + layout.bitmap > len {
            let expected =
                format!("outside the metadata and before sector {} for block {block} {repair}", len / SECTOR);
            return Err(BadField::new("BAT entry", entry.to_string(), expected).of(path));
        }
        if paths.iter().any(|(at, to)| bitmap < *to && *at < end) {
            let expected = format!("no block over a parent locator, for block {block} {repair}");
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
