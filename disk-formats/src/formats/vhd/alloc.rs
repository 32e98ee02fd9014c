//! The block allocation table (BAT) of an open disk, and the allocation of new blocks.

use std::collections::BTreeSet;
use std::io;

use zerocopy::IntoBytes;

use super::bat::{self, Defect};
use super::batmap::Batmap;
use super::footer::{self, Found, Subformat};
use super::layer::{Entries, read_bat};
use super::layout::{Layout, locator_areas, locator_paths};
use super::spec::{DynamicHeader, FOOTER_SIZE, Footer, SECTOR, UNALLOCATED};
use super::stamp;
use crate::contract::error::{BadField, IoError, OpenError};
use crate::host::store::{Store, io_error};

/// Entries in a sector of the table.
const ENTRIES_PER_SECTOR: u32 = (SECTOR / 4) as u32;

/// What follows the last block in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// The footer, and nothing else.
    Footer,
    /// Zeros in the footer's place. The file never ends with guest data, which could look like a footer.
    Zeros,
    /// Unknown: remains of allocations that a crash or an error interrupted.
    Unknown,
}

/// The BAT in memory, and the end of the blocks in the file.
pub(super) struct Allocator {
    layout: Layout,
    table: Vec<u32>,
    footer: Footer,
    /// The place of the footer, behind the last block. The next block begins here, or at the next aligned offset.
    end: u64,
    /// [`Layout::aligns_footer`].
    aligns_footer: bool,
    /// Size of the file in bytes.
    len: u64,
    tail: Tail,
    /// Offset of the trailing footer until the first block is allocated.
    footer_at: u64,
    /// The copy of the footer at the start of the file is outdated or damaged.
    copy_stale: bool,
    /// Blocks whose entries are not on disk yet; below, those that a flush is writing.
    pending: BTreeSet<u32>,
    recording: BTreeSet<u32>,
}

impl Allocator {
    /// Read and check the BAT of an image. If the disk is opened for writing and its trailing footer is lost, write it
    /// again: otherwise a guest could write data with a forged footer to the last sector of the file.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] if the disk is opened for writing, and entries point into the metadata, beyond the end of
    /// the file, or to overlapping blocks, or if data of a block are beyond the end of the file. Writes to such an image
    /// could damage more data, or hide what is lost.
    pub(super) fn open(
        store: &dyn Store,
        found: &Found,
        header: &DynamicHeader,
        layout: Layout,
        writable: bool,
    ) -> Result<Self, OpenError> {
        let path = store.path();
        let os = OpenError::os(path, "cannot read the BAT");
        let len = store.len().map_err(os)?;
        let table = read_bat(store, &layout, 0, u64::from(layout.used_entries())).map_err(os)?;
        if writable {
            let paths = locator_paths(found.subformat, header, len);
            let mut first = None;
            bat::check(&table, &layout, &paths, len, |block, entry, defect| {
                first.get_or_insert((block, entry, defect));
            });
            if let Some((block, entry, defect)) = first {
                return Err(refusal(block, entry, defect, &layout, len).of(path));
            }
            let mut first = None;
            let there = found.source.trailing().unwrap_or(len);
            bat::cut_off(store, &layout, &table, there, |bad| {
                first.get_or_insert(bad);
            })
            .map_err(os)?;
            if let Some(bad) = first {
                let expected = format!("{} (run `image check --repair`)", bad.expected);
                return Err(BadField { expected, ..bad }.of(path));
            }
        }
        let copy = footer::copy(store, len).map_err(os)?;
        let copy_stale = copy.is_none_or(|copy| copy.as_bytes() != found.footer.as_bytes());
        let batmap = Batmap::find(store, &layout, len).map_err(os)?;
        let footer_at = found.source.trailing();
        let end = end_of(&table, (found.subformat, header), &layout, batmap.as_ref(), len);
        let aligns_footer = layout.aligns_footer(end, footer_at);
        let end = layout.footer_place(end, footer_at, aligns_footer);
        let tail = match footer_at == Some(end) && len == end + FOOTER_SIZE as u64 {
            true => Tail::Footer,
            false => Tail::Unknown,
        };
        let footer = found.footer;
        let mut allocator = Self {
            layout,
            table,
            footer,
            end,
            aligns_footer,
            len,
            tail,
            footer_at: footer_at.map_or(end, |at| at.max(end)),
            copy_stale,
            pending: BTreeSet::new(),
            recording: BTreeSet::new(),
        };
        if writable && footer_at.is_none_or(|at| at < end) {
            let os = OpenError::os(path, "cannot write its footer");
            allocator.place_footer(store).map_err(os)?;
            if let Some(at) = footer_at {
                footer::erase(store, at, end).map_err(os)?;
            }
        }
        Ok(allocator)
    }

    /// Write the footer right after the last block, and truncate the file there. At every moment one of the two footers
    /// is on stable storage.
    fn place_footer(&mut self, store: &dyn Store) -> io::Result<()> {
        if self.copy_stale {
            store.write_at(self.footer.as_bytes(), 0)?;
            store.sync()?;
            self.copy_stale = false;
        }
        if self.tail == Tail::Unknown {
            self.close(store)?;
            // If a power failure kept the new size but not the footer, the previous content of this sector would be the
            // end of the file.
            store.sync()?;
            store.set_size(self.len)?;
            self.tail = Tail::Footer;
        }
        Ok(())
    }

    /// Give the disk a new time stamp, on stable storage. Called before the first block is allocated.
    pub(super) fn renew_stamp(&mut self, store: &dyn Store) -> io::Result<()> {
        stamp::renew(&mut self.footer, store);
        footer::rewrite(store, &self.footer, Some(self.footer_at))?;
        self.len = self.len.max(self.footer_at + FOOTER_SIZE as u64);
        self.copy_stale = false;
        Ok(())
    }

    /// The BAT entries for a range.
    pub(super) fn entries(&self, offset: u64, len: u64) -> Entries {
        Entries::of_table(&self.table, &self.layout, offset, len)
    }

    /// The BAT entry of a block.
    pub(super) fn entry(&self, block: u64) -> u32 {
        usize::try_from(block).ok().and_then(|block| self.table.get(block)).copied().unwrap_or(UNALLOCATED)
    }

    /// Size of the file in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Number of blocks whose entries wait for a flush.
    pub(super) fn changes(&self) -> usize {
        self.pending.len()
    }

    /// Whether the block's entry or bitmap may not be on disk yet.
    pub(super) fn is_new(&self, block: u64) -> bool {
        u32::try_from(block)
            .is_ok_and(|block| self.pending.contains(&block) || self.recording.contains(&block))
    }

    /// The blocks to record. The caller ensures that only one flush runs at a time.
    pub(super) fn begin_record(&mut self) -> Vec<u32> {
        self.recording = std::mem::take(&mut self.pending);
        self.recording.iter().copied().collect()
    }

    /// With `done`, the blocks are recorded. Otherwise they must be recorded again.
    pub(super) fn recorded(&mut self, done: bool) {
        let recording = std::mem::take(&mut self.recording);
        if !done {
            self.pending.extend(recording);
        }
    }

    /// Allocate a zeroed block at the end of the file, and space for the footer after it. The file has no trailing
    /// footer until [`close`](Self::close) writes it: until then the copy at the start is the only footer.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error; the disk is unchanged.
    pub(super) fn allocate(
        &mut self,
        store: &dyn Store,
        layout: &Layout,
        block: u64,
    ) -> Result<u32, IoError> {
        let data = (self.end + layout.bitmap).next_multiple_of(layout.alignment());
        let end = layout.footer_place(data + layout.block_size(), None, self.aligns_footer);
        let entry = u32::try_from((data - layout.bitmap) / SECTOR).ok().filter(|entry| *entry != UNALLOCATED);
        let (Some(entry), Ok(index)) = (entry, usize::try_from(block)) else { return Err(IoError::NoSpace) };
        if index >= self.table.len() {
            return Err(IoError::OutOfRange);
        }
        self.place_footer(store).map_err(io_error)?;
        let len = end + FOOTER_SIZE as u64;
        if let Err(error) = self.extend_with_zeros(store, len) {
            // Restore the file, as far as the host allows. If that fails, the copy of the footer at the start keeps the
            // image valid.
            let restored = self.close(store).and_then(|()| store.set_size(self.len));
            self.tail = if restored.is_ok() { Tail::Footer } else { Tail::Unknown };
            return Err(io_error(error));
        }
        if let Some(slot) = self.table.get_mut(index) {
            *slot = entry;
        }
        (self.end, self.len, self.tail) = (end, len, Tail::Zeros);
        self.pending.insert(index as u32);
        Ok(entry)
    }

    /// Extend the file with zeros from the place of the footer to `len`.
    fn extend_with_zeros(&mut self, store: &dyn Store, len: u64) -> io::Result<()> {
        store.reserve(self.end, len)?;
        match self.tail {
            Tail::Zeros => Ok(()),
            _ => store.write_at(&[0; FOOTER_SIZE], self.end),
        }
    }

    /// Write the footer after the last block.
    pub(super) fn close(&mut self, store: &dyn Store) -> io::Result<()> {
        // A failed write may have written a part of the footer.
        let before = std::mem::replace(&mut self.tail, Tail::Unknown);
        store.write_at(self.footer.as_bytes(), self.end)?;
        self.len = self.end + FOOTER_SIZE as u64;
        if before != Tail::Unknown {
            self.tail = Tail::Footer;
        }
        Ok(())
    }

    /// The sectors of the BAT that have the entries of these blocks, in ascending order.
    pub(super) fn table_sectors(blocks: &[u32]) -> impl Iterator<Item = u32> {
        let mut last = None;
        blocks
            .iter()
            .map(|block| block / ENTRIES_PER_SECTOR)
            .filter(move |sector| last.replace(*sector) != Some(*sector))
    }

    /// The content of a sector of the BAT, and its byte offset in the BAT. Entries of pending blocks are omitted,
    /// because these blocks are not on stable storage yet.
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

/// The end of everything in the file except the trailing footer.
pub(super) fn end_of(
    table: &[u32],
    (subformat, header): (Subformat, &DynamicHeader),
    layout: &Layout,
    batmap: Option<&Batmap>,
    len: u64,
) -> u64 {
    let blocks =
        table.iter().filter(|entry| **entry != UNALLOCATED).map(|entry| layout.block_range(*entry).1);
    let areas = locator_areas(subformat, header, len).map(|(_, at, _, space)| at + space);
    let metadata = layout.metadata().into_iter().chain(batmap.into_iter().flat_map(Batmap::areas));
    blocks.chain(areas).chain(metadata.map(|(_, end)| end)).fold(0, u64::max).next_multiple_of(SECTOR)
}

/// The error for an image that is opened for writing with an invalid entry.
fn refusal(block: u32, entry: u32, defect: Defect, layout: &Layout, len: u64) -> BadField {
    let (value, expected) = match defect {
        Defect::OverMetadata | Defect::BeyondEnd => {
            let end = len / SECTOR;
            (entry.to_string(), format!("outside the metadata and before sector {end} for block {block}"))
        }
        Defect::OverLocator => {
            (entry.to_string(), format!("no block over a parent locator, for block {block}"))
        }
        Defect::Overlap(before, other) => (
            format!("{before} of block {other} and {entry} of block {block}"),
            format!("{} sectors or more apart", (layout.bitmap + layout.block_size()) / SECTOR),
        ),
    };
    BadField::new("BAT entry", value, format!("{expected} (run `image check --repair`)"))
}
