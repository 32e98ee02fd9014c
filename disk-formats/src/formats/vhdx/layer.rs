//! One image of a chain, as the block map resolves it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{ENTRY, Entry, Layout, State};
use super::overlay::Overlay;
use super::region::Run;
use super::spec::{HEADER_SECTION, MIB};
use crate::contract::error::IoError;
use crate::host::store::{Store, io_error};
use crate::map::block_map::{Base, Claim};
use crate::map::chain_map;

/// Sector size of the map, whatever the disk's logical sector is.
const MAP_SECTOR: u64 = 512;

/// An image of a chain.
pub(super) struct Layer {
    /// The file, or the file with its log applied in memory.
    pub(super) store: Arc<dyn Store>,
    /// The log applied in memory, if it was not replayed in the file.
    pub(super) overlay: Option<Arc<Overlay>>,
    pub(super) layout: Layout,
    /// Virtual size in bytes, or less if an image above is smaller: the part that is visible from the top.
    pub(super) size: u64,
    /// Size of the file in bytes, rounded up to whole MiB. That of the top image grows.
    pub(super) len: AtomicU64,
    /// The size of the file is not whole MiB.
    pub(super) ragged: bool,
    /// Number of replayed log entries.
    pub(super) replayed: usize,
}

/// BAT entries of consecutive blocks.
pub(super) struct Entries {
    layout: Layout,
    /// Index in the BAT of the first entry.
    first: u64,
    slots: Vec<Entry>,
    /// Chunks of these blocks, with the entries of their bitmap blocks.
    bitmaps: Vec<(u64, Entry)>,
    /// Blocks whose bitmaps on disk are stale.
    stale_bitmaps: Vec<u64>,
}

/// Read `count` entries of the BAT from the file, from index `first` on.
pub(super) fn read_bat(store: &dyn Store, layout: &Layout, first: u64, count: u64) -> io::Result<Vec<Entry>> {
    let mut bytes = vec![0; (count * ENTRY) as usize];
    store.read_at(&mut bytes, layout.bat.offset + first * ENTRY)?;
    let (entries, _) = bytes.as_chunks::<{ ENTRY as usize }>();
    Ok(entries.iter().map(|entry| Entry(u64::from_le_bytes(*entry))).collect())
}

impl Entries {
    /// Read the entries for `len` bytes at `offset` of the disk.
    pub(super) fn read(store: &dyn Store, layout: &Layout, offset: u64, len: u64) -> io::Result<Self> {
        let (first, end) = (offset >> layout.block_shift, (offset + len).div_ceil(layout.block_size()));
        let end = end.min(layout.blocks());
        let mut entries = Self {
            layout: *layout,
            first: 0,
            slots: Vec::new(),
            bitmaps: Vec::new(),
            stale_bitmaps: Vec::new(),
        };
        if first >= end {
            return Ok(entries);
        }
        entries.first = layout.payload_index(first);
        let count = layout.payload_index(end - 1) - entries.first + 1;
        entries.slots = read_bat(store, layout, entries.first, count)?;
        if layout.has_parent && entries.slots.iter().any(|entry| entry.state() == State::PartiallyPresent) {
            for chunk in layout.chunk(first)..=layout.chunk(end - 1) {
                let found = read_bat(store, layout, layout.bitmap_index(chunk), 1)?;
                entries.bitmaps.push((chunk, found.first().copied().unwrap_or_default()));
            }
        }
        Ok(entries)
    }

    /// Replace entries from disk by `changed` ones from memory, and note the blocks whose bitmaps on disk are stale.
    pub(super) fn overlay(&mut self, changed: impl Fn(u64) -> Option<Entry>, is_stale: impl Fn(u64) -> bool) {
        for (slot, index) in self.slots.iter_mut().zip(self.first..) {
            *slot = changed(index).unwrap_or(*slot);
        }
        for (chunk, entry) in &mut self.bitmaps {
            *entry = changed(self.layout.bitmap_index(*chunk)).unwrap_or(*entry);
        }
        let blocks = (self.first..self.first + self.slots.len() as u64).filter_map(|index| {
            match self.layout.slot(index) {
                super::layout::Slot::Payload(block) => Some(block),
                super::layout::Slot::Bitmap(_) => None,
            }
        });
        self.stale_bitmaps = blocks.filter(|block| is_stale(*block)).collect();
    }

    /// The entry of a block.
    fn get(&self, block: u64) -> Result<Entry, IoError> {
        let at = self.layout.payload_index(block).checked_sub(self.first);
        let entry = at.and_then(|at| self.slots.get(usize::try_from(at).ok()?)).copied();
        entry.ok_or(IoError::Damaged("a block is outside of the part of the BAT that was read"))
    }
}

impl chain_map::Layer for Layer {
    type Entries = Entries;

    fn entries(&self, offset: u64, len: u64) -> Result<Entries, IoError> {
        Entries::read(&*self.store, &self.layout, offset, len).map_err(io_error)
    }

    fn claim(
        &self,
        file: u32,
        entries: &Entries,
        offset: u64,
        len: u64,
        claim: &mut Claim,
    ) -> Result<(), IoError> {
        let (layout, mut at) = (&self.layout, offset);
        while at < (offset + len).min(self.size) && !claim.complete() {
            let within = at & (layout.block_size() - 1);
            let part = (layout.block_size() - within).min(offset + len - at);
            self.claim_block(file, entries, (offset, at, part), claim)?;
            at += part;
        }
        Ok(())
    }
}

impl Layer {
    /// Claim the sectors that one block has of a granule: `part` bytes at `at`.
    fn claim_block(
        &self,
        file: u32,
        entries: &Entries,
        (granule, at, part): (u64, u64, u64),
        claim: &mut Claim,
    ) -> Result<(), IoError> {
        let layout = &self.layout;
        let block = at >> layout.block_shift;
        let entry = entries.get(block)?;
        // No sectors are present beyond the disk's end.
        let first = ((at - granule) / MAP_SECTOR) as usize;
        let end = first + (self.size.saturating_sub(at).min(part) / MAP_SECTOR) as usize;
        let partial = match entry.state() {
            State::NotPresent => return Ok(()),
            State::Undefined | State::Zero | State::Unmapped => {
                claim.claim_zeros(first, end);
                return Ok(());
            }
            State::FullyPresent => false,
            // Without a parent, a partially present block counts as fully present.
            State::PartiallyPresent => layout.has_parent,
            State::Reserved(_) => return Err(IoError::Damaged("a BAT entry has a reserved state")),
        };
        let start = self.checked(block, entry)?;
        let data = start + (at & (layout.block_size() - 1));
        // Offset at which the whole granule would start in the file.
        let base = Base { file, offset: data.wrapping_sub(at - granule) };
        if at == granule && file == 0 {
            claim.set_top(data);
        }
        if !partial {
            claim.claim_run(base, first, end);
            return Ok(());
        }
        if file == 0 && entries.stale_bitmaps.contains(&block) {
            return Ok(());
        }
        let bits = self.bits(entries, at, part.min(self.size.saturating_sub(at)))?;
        let per_bit = u64::from(layout.sector.bytes()) / MAP_SECTOR;
        let has = |sector: usize| Layout::has_bit(&bits, (sector - first) as u64 / per_bit);
        claim.claim(base, first, end, has);
        Ok(())
    }

    /// The byte offset of a block's data, if the entry is valid.
    fn checked(&self, block: u64, entry: Entry) -> Result<u64, IoError> {
        let (start, len) = (entry.offset(), self.len.load(Ordering::Acquire));
        if start < HEADER_SECTION {
            return Err(IoError::Damaged("a BAT entry points into the headers"));
        }
        let last = block + 1 == self.layout.blocks();
        if start >= len || !last && start + self.layout.block_size() > len {
            return Err(IoError::Damaged("a BAT entry points behind the end of the file"));
        }
        let run = Run { offset: start, len: self.layout.block_size() };
        if self.overlay.as_ref().is_some_and(|overlay| overlay.touches(run)) {
            return Err(IoError::Damaged(
                "the log changes payload: open the image for writing, so that it is replayed",
            ));
        }
        Ok(start)
    }

    /// Read the bitmap of `len` bytes at `at`, which is a multiple of 1 MiB.
    fn bits(&self, entries: &Entries, at: u64, len: u64) -> Result<Vec<u8>, IoError> {
        let layout = &self.layout;
        let chunk = layout.chunk(at >> layout.block_shift);
        let entry = entries.bitmaps.iter().find(|(number, _)| *number == chunk).map(|(_, entry)| *entry);
        // Some programs write state 7 instead of 6 into the entry of a bitmap block.
        let entry = entry.filter(|entry| entry.present() && entry.offset() >= HEADER_SECTION);
        let Some(entry) = entry else {
            return Err(IoError::Damaged("a block is partially present, but has no bitmap block"));
        };
        if entry.offset() > self.len.load(Ordering::Acquire).saturating_sub(MIB) {
            return Err(IoError::Damaged("a bitmap block lies behind the end of the file"));
        }
        let count = len.div_ceil(u64::from(layout.sector.bytes())).div_ceil(8);
        let mut bits = vec![0; count as usize];
        self.store.read_at(&mut bits, entry.offset() + layout.bit(at) / 8).map_err(io_error)?;
        Ok(bits)
    }
}
