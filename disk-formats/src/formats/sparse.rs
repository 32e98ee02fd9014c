//! An open disk with blocks, and its chain. The block map serves reads and overwrites. The slow path resolves blocks,
//! allocates and zeroes them, and flushes. Each format implements [`Blocks`], chiefly the order in which metadata are
//! written.
//!
//! ```text
//! map_read, map_write      the map alone, without a lock
//! prepare_read             resolve
//! prepare_write            before_change -> resolve -> allocate
//! discard, write_zeroes    Blocks::discard, Blocks::write_zeroes -> free whole blocks (VHDX), zero the rest
//! flush                    resolve evicted writes -> Blocks::record
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::contract::disk::MapMemory;
use crate::contract::error::IoError;
use crate::contract::info::DiskInfo;
use crate::host::backing::BackingFile;
use crate::host::shared_flush::SharedFlush;
use crate::host::store::Store;
use crate::map::chain_map::{ChainMap, Layer};
use crate::map::epochs::Epochs;
use crate::map::extent::{Extents, Place};
use crate::map::format::{Flush, Format, Mapping, file_remarks, map_now};

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: resolving, allocating and flushing, never a mapped I/O"
)]
pub(crate) type Mutex<T> = std::sync::Mutex<T>;

#[allow(clippy::disallowed_types, reason = "as above")]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>, IoError> {
    mutex.lock().map_err(|_| IoError::Damaged("an earlier request panicked"))
}

/// If at least this many table changes wait for a flush, an allocation or a free flushes first. One call may add about as many again. So
/// the memory is bounded to a few MiB.
pub(crate) const PENDING: usize = 1 << 16;

/// A newly allocated block.
pub(crate) struct Allocated {
    /// Byte offset of its data.
    pub(crate) offset: u64,
    /// All of the block reads as zeros. If false, its sectors are read from the parent until they are written.
    pub(crate) whole: bool,
}

/// The part of a disk with blocks that depends on the format.
pub(crate) trait Blocks: Send + Sync + Sized {
    /// An image of the chain.
    type Layer: Layer;
    /// The top image's table and free space, in memory. Locked while granules are resolved.
    type Allocator: Send;

    /// Base-2 logarithm of the block size.
    fn block_shift(&self) -> u32;

    /// Base-2 logarithm of the map's granule size.
    fn granule_shift(&self) -> u32;

    /// Whether the format records for each sector whether it was written.
    fn records_sectors(&self) -> bool;

    /// The store of an image.
    fn store(layer: &Self::Layer) -> &dyn Store;

    /// Call this before metadata are read or written.
    ///
    /// # Errors
    /// [`IoError::FlushLost`]: a sync of the file failed, so metadata that were not flushed may have their old content.
    fn check_flushes(&self, _top: &Self::Layer) -> Result<(), IoError> {
        Ok(())
    }

    /// Prepare the image for changes. Called before the first change of the disk's content, and again after an error.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`]; the host's.
    fn before_first_change(
        &self,
        top: &Self::Layer,
        allocator: &Mutex<Self::Allocator>,
    ) -> Result<(), IoError>;

    /// The top image's table entries for a range, from memory.
    fn entries(
        &self,
        allocator: &Self::Allocator,
        top: &Self::Layer,
        offset: u64,
        len: u64,
    ) -> Result<<Self::Layer as Layer>::Entries, IoError>;

    /// Number of table changes that wait for a flush.
    fn pending(allocator: &Self::Allocator) -> usize;

    /// Allocate a zeroed block; the table changes in memory only. `None` if the block is allocated already.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] or the host's error; the disk is unchanged.
    fn allocate(
        &self,
        allocator: &mut Self::Allocator,
        top: &Self::Layer,
        block: u64,
    ) -> Result<Option<Allocated>, IoError>;

    /// Flush all pending changes and dirty granules, in the format's order of writes. The caller ensures that only one
    /// flush runs at a time.
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

    /// Whether closing the disk has a final write ([`end`](Self::end)), even if all changes are recorded.
    const HAS_END: bool = false;

    /// The final write after the last flush. No change follows.
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

/// What a disk does once, before the first change of its content: whether it has done it.
#[derive(Debug, Default)]
pub(crate) struct FirstChange {
    done: AtomicBool,
    /// Held while the disk is being prepared.
    preparing: Mutex<()>,
}

impl FirstChange {
    /// `done`: there is nothing to prepare.
    pub(crate) fn new(done: bool) -> Self {
        Self { done: AtomicBool::new(done), ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Run `prepare` if it has not succeeded yet, on one thread at a time.
    ///
    /// # Errors
    /// Those of `prepare`, which the next call runs again.
    pub(crate) fn prepare(&self, prepare: impl FnOnce() -> Result<(), IoError>) -> Result<(), IoError> {
        if self.is_done() {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.preparing)?;
        if !self.is_done() {
            prepare()?;
            self.done.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// A disk with blocks and its parents.
pub(crate) struct SparseDisk<B: Blocks> {
    info: DiskInfo,
    pub(crate) blocks: B,
    chain: ChainMap<B::Layer>,
    files: Vec<Arc<BackingFile>>,
    /// Identity of the top image; zeros if it is not used.
    id: [u8; 16],
    /// Also held while granules are resolved.
    allocator: Mutex<B::Allocator>,
    /// [`Blocks::before_first_change`] has succeeded, so writes may use the map.
    first_change: FirstChange,
    /// Number of changes for flushes to record.
    changes: AtomicU64,
    /// Number of changes that are recorded.
    recorded: AtomicU64,
    flushes: SharedFlush,
}

impl<B: Blocks> SparseDisk<B> {
    /// The chain of `layers`, from the top down. `files` are their files in the same order (empty in crash tests).
    /// `map_memory` is the memory budget of the map in bytes (approximate).
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
            first_change: FirstChange::default(),
            changes: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            flushes: SharedFlush::default(),
        }
    }

    /// Set the identity of the disk: that of its top image.
    pub(crate) fn with_id(mut self, id: [u8; 16]) -> Self {
        self.id = id;
        self
    }

    /// Skip [`Blocks::before_first_change`], because it was done already or must not be done. Not for a VHDX whose log has not been
    /// started.
    pub(crate) fn prepared(mut self) -> Self {
        self.first_change = FirstChange::new(true);
        self
    }

    /// Prepare the disk for use inside another disk: its map evicts nothing. When a write completes, the map must still
    /// have the range, because only the map knows which range of the outer disk was written.
    pub(crate) fn inside(mut self) -> Self {
        if !self.info.read_only {
            self.chain.map.never_evict();
        }
        self
    }

    /// Use a map of `units` units, for tests.
    #[cfg(test)]
    pub(crate) fn with_map_units(mut self, units: u32) -> Self {
        // The field is assigned because a type with `Drop` cannot be moved out of.
        self.chain.map =
            crate::map::block_map::BlockMap::with_units(self.info.capacity, self.chain.map.shift(), units);
        self
    }

    /// The top image, which is the one that is written.
    pub(crate) fn top(&self) -> Result<&B::Layer, IoError> {
        self.chain.layers.first().ok_or(IoError::Damaged("the chain has no image"))
    }

    /// The store of the top image.
    pub(crate) fn store(&self) -> Result<&dyn Store, IoError> {
        self.top().map(B::store)
    }

    /// The blocks that hold a range.
    pub(crate) fn blocks_of(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let shift = self.blocks.block_shift();
        offset >> shift..(offset + len).div_ceil(1 << shift)
    }

    /// Call `free` for each block of a range, with the allocator locked. If `free` returns `true`, the block reads as
    /// zeros from now on. Flushes first whenever many changes are pending.
    ///
    /// # Errors
    /// Errors of `free` and of the flush.
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

    /// Zero, and deallocate if possible, the parts of a range that are in the top file.
    pub(crate) fn deallocate(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let mut extents = Extents::new();
        for (offset, len) in self.chain.steps(offset, len) {
            map_now(self, false, offset, len, &mut extents)?;
            for extent in extents.as_slice() {
                if let Place::File { file: 0, offset } = extent.place {
                    self.before_change()?;
                    self.store()?.write_zeroes(offset, extent.len, true)?;
                }
            }
        }
        Ok(())
    }

    /// Zero a range, whether its blocks are allocated or not. `may_unmap` allows deallocating the parts in the top
    /// file.
    ///
    /// # Errors
    /// [`IoError::NoSpace`] if a block must be allocated to hide the parent's data; the host's.
    pub(crate) fn zero(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        let (mut extents, mut pieces) = (Extents::new(), Extents::new());
        for (mut at, len) in self.chain.steps(offset, len) {
            map_now(self, false, at, len, &mut extents)?;
            for extent in extents.as_slice() {
                match extent.place {
                    Place::Zeros => {}
                    Place::File { file: 0, offset } => {
                        self.before_change()?;
                        self.store()?.write_zeroes(offset, extent.len, may_unmap)?;
                        // A concurrent write of the same range may not have reached the map yet.
                        self.written(at, extent.len);
                    }
                    Place::File { .. } => {
                        // The parent's data are read until the map has the sectors in this image.
                        self.before_change()?;
                        map_now(self, true, at, extent.len, &mut pieces)?;
                        for piece in pieces.as_slice() {
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

    /// Call this before a change of the disk's content.
    pub(crate) fn before_change(&self) -> Result<(), IoError> {
        let top = self.top()?;
        self.blocks.check_flushes(top)?;
        self.first_change.prepare(|| self.blocks.before_first_change(top, &self.allocator))
    }

    /// Resolve a range ([`ChainMap::resolve`]). `true`: the map knows all of the range. `false`: the map was full; flush, and resolve
    /// again.
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

    /// Whether a flush has changes to record.
    #[inline]
    fn has_changes(&self) -> bool {
        self.recorded.load(Ordering::Acquire) < self.changes.load(Ordering::Acquire)
    }

    /// Flush. Called through `flushes` only, so that one flush runs at a time.
    fn record(&self) -> Result<(), IoError> {
        let top = self.top()?;
        self.blocks.check_flushes(top)?;
        let changes = self.changes.load(Ordering::Acquire);
        let resolve = |granule: u64| {
            let start = granule << self.chain.map.shift();
            self.resolve(&*lock(&self.allocator)?, start, 1).map(|_full_or_not| ())
        };
        self.chain.record(resolve, || self.blocks.record(top, &self.chain, &self.allocator))?;
        self.recorded.store(changes, Ordering::Release);
        Ok(())
    }

    /// Flush, and do the format's final write. No change follows.
    ///
    /// # Errors
    /// The host's. After an error, changes that were not recorded are lost as after a power failure.
    pub(crate) fn close(&self) -> Result<(), IoError> {
        if !self.first_change.is_done() {
            return Ok(());
        }
        self.flushes.run_always(|| {
            self.record()?;
            self.blocks.end()
        })
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
        Some(self.id)
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.chain.map.map_read(offset, len, extents)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        match self.first_change.is_done() {
            true => Ok(self.chain.map.map_write(offset, len, extents)),
            false => Ok(Mapping::Blocked),
        }
    }

    fn zeros_past_end(&self) -> bool {
        self.blocks.zeros_past_end()
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.blocks.check_flushes(self.top()?)?;
        let prepare = |offset, len| self.resolve(&*lock(&self.allocator)?, offset, len);
        self.chain.prepare((offset, len), prepare, || self.flush())
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.before_change()?;
        let prepare = |offset, len| {
            let mut allocator = lock(&self.allocator)?;
            if !self.resolve(&allocator, offset, len)? || B::pending(&allocator) >= PENDING {
                return Ok(false);
            }
            self.allocate(&mut allocator, offset, len)?;
            // `allocate` makes a granule unknown if there is no free unit for it.
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
        let remarks = [B::remark(&self.chain.layers), file_remarks(&self.files)];
        remarks.into_iter().flatten().reduce(|one, other| format!("{one}; {other}"))
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
        // Flush even without changes: writes of an earlier process may not be on stable storage yet.
        self.flushes.run(|| self.record())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        B::discard(self, offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        B::write_zeroes(self, offset, len, may_unmap)
    }
}

impl<B: Blocks> Drop for SparseDisk<B> {
    /// Flush on drop: only a crash or power failure may lose completed writes that were not flushed.
    fn drop(&mut self) {
        if B::HAS_END || self.has_changes() {
            // A drop cannot report the error.
            let _ = self.close();
        }
    }
}

#[cfg(test)]
impl<B: Blocks> SparseDisk<B> {
    /// Write `data` at `offset`, in whole sectors, on the slow path. On stable storage after a flush.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] beyond the disk's end; as for any write.
    pub(crate) fn write_now(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let len = data.len() as u64;
        if offset + len > self.info.capacity {
            return Err(IoError::OutOfRange);
        }
        let mut rest = data;
        let mut extents = Extents::new();
        self.before_change()?;
        map_now(self, true, offset, len, &mut extents)?;
        for extent in extents.as_slice() {
            let (part, behind) = rest.split_at_checked(extent.len as usize).unwrap_or((rest, &[]));
            rest = behind;
            if let Place::File { offset, .. } = extent.place {
                let written = self.store()?.write_at(part, offset);
                written.map_err(crate::host::store::io_error)?;
            }
        }
        self.written(offset, len);
        Ok(())
    }

    /// The whole content of the disk.
    ///
    /// # Errors
    /// As for any read.
    pub(crate) fn content(&self) -> Result<Vec<u8>, IoError> {
        let (mut content, mut extents) = (Vec::new(), Extents::new());
        for (offset, len) in self.chain.steps(0, self.info.capacity) {
            map_now(self, false, offset, len, &mut extents)?;
            for extent in extents.as_slice() {
                let start = content.len();
                content.resize(start + extent.len as usize, 0);
                if let Place::File { file, offset } = extent.place {
                    let layer = self.chain.layers.get(file as usize).ok_or(IoError::OutOfRange)?;
                    let part = content.get_mut(start..).unwrap_or_default();
                    let read = B::store(layer).read_at(part, offset);
                    read.map_err(crate::host::store::io_error)?;
                }
            }
        }
        Ok(content)
    }
}
