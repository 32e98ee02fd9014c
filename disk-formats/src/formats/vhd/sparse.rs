//! An open dynamic or differencing disk with its chain: one block map for reads and overwrites, and the slow path that
//! resolves blocks, allocates them, and writes metadata in a crash-consistent order.
//!
//! Order of writes. A block is allocated, all zeros, when it is first written, with space for the footer behind it, so
//! that guest data are never the end of the file; its BAT entry exists in memory only. A flush
//! 1. puts the footer behind the last block;
//! 2. calls fdatasync: footer, allocation and payload are on stable storage;
//! 3. writes the bitmaps and BAT entries that were pending when it began;
//! 4. calls fdatasync again.
//!
//! Without new blocks or sectors, steps 1, 3 and 4 are left out. Many bitmaps are recorded in batches, so that the memory
//! of a flush is bounded: each batch is taken before an fdatasync and written after it (one more for each further batch).
//! So an entry never points to a block that is not on stable storage, and no bit is set for a sector that is not. A crash
//! leaves at worst a block that no entry points to, and only the copy of the footer.
//!
//! Before the first write of a session the footers get a new time stamp, on stable storage ([`stamp`](super::stamp)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::alloc::Allocator;
use super::layer::{Entries, Layer};
use super::layout::Layout;
use super::spec::{SECTOR, SECTORS_PER_BITMAP_SECTOR, UNALLOCATED};
use crate::disk::MapMemory;
use crate::disk::info::DiskInfo;
use crate::error::IoError;
use crate::formats::format::{Flush, Format, Mapping};
use crate::host::backing::BackingFile;
use crate::host::store::io_error;
use crate::map::block_map::{Dirty, Scan};
use crate::map::chain_map::ChainMap;
use crate::map::extent::{Extents, Place};

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: resolving, allocating and flushing, never a mapped I/O"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// Largest granule of the map: what one sector of a bitmap describes.
const MAX_GRANULE_SHIFT: u32 = (SECTORS_PER_BITMAP_SECTOR * SECTOR).trailing_zeros();

/// New blocks that wait for a flush at the most.
const PENDING: usize = 1 << 16;

/// Granules whose bitmaps a flush holds in memory at once: 512 bytes each.
const BATCH: usize = 4096;

/// A chain whose top is a dynamic or differencing VHD.
pub struct SparseVhd {
    info: DiskInfo,
    layout: Layout,
    chain: ChainMap<Layer>,
    files: Vec<Arc<BackingFile>>,
    /// Unique Id of the top image's footer; zeros where it does not count.
    id: [u8; 16],
    /// Sectors that the image does not hold are the parent's (else: zeros), so each is recorded in the bitmaps.
    differencing: bool,
    /// Also held while granules are resolved.
    allocator: Mutex<Allocator>,
    flushing: Mutex<()>,
    /// The new time stamp is on stable storage: blocks may be written.
    stamped: AtomicBool,
    /// Changes that the next flush has to record, counted.
    changes: AtomicU64,
    /// How many of them are recorded.
    settled: AtomicU64,
}

/// Where a sector of a bitmap is in the file, and what it holds.
type Bitmap = (u64, [u8; SECTOR as usize]);

impl SparseVhd {
    /// The chain of `layers`, whose first has `layout`. `files` are theirs, in the same order (none in crash tests). The map takes
    /// about `map_memory` bytes at the most.
    pub(super) fn new(
        info: DiskInfo,
        layout: Layout,
        layers: Vec<Layer>,
        files: Vec<Arc<BackingFile>>,
        allocator: Allocator,
        differencing: bool,
        map_memory: u64,
    ) -> Self {
        let shift = layout.block_shift.min(MAX_GRANULE_SHIFT);
        Self {
            chain: ChainMap::new(info.capacity, shift, layers, map_memory),
            info,
            layout,
            files,
            id: [0; 16],
            differencing,
            allocator: Mutex::new(allocator),
            flushing: Mutex::new(()),
            stamped: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        }
    }

    /// The same, inside another disk: no mapping is evicted between a write and its completion, which is passed on to
    /// the disk around.
    pub(super) fn inside(mut self) -> Self {
        if !self.info.read_only {
            self.chain.map.never_evict();
        }
        self
    }

    /// The same with a map of so many units, however few.
    #[cfg(test)]
    pub(super) fn with_map_units(mut self, units: u32) -> Self {
        // A disk that is dropped flushes: its parts cannot be moved out of it.
        self.chain.map =
            crate::map::block_map::BlockMap::with_units(self.info.capacity, self.chain.map.shift(), units);
        self
    }

    /// The same; it keeps its time stamp: its children must stay valid, as what it reads does not change.
    pub(super) fn without_stamp(mut self) -> Self {
        self.stamped = AtomicBool::new(true);
        self
    }

    /// Before the first change of what the disk reads.
    fn begin(&self, allocator: &mut Allocator) -> Result<(), IoError> {
        if self.stamped.load(Ordering::Acquire) {
            return Ok(());
        }
        let top = self.top()?;
        allocator.renew_stamp(&*top.store).map_err(|error| io_error(&error))?;
        top.len.store(allocator.len(), Ordering::Release);
        self.stamped.store(true, Ordering::Release);
        Ok(())
    }

    /// The same, where no block is allocated.
    fn begin_to_zero(&self) -> Result<(), IoError> {
        match self.stamped.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.begin(&mut *Self::lock(&self.allocator)?),
        }
    }

    /// The same, known by the Unique Id of its footer.
    pub(super) fn with_id(mut self, id: [u8; 16]) -> Self {
        self.id = id;
        self
    }

    /// Images of the chain, itself included.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.chain.layers.len()
    }

    #[allow(clippy::disallowed_types, reason = "as above")]
    fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>, IoError> {
        mutex.lock().map_err(|_| IoError::Damaged("an earlier request panicked"))
    }

    /// The image that is written.
    fn top(&self) -> Result<&Layer, IoError> {
        self.chain.layers.first().ok_or(IoError::Damaged("the chain has no image"))
    }

    /// Allocate the blocks of a range in the top file.
    fn allocate(&self, allocator: &mut Allocator, offset: u64, len: u64) -> Result<(), IoError> {
        let (top, shift) = (self.top()?, self.chain.map.shift());
        for block in offset >> self.layout.block_shift..(offset + len).div_ceil(self.layout.block_size()) {
            if allocator.entry(block) != UNALLOCATED {
                continue;
            }
            let entry = allocator.allocate(&*top.store, &self.layout, block)?;
            top.len.store(allocator.len(), Ordering::Release);
            self.changes.fetch_add(1, Ordering::AcqRel);
            let start = block << self.layout.block_shift;
            let end = (start + self.layout.block_size()).min(self.info.capacity);
            let wanted = self.chain.granules(offset, len);
            for granule in self.chain.granules(start, end - start) {
                let at = self.layout.data_at(entry) + ((granule << shift) - start);
                let evict = wanted.contains(&granule);
                self.chain.map.allocated(granule, at, !self.differencing, evict)?;
            }
        }
        Ok(())
    }

    /// Where a range is, on the slow path.
    fn pieces(&self, offset: u64, len: u64) -> Result<Extents, IoError> {
        self.chain.pieces(offset, len, || self.prepare_read(offset, len))
    }

    fn resolve(&self, allocator: &Allocator, offset: u64, len: u64) -> Result<bool, IoError> {
        let entries = |offset, len| {
            let mut entries = allocator.entries(offset, len);
            if !self.differencing {
                entries.complete(|block| allocator.is_new(block));
            }
            Ok(entries)
        };
        self.chain.resolve(entries, offset, len)
    }

    /// The bitmap sector of a granule, and where it is.
    fn bitmap(&self, allocator: &Allocator, granule: u64) -> Result<Bitmap, IoError> {
        let start = granule << self.chain.map.shift();
        let entry = allocator.entry(start >> self.layout.block_shift);
        if entry == UNALLOCATED {
            return Err(IoError::Damaged("sectors were written to a block that is not allocated"));
        }
        let within = (start & (self.layout.block_size() - 1)) / SECTOR;
        let mut bits = [0u8; SECTOR as usize];
        let presence = self.chain.map.presence(granule)?;
        for (bytes, word) in bits.chunks_exact_mut(8).zip(presence) {
            // The first sector is the highest bit of the first byte.
            bytes.copy_from_slice(&word.reverse_bits().to_be_bytes());
        }
        Ok((Layout::bitmap_at(entry) + within / SECTORS_PER_BITMAP_SECTOR * SECTOR, bits))
    }

    /// The bitmap sectors of a block of a disk without a parent: all bits are set.
    fn full_bitmap(&self, entry: u32) -> impl Iterator<Item = Bitmap> + use<> {
        let start = Layout::bitmap_at(entry);
        let mut bits = [0; SECTOR as usize];
        let sectors = (self.layout.block_size() / SECTOR).min(8 * SECTOR) as usize;
        for sector in 0..sectors {
            bits[sector / 8] |= 0x80 >> (sector % 8);
        }
        (start..start + self.layout.bitmap).step_by(SECTOR as usize).map(move |at| (at, bits))
    }

    /// A flush of what is pending and dirty now. The flushing lock is held.
    fn record(&self, top: &Layer) -> Result<(), IoError> {
        let (blocks, closed) = {
            let mut allocator = Self::lock(&self.allocator)?;
            let blocks = allocator.begin_record();
            // With the lock held: the next block begins where the footer is.
            let closed = if blocks.is_empty() { Ok(()) } else { allocator.close(&*top.store) };
            (blocks, closed)
        };
        // Bits that are written, or about to be, and not on stable storage so far.
        let mut open = Vec::new();
        let done = closed
            .map_err(|error| io_error(&error))
            .and_then(|()| self.record_bits(top, &mut open, blocks.is_empty()))
            .and_then(|over| if over { Ok(()) } else { self.record_blocks(top, &blocks) });
        self.chain.map.recorded(&open, done.is_ok());
        Self::lock(&self.allocator)?.recorded(done.is_ok());
        done
    }

    /// Flush the payload and write the bitmaps of dirty granules, a batch at a time: the sectors of a batch are on
    /// stable storage before their bits are written. `open` gets the granules whose bits are not flushed. `true` where
    /// there is nothing more to do, as there are no bits and, by `no_blocks`, no entries.
    fn record_bits(&self, top: &Layer, open: &mut Vec<Dirty>, no_blocks: bool) -> Result<bool, IoError> {
        let mut scan = Scan::default();
        loop {
            let before = open.len();
            let bitmaps: Vec<Bitmap> = {
                let allocator = Self::lock(&self.allocator)?;
                let dirty = self.chain.map.take_dirty(&mut scan, BATCH);
                open.extend(&dirty);
                let bitmaps = dirty.iter().map(|dirty| self.bitmap(&allocator, dirty.granule));
                bitmaps.collect::<Result<_, _>>()?
            };
            top.store.sync().map_err(|error| io_error(&error))?;
            // That flushed the batch before.
            self.chain.map.recorded(open.get(..before).unwrap_or_default(), true);
            open.drain(..before);
            for (at, bits) in &bitmaps {
                top.store.write_at(bits, *at).map_err(|error| io_error(&error))?;
            }
            if scan.is_over() {
                return Ok(open.is_empty() && no_blocks);
            }
        }
    }

    /// The last part of a flush: the bitmaps of new blocks of a disk without a parent, and the entries. Payload, footer
    /// and new blocks are on stable storage.
    fn record_blocks(&self, top: &Layer, blocks: &[u32]) -> Result<(), IoError> {
        let write = |at, bytes: &[u8]| top.store.write_at(bytes, at).map_err(|error| io_error(&error));
        if !self.differencing {
            for block in blocks {
                let entry = Self::lock(&self.allocator)?.entry(u64::from(*block));
                self.full_bitmap(entry).try_for_each(|(at, bits)| write(at, &bits))?;
            }
        }
        for sector in Allocator::table_sectors(blocks) {
            // Composed under the lock, written without: only one flush writes entries.
            let (at, bytes) = Self::lock(&self.allocator)?.table_sector(sector);
            write(self.layout.bat + at, &bytes)?;
        }
        top.store.sync().map_err(|error| io_error(&error))
    }

    /// Resolve a range, and allocate its blocks where it is to be written. Where the map is full of dirty granules, a
    /// flush records them.
    fn prepare(&self, offset: u64, len: u64, write: bool) -> Result<(), IoError> {
        let prepare = |offset, len| {
            let mut allocator = Self::lock(&self.allocator)?;
            if write {
                self.begin(&mut allocator)?;
            }
            if !self.resolve(&allocator, offset, len)? || write && allocator.changes() >= PENDING {
                return Ok(false);
            }
            if write {
                self.allocate(&mut allocator, offset, len)?;
            }
            // Those that there was no unit for are unknown again.
            self.resolve(&allocator, offset, len)
        };
        self.chain.prepare((offset, len), prepare, || self.flush())
    }
}

impl Format for SparseVhd {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn image_id(&self) -> Option<[u8; 16]> {
        crate::disk::identity::of_image(self.id)
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.chain.map.map_read(offset, len, extents)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        match self.stamped.load(Ordering::Acquire) {
            true => Ok(self.chain.map.map_write(offset, len, extents)),
            false => Ok(Mapping::Blocked),
        }
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.prepare(offset, len, false)
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.prepare(offset, len, true)
    }

    fn map_memory(&self) -> Option<MapMemory> {
        Some(self.chain.map.memory())
    }

    #[inline]
    fn written(&self, offset: u64, len: u64) {
        self.chain.map.written(offset, len, &self.changes);
    }

    #[inline]
    fn flush_kind(&self) -> Flush {
        match self.settled.load(Ordering::Acquire) < self.changes.load(Ordering::Acquire) {
            true => Flush::Format,
            false => Flush::SyncFiles,
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        if self.info.read_only {
            return Ok(());
        }
        let top = self.top()?;
        let _one_at_a_time = Self::lock(&self.flushing)?;
        let changes = self.changes.load(Ordering::Acquire);
        let resolve = |granule: u64| {
            let start = granule << self.chain.map.shift();
            self.resolve(&*Self::lock(&self.allocator)?, start, 1).map(|_full_or_not| ())
        };
        self.chain.record(resolve, || self.record(top))?;
        self.settled.store(changes, Ordering::Release);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let top = self.top()?;
        for (offset, len) in self.chain.steps(offset, len) {
            for extent in self.pieces(offset, len)?.as_slice() {
                if let Place::File { file: 0, offset } = extent.place {
                    self.begin_to_zero()?;
                    top.store.write_zeroes(offset, extent.len, true)?;
                }
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        let top = self.top()?;
        for (mut at, len) in self.chain.steps(offset, len) {
            for extent in self.pieces(at, len)?.as_slice() {
                match extent.place {
                    Place::Zeros => {}
                    Place::File { file: 0, offset } => {
                        self.begin_to_zero()?;
                        top.store.write_zeroes(offset, extent.len, may_unmap)?;
                        // Another write to it may not have come through to the map yet.
                        self.written(at, extent.len);
                    }
                    Place::File { .. } => {
                        // Until the sectors are in this image, the parent's are read.
                        let prepare = || self.prepare_write(at, extent.len);
                        for piece in self.chain.places(at, extent.len, prepare)?.as_slice() {
                            if let Place::File { offset, .. } = piece.place {
                                top.store.write_zeroes(offset, piece.len, may_unmap)?;
                            }
                        }
                        self.written(at, extent.len);
                    }
                }
                at += extent.len;
            }
        }
        Ok(())
    }
}

impl Drop for SparseVhd {
    /// A normal end of the program flushes: only a power failure may lose completed writes that were not flushed.
    fn drop(&mut self) {
        if self.flush_kind() == Flush::Format {
            // A drop cannot report the error.
            let _ = self.flush();
        }
    }
}

impl Entries {
    /// Of the blocks of `len` bytes at `offset`, from a table in memory.
    pub(super) fn of_table(table: &[u32], layout: &Layout, offset: u64, len: u64) -> Self {
        let first = offset >> layout.block_shift;
        let end = (offset + len).div_ceil(layout.block_size()).min(table.len() as u64);
        let entries = table.get(first as usize..end as usize).unwrap_or_default().to_vec();
        Self::new(first, entries)
    }
}

#[cfg(test)]
impl SparseVhd {
    /// Write `data` at `offset`, whole sectors, on the slow path. On stable storage after a flush.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] beyond the disk's end; as for any write.
    pub(super) fn write_now(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let len = data.len() as u64;
        let Some(top) = self.chain.layers.first().filter(|_| offset + len <= self.info.capacity) else {
            return Err(IoError::OutOfRange);
        };
        let extents = self.chain.places(offset, len, || self.prepare_write(offset, len))?;
        let mut rest = data;
        for extent in extents.as_slice() {
            let (part, behind) = rest.split_at_checked(extent.len as usize).unwrap_or((rest, &[]));
            rest = behind;
            if let Place::File { offset, .. } = extent.place {
                top.store.write_at(part, offset).map_err(|error| io_error(&error))?;
            }
        }
        self.written(offset, len);
        Ok(())
    }

    /// Each sector's value, as the disk reads it; `None` where it is torn.
    pub(super) fn values(&self) -> Result<Vec<Option<u64>>, IoError> {
        let mut values = Vec::new();
        for (offset, len) in self.chain.steps(0, self.info.capacity) {
            for extent in self.pieces(offset, len)?.as_slice() {
                let mut bytes = vec![0; extent.len as usize];
                if let Place::File { file, offset } = extent.place {
                    let layer = self.chain.layers.get(file as usize).ok_or(IoError::OutOfRange)?;
                    layer.store.read_at(&mut bytes, offset).map_err(|error| io_error(&error))?;
                }
                values.extend(bytes.chunks_exact(SECTOR as usize).map(super::testing::value_of));
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests;
