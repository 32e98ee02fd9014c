//! An open disk whose images hold their data in blocks, with its chain: one block map for reads and overwrites, and the
//! slow path that resolves blocks, allocates and zeroes them, and flushes. Each format implements [`Blocks`]: chiefly the
//! order in which metadata are written.
//!
//! ```text
//! map_read, map_write      the map alone, without a lock
//! prepare_read             resolve
//! prepare_write            begin (before the first change) -> resolve -> allocate
//! discard, write_zeroes    Blocks::discard, Blocks::write_zeroes -> what is in blocks of the top file is zeroed
//! flush                    resolve late writes -> Blocks::record
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::disk::MapMemory;
use crate::disk::identity::of_image;
use crate::disk::info::DiskInfo;
use crate::error::IoError;
use crate::formats::format::{Flush, Format, Mapping};
use crate::host::backing::BackingFile;
use crate::host::store::Store;
use crate::map::chain_map::{ChainMap, Layer};
use crate::map::epochs::Epochs;
use crate::map::extent::{Extents, Place};

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: resolving, allocating and flushing, never a mapped I/O"
)]
pub(crate) type Mutex<T> = std::sync::Mutex<T>;

#[allow(clippy::disallowed_types, reason = "as above")]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>, IoError> {
    mutex.lock().map_err(|_| IoError::Damaged("an earlier request panicked"))
}

/// Changes of tables that may wait for a flush when a block is allocated or freed: a few MiB of memory, however much the guest
/// does without one.
pub(crate) const PENDING: usize = 1 << 16;

/// A block that was allocated.
pub(crate) struct Allocated {
    /// Byte offset of its data.
    pub(crate) offset: u64,
    /// It reads as zeros all over; else its sectors are read from the parent until they are written.
    pub(crate) whole: bool,
}

/// What differs between formats with blocks.
pub(crate) trait Blocks: Send + Sync + Sized {
    /// An image of the chain.
    type Layer: Layer;
    /// The top image's table and free space in memory. Locked while granules are resolved.
    type Allocator: Send;

    /// Power of two of the bytes of a block.
    fn block_shift(&self) -> u32;

    /// Power of two of the bytes of a granule of the map.
    fn granule_shift(&self) -> u32;

    /// Whether writes to a block are recorded sector by sector.
    fn records_sectors(&self) -> bool;

    /// Where an image is stored.
    fn store(layer: &Self::Layer) -> &dyn Store;

    /// Check before metadata are read or written.
    ///
    /// # Errors
    /// [`IoError::FlushLost`]: a sync of the file has failed, so metadata that were not flushed may have their old content.
    fn intact(&self, _top: &Self::Layer) -> Result<(), IoError> {
        Ok(())
    }

    /// Called before the first change of the disk's content. Called again after an error.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`]; the host's.
    fn begin(&self, top: &Self::Layer, allocator: &Mutex<Self::Allocator>) -> Result<(), IoError>;

    /// The top image's entries for a range, as they are in memory.
    fn entries(
        &self,
        allocator: &Self::Allocator,
        top: &Self::Layer,
        offset: u64,
        len: u64,
    ) -> Result<<Self::Layer as Layer>::Entries, IoError>;

    /// Changes of tables that wait for a flush.
    fn pending(allocator: &Self::Allocator) -> usize;

    /// Allocate a block, all zeros, in memory; `None` where it is allocated.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error: the disk is as it was.
    fn allocate(
        &self,
        allocator: &mut Self::Allocator,
        top: &Self::Layer,
        block: u64,
    ) -> Result<Option<Allocated>, IoError>;

    /// Flush all pending changes and dirty granules, in the format's order of writes. One flush at a time.
    ///
    /// # Errors
    /// The host's: changes that were not recorded are pending or dirty again.
    fn record(
        &self,
        top: &Self::Layer,
        chain: &ChainMap<Self::Layer>,
        allocator: &Mutex<Self::Allocator>,
    ) -> Result<(), IoError>;

    /// As [`Format::discard`].
    fn discard(disk: &SparseDisk<Self>, offset: u64, len: u64) -> Result<(), IoError>;

    /// As [`Format::write_zeroes`].
    fn write_zeroes(disk: &SparseDisk<Self>, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError>;

    /// Whether a session ends with a write of its own ([`end`](Self::end)), also where all changes are recorded.
    const HAS_END: bool = false;

    /// What follows the last flush of a session. No change follows.
    fn end(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// As [`Format::zeros_past_end`].
    fn zeros_past_end(&self) -> bool {
        false
    }

    /// As [`Format::epochs`].
    fn epochs(&self) -> Option<&Epochs> {
        None
    }

    /// As [`Format::remark`].
    fn remark(_layers: &[Self::Layer]) -> Option<String> {
        None
    }
}

/// A disk with blocks and its parents.
pub(crate) struct SparseDisk<B: Blocks> {
    info: DiskInfo,
    pub(crate) blocks: B,
    chain: ChainMap<B::Layer>,
    files: Vec<Arc<BackingFile>>,
    /// Identity of the top image; zeros where it does not count.
    id: [u8; 16],
    /// Also held while granules are resolved.
    allocator: Mutex<B::Allocator>,
    /// [`Blocks::begin`] has succeeded: the map may be used for writes.
    begun: AtomicBool,
    beginning: Mutex<()>,
    /// Changes that the next flush has to record, counted.
    changes: AtomicU64,
    /// How many of them are recorded.
    settled: AtomicU64,
    /// Held by a flush from its beginning to its end.
    flushing: Mutex<()>,
    /// Flushes that have begun, and the last of them that came to its end.
    started: AtomicU64,
    finished: AtomicU64,
}

impl<B: Blocks> SparseDisk<B> {
    /// The chain of `layers`, from the top down. `files` are theirs, in the same order (none in crash tests). The map
    /// takes about `map_memory` bytes at the most.
    pub(crate) fn new(
        info: DiskInfo,
        blocks: B,
        layers: Vec<B::Layer>,
        files: Vec<Arc<BackingFile>>,
        allocator: B::Allocator,
        map_memory: u64,
    ) -> Self {
        Self {
            chain: ChainMap::new(info.capacity, blocks.granule_shift(), layers, map_memory),
            info,
            blocks,
            files,
            id: [0; 16],
            allocator: Mutex::new(allocator),
            begun: AtomicBool::new(false),
            beginning: Mutex::new(()),
            changes: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            flushing: Mutex::new(()),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        }
    }

    /// The same, known by the identity of its top image.
    pub(crate) fn with_id(mut self, id: [u8; 16]) -> Self {
        self.id = id;
        self
    }

    /// The same; what precedes the first change is done, or must not be. For VHD: the log of a VHDX begins with the first change.
    pub(crate) fn begun(mut self) -> Self {
        self.begun = AtomicBool::new(true);
        self
    }

    /// The same, inside another disk: no mapping is evicted between a write and its completion, which is passed on to
    /// the disk around.
    pub(crate) fn inside(mut self) -> Self {
        if !self.info.read_only {
            self.chain.map.never_evict();
        }
        self
    }

    /// The same with a map of so many units, however few.
    #[cfg(test)]
    pub(crate) fn with_map_units(mut self, units: u32) -> Self {
        // A disk that is dropped flushes: its parts cannot be moved out of it.
        self.chain.map =
            crate::map::block_map::BlockMap::with_units(self.info.capacity, self.chain.map.shift(), units);
        self
    }

    /// The image that is written.
    pub(crate) fn top(&self) -> Result<&B::Layer, IoError> {
        self.chain.layers.first().ok_or(IoError::Damaged("the chain has no image"))
    }

    /// Where it is stored.
    pub(crate) fn store(&self) -> Result<&dyn Store, IoError> {
        self.top().map(B::store)
    }

    /// The blocks that hold a range.
    pub(crate) fn blocks_of(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let shift = self.blocks.block_shift();
        offset >> shift..(offset + len).div_ceil(1 << shift)
    }

    /// Run `free` for each block of a range, with the allocator locked; where it returns `true`, the block reads as
    /// zeros from now on. A flush comes between where many changes are pending.
    ///
    /// # Errors
    /// Those of `free`, and of the flush.
    pub(crate) fn free(
        &self,
        mut blocks: std::ops::Range<u64>,
        mut free: impl FnMut(&mut B::Allocator, u64) -> Result<bool, IoError>,
    ) -> Result<(), IoError> {
        while !blocks.is_empty() {
            let mut allocator = lock(&self.allocator)?;
            if B::pending(&allocator) >= PENDING {
                drop(allocator);
                self.flush()?;
                allocator = lock(&self.allocator)?;
            }
            for block in blocks.by_ref().take(PENDING) {
                if free(&mut allocator, block)? {
                    self.chain
                        .granules_of_block(block, self.blocks.block_shift())
                        .for_each(|granule| self.chain.map.freed(granule));
                    self.changes.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        Ok(())
    }

    /// Zero, and deallocate where that is possible, what the top file has of a range.
    pub(crate) fn deallocate(&self, offset: u64, len: u64) -> Result<(), IoError> {
        for (offset, len) in self.chain.steps(offset, len) {
            for extent in self.pieces(offset, len)?.as_slice() {
                if let Place::File { file: 0, offset } = extent.place {
                    self.begin()?;
                    self.store()?.write_zeroes(offset, extent.len, true)?;
                }
            }
        }
        Ok(())
    }

    /// Zero a range, block or no block; `may_unmap` allows to deallocate what the top file has of it.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] where a block has to be allocated, as the parent's data show; the host's.
    pub(crate) fn zero(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        for (mut at, len) in self.chain.steps(offset, len) {
            for extent in self.pieces(at, len)?.as_slice() {
                match extent.place {
                    Place::Zeros => {}
                    Place::File { file: 0, offset } => {
                        self.begin()?;
                        self.store()?.write_zeroes(offset, extent.len, may_unmap)?;
                        // Another write to it may not have come through to the map yet.
                        self.written(at, extent.len);
                    }
                    Place::File { .. } => {
                        // Until the sectors are in this image, the parent's are read.
                        let prepare = || self.prepare_write(at, extent.len);
                        for piece in self.chain.places(at, extent.len, prepare)?.as_slice() {
                            if let Place::File { offset, .. } = piece.place {
                                self.store()?.write_zeroes(offset, piece.len, may_unmap)?;
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

    /// Before a change of what the disk reads.
    pub(crate) fn begin(&self) -> Result<(), IoError> {
        let top = self.top()?;
        self.blocks.intact(top)?;
        if self.begun.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.beginning)?;
        if !self.begun.load(Ordering::Acquire) {
            self.blocks.begin(top, &self.allocator)?;
            self.begun.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn resolve(&self, allocator: &B::Allocator, offset: u64, len: u64) -> Result<bool, IoError> {
        let top = self.top()?;
        self.chain.resolve(|offset, len| self.blocks.entries(allocator, top, offset, len), offset, len)
    }

    /// Allocate the blocks of a range in the top file.
    fn allocate(&self, allocator: &mut B::Allocator, offset: u64, len: u64) -> Result<(), IoError> {
        let (top, block_shift, shift) = (self.top()?, self.blocks.block_shift(), self.chain.map.shift());
        for block in self.blocks_of(offset, len) {
            let Some(new) = self.blocks.allocate(allocator, top, block)? else { continue };
            self.changes.fetch_add(1, Ordering::AcqRel);
            let start = block << block_shift;
            let wanted = self.chain.granules(offset, len);
            for granule in self.chain.granules_of_block(block, block_shift) {
                let at = new.offset + ((granule << shift) - start);
                self.chain.map.allocated(granule, at, new.whole, wanted.contains(&granule))?;
            }
        }
        Ok(())
    }

    /// Where a range is, on the slow path.
    fn pieces(&self, offset: u64, len: u64) -> Result<Extents, IoError> {
        self.chain.pieces(offset, len, || self.prepare_read(offset, len))
    }

    /// Whether a flush has changes to record.
    #[inline]
    fn has_changes(&self) -> bool {
        self.settled.load(Ordering::Acquire) < self.changes.load(Ordering::Acquire)
    }

    /// A flush, with the lock of flushes held.
    fn record(&self) -> Result<(), IoError> {
        let top = self.top()?;
        self.blocks.intact(top)?;
        let changes = self.changes.load(Ordering::Acquire);
        let resolve = |granule: u64| {
            let start = granule << self.chain.map.shift();
            self.resolve(&*lock(&self.allocator)?, start, 1).map(|_full_or_not| ())
        };
        self.chain.record(resolve, || self.blocks.record(top, &self.chain, &self.allocator))?;
        self.settled.store(changes, Ordering::Release);
        Ok(())
    }

    /// Flush everything to its place, and end the session. No change follows.
    ///
    /// # Errors
    /// The host's; what is not recorded is as after a power failure.
    pub(crate) fn close(&self) -> Result<(), IoError> {
        if !self.begun.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.flushing)?;
        self.record()?;
        self.blocks.end()
    }
}

impl<B: Blocks> Format for SparseDisk<B> {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn image_id(&self) -> Option<[u8; 16]> {
        of_image(self.id)
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.chain.map.map_read(offset, len, extents)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        match self.begun.load(Ordering::Acquire) {
            true => Ok(self.chain.map.map_write(offset, len, extents)),
            false => Ok(Mapping::Blocked),
        }
    }

    fn zeros_past_end(&self) -> bool {
        self.blocks.zeros_past_end()
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.blocks.intact(self.top()?)?;
        let prepare = |offset, len| self.resolve(&*lock(&self.allocator)?, offset, len);
        self.chain.prepare((offset, len), prepare, || self.flush())
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.begin()?;
        let prepare = |offset, len| {
            let mut allocator = lock(&self.allocator)?;
            if !self.resolve(&allocator, offset, len)? || B::pending(&allocator) >= PENDING {
                return Ok(false);
            }
            self.allocate(&mut allocator, offset, len)?;
            // Those that there was no unit for are unknown again.
            self.resolve(&allocator, offset, len)
        };
        // A flush makes units clean, so that they can be evicted.
        self.chain.prepare((offset, len), prepare, || self.flush())
    }

    #[inline]
    fn written(&self, offset: u64, len: u64) {
        if self.blocks.records_sectors() {
            self.chain.map.written(offset, len, &self.changes);
        }
    }

    fn epochs(&self) -> Option<&Epochs> {
        self.blocks.epochs()
    }

    fn remark(&self) -> Option<String> {
        B::remark(&self.chain.layers)
    }

    fn map_memory(&self) -> Option<MapMemory> {
        Some(self.chain.map.memory())
    }

    #[inline]
    fn flush_kind(&self) -> Flush {
        match self.has_changes() {
            true => Flush::Format,
            false => Flush::SyncFiles,
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        if self.info.read_only {
            return Ok(());
        }
        // Also before the first change: what an earlier process wrote may not be on stable storage yet.
        // A flush that begins after this moment covers this one.
        let wanted = self.started.load(Ordering::Acquire) + 1;
        let _one_at_a_time = lock(&self.flushing)?;
        if self.finished.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.record()?;
        self.finished.store(number, Ordering::Release);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        B::discard(self, offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        B::write_zeroes(self, offset, len, may_unmap)
    }
}

impl<B: Blocks> Drop for SparseDisk<B> {
    /// A normal end of the program flushes: only a power failure may lose completed writes that were not flushed.
    fn drop(&mut self) {
        if B::HAS_END || self.has_changes() {
            // A drop cannot report the error.
            let _ = self.close();
        }
    }
}

#[cfg(test)]
impl<B: Blocks> SparseDisk<B> {
    /// Write `data` at `offset`, whole sectors, on the slow path. On stable storage after a flush.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] beyond the disk's end; as for any write.
    pub(crate) fn write_now(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let len = data.len() as u64;
        if offset + len > self.info.capacity {
            return Err(IoError::OutOfRange);
        }
        let mut rest = data;
        for extent in self.chain.places(offset, len, || self.prepare_write(offset, len))?.as_slice() {
            let (part, behind) = rest.split_at_checked(extent.len as usize).unwrap_or((rest, &[]));
            rest = behind;
            if let Place::File { offset, .. } = extent.place {
                let written = self.store()?.write_at(part, offset);
                written.map_err(|error| crate::host::store::io_error(&error))?;
            }
        }
        self.written(offset, len);
        Ok(())
    }

    /// The disk's content, as queues read it.
    ///
    /// # Errors
    /// As for any read.
    pub(crate) fn content(&self) -> Result<Vec<u8>, IoError> {
        let mut content = Vec::new();
        for (offset, len) in self.chain.steps(0, self.info.capacity) {
            for extent in self.pieces(offset, len)?.as_slice() {
                let start = content.len();
                content.resize(start + extent.len as usize, 0);
                if let Place::File { file, offset } = extent.place {
                    let layer = self.chain.layers.get(file as usize).ok_or(IoError::OutOfRange)?;
                    let part = content.get_mut(start..).unwrap_or_default();
                    let read = B::store(layer).read_at(part, offset);
                    read.map_err(|error| crate::host::store::io_error(&error))?;
                }
            }
        }
        Ok(content)
    }
}
