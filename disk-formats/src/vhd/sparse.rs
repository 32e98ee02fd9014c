//! A dynamic or differencing disk with the chain below it: one flat map for reading and overwriting, and the slow path
//! that finds blocks, allocates them and writes the metadata in an order that a crash cannot hurt.
//!
//! Order of writes. A new block gets its room, all zeros, when it is first written, with room for the footer behind it, so
//! that what a guest writes is never the end of the file; its BAT entry exists in memory only. A flush puts the footer behind
//! the last block and makes it, the room and the payload durable; then it writes bitmaps and BAT entries, those that were
//! pending when it began, and makes these durable. So an entry never points to a block that is not there, and a bit never
//! vouches for a sector that is not there. What a crash leaves is at worst a block that no entry points to, and the copy of
//! the footer alone. Two makings durable with new blocks or sectors, one without.
//!
//! Before the first write of a session the footers get a new time stamp, on stable storage ([`stamp`](super::stamp)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::alloc::Allocator;
use super::layer::{Entries, Layer};
use super::layout::Layout;
use super::spec::{SECTOR, SECTORS_PER_BITMAP_SECTOR, UNALLOCATED};
use crate::block_map::Presence;
use crate::chain_map::ChainMap;
use crate::format::{Flush, Format, Mapping};
use crate::store::io_error;
use crate::{BackingFile, DiskInfo, Extents, IoError, Place};

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: resolving, allocating and flushing, never a mapped I/O"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// Largest granule of the map: what one sector of a bitmap describes.
const MAX_GRANULE_SHIFT: u32 = (SECTORS_PER_BITMAP_SECTOR * SECTOR).trailing_zeros();

/// A chain whose top is a dynamic or differencing VHD.
pub struct SparseVhd {
    info: DiskInfo,
    layout: Layout,
    chain: ChainMap<Layer>,
    files: Vec<Arc<BackingFile>>,
    /// Unique Id of the top image's footer; zeros where it does not count.
    id: [u8; 16],
    /// Sectors that are not here are the parent's (else: zeros), so each is accounted for.
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

impl SparseVhd {
    /// The chain of `layers`, whose first has `layout`. `files` are theirs, in the same order (none in crash tests).
    pub(super) fn new(
        info: DiskInfo,
        layout: Layout,
        layers: Vec<Layer>,
        files: Vec<Arc<BackingFile>>,
        allocator: Allocator,
        differencing: bool,
    ) -> Self {
        let shift = layout.block_shift.min(MAX_GRANULE_SHIFT);
        Self {
            chain: ChainMap::new(info.capacity, shift, layers),
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

    /// The same; it keeps its time stamp, as disks that stand on it are not to notice what is written.
    pub(super) fn without_stamp(mut self) -> Self {
        self.stamped = AtomicBool::new(true);
        self
    }

    /// Before the first change of what the disk reads.
    fn begin(&self, allocator: &mut Allocator) -> Result<(), IoError> {
        if self.stamped.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(top) = self.chain.layers.first() else { return Err(IoError::OutOfRange) };
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

    /// Give the blocks of a range room in the top file. Nothing of the range is unknown.
    fn allocate(&self, allocator: &mut Allocator, offset: u64, len: u64) -> Result<(), IoError> {
        let (Some(top), shift) = (self.chain.layers.first(), self.chain.map.shift()) else { return Ok(()) };
        for block in offset >> self.layout.block_shift..(offset + len).div_ceil(self.layout.block_size()) {
            if allocator.entry(block) != UNALLOCATED {
                continue;
            }
            let entry = allocator.allocate(&*top.store, &self.layout, block)?;
            top.len.store(allocator.len(), Ordering::Release);
            self.changes.fetch_add(1, Ordering::AcqRel);
            let start = block << self.layout.block_shift;
            let end = (start + self.layout.block_size()).min(self.info.capacity);
            for granule in self.chain.granules(start, end - start) {
                let at = self.layout.data_at(entry) + ((granule << shift) - start);
                self.chain.map.allocated(granule, at, !self.differencing);
            }
        }
        Ok(())
    }

    /// Where a range is, on the slow path.
    fn pieces(&self, offset: u64, len: u64) -> Result<Extents, IoError> {
        self.chain.pieces(offset, len, || self.prepare_read(offset, len))
    }

    fn resolve(&self, allocator: &Allocator, offset: u64, len: u64) -> Result<(), IoError> {
        self.chain.resolve(|offset, len| Ok(allocator.entries(offset, len)), offset, len)
    }

    /// The bitmap sector of a granule, and where it is.
    fn bitmap(&self, allocator: &Allocator, presence: &Presence) -> Option<(u64, [u8; SECTOR as usize])> {
        let start = presence.granule << self.chain.map.shift();
        let entry = allocator.entry(start >> self.layout.block_shift);
        if entry == UNALLOCATED {
            return None;
        }
        let within = (start & (self.layout.block_size() - 1)) / SECTOR;
        let mut bits = [0u8; SECTOR as usize];
        for (sector, there) in presence.sectors.iter().enumerate() {
            if let Some(byte) = bits.get_mut(sector / 8).filter(|_| *there) {
                *byte |= 0x80 >> (sector % 8);
            }
        }
        Some((Layout::bitmap_at(entry) + within / SECTORS_PER_BITMAP_SECTOR * SECTOR, bits))
    }

    /// The sectors of the bitmap of a block that has no parent to ask: all of it is there.
    fn full_bitmap(&self, entry: u32) -> impl Iterator<Item = (u64, [u8; SECTOR as usize])> + use<> {
        let start = Layout::bitmap_at(entry);
        let mut bits = [0; SECTOR as usize];
        let sectors = (self.layout.block_size() / SECTOR).min(8 * SECTOR) as usize;
        for sector in 0..sectors {
            bits[sector / 8] |= 0x80 >> (sector % 8);
        }
        (start..start + self.layout.bitmap).step_by(SECTOR as usize).map(move |at| (at, bits))
    }

    /// The second half of a flush: bitmaps and entries, in any order; the payload is durable.
    fn record(&self, bitmaps: &[(u64, [u8; SECTOR as usize])], blocks: &[u32]) -> Result<(), IoError> {
        let Some(top) = self.chain.layers.first() else { return Ok(()) };
        for (at, bits) in bitmaps {
            top.store.write_at(bits, *at).map_err(|error| io_error(&error))?;
        }
        // Composed under the lock, written without: only one flush writes entries.
        let sectors = Self::lock(&self.allocator)?.table_sectors(blocks);
        for (at, bytes) in sectors {
            top.store.write_at(&bytes, self.layout.bat + at).map_err(|error| io_error(&error))?;
        }
        top.store.sync().map_err(|error| io_error(&error))
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
        crate::identity::of_image(self.id)
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        Ok(self.chain.map.map_read(offset, len, extents))
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        match self.stamped.load(Ordering::Acquire) {
            true => Ok(self.chain.map.map_write(offset, len, extents)),
            false => Ok(Mapping::Blocked),
        }
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.resolve(&*Self::lock(&self.allocator)?, offset, len)
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let mut allocator = Self::lock(&self.allocator)?;
        self.begin(&mut allocator)?;
        self.resolve(&allocator, offset, len)?;
        self.allocate(&mut allocator, offset, len)
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
        let Some(top) = self.chain.layers.first().filter(|_| !self.info.read_only) else { return Ok(()) };
        let _one_at_a_time = Self::lock(&self.flushing)?;
        let changes = self.changes.load(Ordering::Acquire);
        let (granules, bitmaps, blocks, closed) = {
            let mut allocator = Self::lock(&self.allocator)?;
            let dirty = self.chain.map.take_dirty();
            let mut bitmaps: Vec<_> =
                dirty.iter().filter_map(|presence| self.bitmap(&allocator, presence)).collect();
            let granules: Vec<u64> = dirty.iter().map(|presence| presence.granule).collect();
            let blocks = allocator.take_pending();
            if !self.differencing {
                blocks
                    .iter()
                    .for_each(|block| bitmaps.extend(self.full_bitmap(allocator.entry(u64::from(*block)))));
            }
            // With the lock held: the next block begins where the footer is.
            let closed = if blocks.is_empty() { Ok(()) } else { allocator.close(&*top.store) };
            (granules, bitmaps, blocks, closed)
        };
        let done = closed.and_then(|()| top.store.sync()).map_err(|error| io_error(&error)).and_then(|()| {
            match bitmaps.is_empty() && blocks.is_empty() {
                true => Ok(()),
                false => self.record(&bitmaps, &blocks),
            }
        });
        match done {
            Ok(()) => self.settled.store(changes, Ordering::Release),
            Err(_) => {
                granules.iter().for_each(|granule| self.chain.map.mark_dirty(*granule));
                Self::lock(&self.allocator)?.give_back(blocks);
            }
        }
        done
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let Some(top) = self.chain.layers.first() else { return Ok(()) };
        for extent in self.pieces(offset, len)?.as_slice() {
            if let Place::File { file: 0, offset } = extent.place {
                self.begin_to_zero()?;
                top.store.write_zeroes(offset, extent.len, true)?;
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        let Some(top) = self.chain.layers.first() else { return Ok(()) };
        let mut at = offset;
        for extent in self.pieces(offset, len)?.as_slice() {
            match extent.place {
                Place::Zeros => {}
                Place::File { file: 0, offset } => {
                    self.begin_to_zero()?;
                    top.store.write_zeroes(offset, extent.len, may_unmap)?;
                    // Another write to it may not have come through to the map yet.
                    self.written(at, extent.len);
                }
                Place::File { .. } => {
                    // What is below shines through until the sectors are here.
                    self.prepare_write(at, extent.len)?;
                    for piece in self.chain.places(at, extent.len)?.as_slice() {
                        if let Place::File { offset, .. } = piece.place {
                            top.store.write_zeroes(offset, piece.len, may_unmap)?;
                        }
                    }
                    self.written(at, extent.len);
                }
            }
            at += extent.len;
        }
        Ok(())
    }
}

impl Drop for SparseVhd {
    /// What was completed and not flushed may be lost by a power failure, not by an end of the program.
    fn drop(&mut self) {
        if self.flush_kind() == Flush::Format {
            // There is nobody to tell.
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
    /// Write `data` at `offset`, whole sectors, on the slow path. Durable after a flush.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] beyond the disk's end; as for any write.
    pub(super) fn write_now(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let len = data.len() as u64;
        let Some(top) = self.chain.layers.first().filter(|_| offset + len <= self.info.capacity) else {
            return Err(IoError::OutOfRange);
        };
        self.prepare_write(offset, len)?;
        let mut extents = Extents::new();
        if self.chain.map.map_write(offset, len, &mut extents) == Mapping::Blocked {
            return Err(IoError::Damaged("the range cannot be mapped"));
        }
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
        for extent in self.pieces(0, self.info.capacity)?.as_slice() {
            let mut bytes = vec![0; extent.len as usize];
            if let Place::File { file, offset } = extent.place {
                let layer = self.chain.layers.get(file as usize).ok_or(IoError::OutOfRange)?;
                layer.store.read_at(&mut bytes, offset).map_err(|error| io_error(&error))?;
            }
            values.extend(bytes.chunks_exact(SECTOR as usize).map(super::testing::value_of));
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests;
