//! The BAT of a writable disk: pending changes, allocation of new blocks, and reclamation of freed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::journal::Sectors;
use super::layer::{Entries, read_bat};
use super::layout::{ENTRY, Entry, Layout, Slot, State};
use super::opened::Opened;
use super::region::Run;
use super::scan::used_space;
use super::space::Space;
use super::spec::{LOG_SECTOR, MIB};
use crate::contract::error::{IoError, ReadError};
use crate::formats::sparse::Allocated;
use crate::host::store::{Store, io_error};
use crate::map::epochs::Epochs;

/// Changes of the BAT in memory, and the map of used space in the file.
pub(super) struct Allocator {
    layout: Layout,
    space: Space,
    /// By index in the BAT: changes that no flush has begun to record.
    pending: BTreeMap<u64, Entry>,
    /// By index in the BAT: the changes of the batch that a flush is recording.
    recording: BTreeMap<u64, Entry>,
    /// Partially present blocks whose bits on disk are stale: the bits are older than the allocation of the block. Stale bits count as 0.
    stale_bitmaps: BTreeSet<u64>,
    /// Space that pending changes free, with the index of the change.
    released: Vec<(u64, Run)>,
    /// Space whose release is recorded, but which requests in flight may still use, with the epoch that must end first.
    retired: Vec<(u64, Run)>,
}

/// A batch of changes that a flush is recording. [`Allocator::recorded`] or [`Allocator::restore`] ends it. The BAT entries of the batch
/// are in [`Allocator::recording`].
pub(super) struct Batch {
    /// Blocks whose stale bitmaps the batch replaces.
    stale_bitmaps: BTreeSet<u64>,
    /// Space that the batch frees, as in [`Allocator`].
    released: Vec<(u64, Run)>,
}

/// Maximum number of bytes of BAT and bitmap sectors that one batch changes (approximate).
const TABLE_BATCH: u64 = 8 << 20;

impl Allocator {
    /// Read and check the BAT of an image.
    pub(super) fn open(image: &Opened) -> Result<Self, ReadError> {
        let len = image.store.len()?;
        let (space, _) = used_space(image, len, "at most 128 TiB for an image that is written")?;
        Ok(Self {
            layout: image.layout,
            space,
            pending: BTreeMap::new(),
            recording: BTreeMap::new(),
            stale_bitmaps: BTreeSet::new(),
            released: Vec::new(),
            retired: Vec::new(),
        })
    }

    fn entry(&self, store: &dyn Store, index: u64) -> Result<Entry, IoError> {
        if let Some(entry) = self.changed(index) {
            return Ok(entry);
        }
        let read = read_bat(store, &self.layout, index, 1).map_err(io_error)?;
        read.first().copied().ok_or(IoError::Damaged("an entry of the BAT was not read"))
    }

    fn changed(&self, index: u64) -> Option<Entry> {
        self.pending.get(&index).or_else(|| self.recording.get(&index)).copied()
    }

    /// The BAT entry of a payload block.
    pub(super) fn payload(&self, store: &dyn Store, block: u64) -> Result<Entry, IoError> {
        self.entry(store, self.layout.payload_index(block))
    }

    /// The BAT entries for a range, with pending changes.
    pub(super) fn entries(&self, store: &dyn Store, offset: u64, len: u64) -> Result<Entries, IoError> {
        let mut entries = Entries::read(store, &self.layout, offset, len).map_err(io_error)?;
        entries.overlay(|index| self.changed(index), |block| self.stale_bitmaps.contains(&block));
        Ok(entries)
    }

    /// Allocate a zeroed block; `None` if it is allocated already.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error; the disk is unchanged.
    pub(super) fn allocate(
        &mut self,
        store: &dyn Store,
        epochs: &Epochs,
        block: u64,
    ) -> Result<Option<Allocated>, IoError> {
        let index = self.layout.payload_index(block);
        let entry = self.entry(store, index)?;
        if entry.present() {
            return Ok(None);
        }
        if let State::Reserved(_) = entry.state() {
            return Err(IoError::Damaged("a BAT entry has a reserved state"));
        }
        self.reclaim(store, epochs);
        let whole = !(self.layout.has_parent && entry.state() == State::NotPresent);
        if !whole {
            self.ensure_bitmap(store, self.layout.chunk(block))?;
        }
        let size = self.layout.block_size();
        let offset = match entry.holds_space() {
            true => {
                // The block reuses the space that it kept when it was trimmed.
                store.write_zeroes(entry.offset(), size, store.keeps_holes())?;
                entry.offset()
            }
            false => self.new_space(store, size)?,
        };
        let entry = if whole { Entry::fully(offset) } else { Entry::partially(offset) };
        self.pending.insert(index, entry);
        if !whole {
            self.stale_bitmaps.insert(block);
        }
        Ok(Some(Allocated { offset, whole }))
    }

    /// Allocate the bitmap block of a chunk if it has none.
    fn ensure_bitmap(&mut self, store: &dyn Store, chunk: u64) -> Result<(), IoError> {
        let index = self.layout.bitmap_index(chunk);
        if !self.entry(store, index)?.present() {
            let offset = self.new_space(store, MIB)?;
            self.pending.insert(index, Entry::fully(offset));
        }
        Ok(())
    }

    /// Take free space, and zero it.
    fn new_space(&mut self, store: &dyn Store, len: u64) -> Result<u64, IoError> {
        let before = self.space.end();
        let taken = self.space.take(len).ok_or(IoError::NoSpace)?;
        let made = match taken.used_before {
            true => store.write_zeroes(taken.run.offset, len, store.keeps_holes()),
            false => store.reserve(before, taken.run.end()).map_err(io_error),
        };
        if made.is_err() {
            match taken.used_before {
                true => self.space.free(taken.run),
                false => {
                    // Restore the file's size, if possible.
                    self.space.shorten(before);
                    let _ = store.set_size(before);
                }
            }
        }
        made.map(|()| taken.run.offset)
    }

    /// Free a block, so that it reads as zeros from now on. A block without space is only marked. `false` if it already
    /// reads as zeros and holds no space.
    pub(super) fn free(&mut self, store: &dyn Store, block: u64, to: Entry) -> Result<bool, IoError> {
        let index = self.layout.payload_index(block);
        let entry = self.entry(store, index)?;
        let idle = match entry.state() {
            // Without a parent, such a block reads as zeros already.
            State::NotPresent => !self.layout.has_parent,
            State::Undefined | State::Unmapped => entry.offset() == 0,
            State::Zero => true,
            State::FullyPresent | State::PartiallyPresent | State::Reserved(_) => false,
        };
        if idle {
            return Ok(false);
        }
        if entry.holds_space() {
            self.released.push((index, Run { offset: entry.offset(), len: self.layout.block_size() }));
        }
        self.stale_bitmaps.remove(&block);
        self.pending.insert(index, to);
        Ok(true)
    }

    /// Number of entries that wait to be recorded.
    pub(super) fn changes(&self) -> usize {
        self.pending.len()
    }

    /// All sectors of a partially present block have been written, so its bitmap is no longer needed.
    pub(super) fn complete(&mut self, block: u64, entry: Entry) {
        self.stale_bitmaps.remove(&block);
        self.pending.insert(self.layout.payload_index(block), Entry::fully(entry.offset()));
    }

    /// Whether the block's bitmap on disk is stale.
    pub(super) fn bitmap_is_stale(&self, block: u64) -> bool {
        self.stale_bitmaps.contains(&block)
    }

    /// Byte offset of a chunk's bitmap block, if it has one.
    pub(super) fn bitmap(&self, store: &dyn Store, chunk: u64) -> Result<Option<u64>, IoError> {
        let entry = self.entry(store, self.layout.bitmap_index(chunk))?;
        Ok(entry.present().then(|| entry.offset()))
    }

    /// The next payload blocks to record: those with pending entries, and one block of the chunk for each pending bitmap block. Goes
    /// through the pending entries with indices below `below`, the highest first, until their BAT sectors and stale bitmaps are about
    /// [`TABLE_BATCH`] bytes. Sets `below` to the lowest index that it took, for the next call; 0 if no entry is left. The
    /// entries stay pending.
    pub(super) fn pending_blocks(&self, below: &mut u64) -> BTreeSet<u64> {
        let bits = self.layout.bits_per_block() / 8;
        let (mut blocks, mut bytes) = (BTreeSet::new(), 0);
        let (mut last_entries, mut last_bits) = (u64::MAX, u64::MAX);
        for (index, _) in self.pending.range(..*below).rev() {
            if bytes >= TABLE_BATCH {
                return blocks;
            }
            *below = *index;
            let sector = (self.layout.bat.offset + index * ENTRY) / LOG_SECTOR;
            bytes += if std::mem::replace(&mut last_entries, sector) == sector { 0 } else { LOG_SECTOR };
            let block = match self.layout.slot(*index) {
                Slot::Payload(block) => block,
                // Any block of the chunk stands for its bitmap block.
                Slot::Bitmap(chunk) => chunk << self.layout.ratio_shift(),
            };
            if self.stale_bitmaps.contains(&block) {
                let sector = block * bits / LOG_SECTOR;
                let before = std::mem::replace(&mut last_bits, sector);
                bytes += if before == sector { 0 } else { bits.max(LOG_SECTOR) };
            }
            blocks.insert(block);
        }
        *below = 0;
        blocks
    }

    /// Move the pending entries of these payload blocks, and of the bitmap blocks of their chunks, to `recording`.
    /// Returns the new content of their BAT sectors; other entries in these sectors are as on disk.
    pub(super) fn begin_record(
        &mut self,
        store: &dyn Store,
        blocks: impl IntoIterator<Item = u64>,
    ) -> io::Result<(Sectors, Batch)> {
        let (mut sectors, mut taken) = (Sectors::default(), BTreeMap::new());
        for block in blocks {
            // A partially present block requires its chunk's bitmap block.
            let chunk = self.layout.chunk(block);
            for index in [self.layout.bitmap_index(chunk), self.layout.payload_index(block)] {
                if let Some(entry) = self.pending.get(&index) {
                    sectors.patch(store, self.layout.bat.offset + index * ENTRY, &entry.0.to_le_bytes())?;
                    taken.insert(index, *entry);
                }
            }
        }
        self.pending.retain(|index, _| !taken.contains_key(index));
        let released = self.released.extract_if(.., |(index, _)| taken.contains_key(index)).collect();
        let blocks = taken.keys().filter_map(|index| match self.layout.slot(*index) {
            Slot::Payload(block) => Some(block),
            Slot::Bitmap(_) => None,
        });
        let stale_bitmaps = blocks.filter(|block| self.stale_bitmaps.contains(block)).collect();
        self.recording = taken;
        Ok((sectors, Batch { stale_bitmaps, released }))
    }

    /// The batch is on stable storage in the log, and written in place.
    pub(super) fn recorded(&mut self, batch: Batch, epochs: &Epochs) {
        self.recording.clear();
        self.stale_bitmaps.retain(|block| !batch.stale_bitmaps.contains(block));
        let epoch = epochs.current();
        self.retired.extend(batch.released.into_iter().map(|(_, run)| (epoch, run)));
    }

    /// The batch could not be recorded: its entries are pending again.
    pub(super) fn restore(&mut self, batch: Batch) {
        let mut entries = std::mem::take(&mut self.recording);
        entries.append(&mut self.pending);
        self.pending = entries;
        self.released.extend(batch.released);
    }

    /// Make retired space reusable, and deallocate it, if no request in flight can use it any more.
    pub(super) fn reclaim(&mut self, store: &dyn Store, epochs: &Epochs) {
        let mut retired = std::mem::take(&mut self.retired);
        retired.retain(|(epoch, run)| {
            if !epochs.has_ended(*epoch) {
                return true;
            }
            // If the host cannot deallocate it, it stays allocated until the space is reused.
            let _ = store.write_zeroes(run.offset, run.len, true);
            self.space.free(*run);
            false
        });
        self.retired = retired;
    }

    /// Size in bytes that the file needs for its blocks.
    pub(super) fn end(&self) -> u64 {
        self.space.end()
    }
}
