//! An open VHDX with its chain: one block map for reads and overwrites, and the slow path that resolves blocks,
//! allocates and frees them, and writes metadata in a crash-consistent order.
//!
//! Order of writes. A block is allocated, all zeros, when it is first written; its BAT entry exists in memory only. A flush
//! 1. calls fdatasync: allocation and payload are on stable storage, and so is what the entry before has changed in place;
//! 2. writes an entry of the log with the sectors of bitmaps and BAT, and calls fdatasync;
//! 3. writes these sectors in place, without a flush: step 1 of the next flush covers them.
//!
//! Without changes of metadata, only step 1 is made. Many changes are recorded in batches, each with all steps, so that the
//! memory of a flush is bounded. Freed blocks are reused only after the flush that records the change, and after every
//! request that was mapped before has completed ([`Epochs`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uuid::Uuid;

use super::alloc::Allocator;
use super::bat::Entry;
use super::journal::{Journal, Visible};
use super::layer::Layer;
use super::layout::Layout;
use super::record::Record;
use crate::disk::MapMemory;
use crate::disk::info::DiskInfo;
use crate::error::IoError;
use crate::formats::format::{Flush, Format, Mapping};
use crate::host::backing::BackingFile;
use crate::host::store::io_error;
use crate::map::block_map::Scan;
use crate::map::chain_map::ChainMap;
use crate::map::epochs::Epochs;
use crate::map::extent::{Extents, Place};

#[allow(
    clippy::disallowed_types,
    reason = "the slow path: resolving, allocating and flushing, never a mapped I/O"
)]
type Mutex<T> = std::sync::Mutex<T>;

/// Largest granule of the map of a differencing disk, where sectors may have entries of their own.
const MAX_GRANULE_SHIFT: u32 = 21;

/// Blocks that are freed at once, and changes of the BAT that may wait for a flush when a block is freed or allocated: a few MiB of
/// memory, however much the guest does without one.
const PENDING: usize = 1 << 16;

/// Bytes of bitmap sectors that a flush holds in memory for one batch of dirty granules.
const BATCH: u64 = 8 << 20;

/// A VHDX and its parents.
pub struct VhdxDisk {
    info: DiskInfo,
    layout: Layout,
    chain: ChainMap<Layer>,
    files: Vec<Arc<BackingFile>>,
    /// Virtual Disk ID of the top image; nil where it does not count.
    id: Uuid,
    /// A file ends inside its last block.
    ragged: bool,
    epochs: Epochs,
    /// `None` for a disk that is not written.
    writer: Option<Writer>,
    /// Held while granules are resolved where there is no writer.
    resolving: Mutex<()>,
}

/// What only a disk has that is written.
struct Writer {
    /// The data write GUID that a change of the data sets.
    visible: Visible,
    /// Also held while granules are resolved.
    allocator: Mutex<Allocator>,
    /// Held by a flush from its beginning to its end.
    journal: Mutex<Journal>,
    /// The identities are new, and the log has begun.
    begun: AtomicBool,
    /// Changes that the next flush has to record, counted.
    changes: AtomicU64,
    /// How many of them are recorded.
    settled: AtomicU64,
    /// Flushes that have begun, and the last of them that came to its end.
    started: AtomicU64,
    finished: AtomicU64,
}

#[allow(clippy::disallowed_types, reason = "as above")]
fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>, IoError> {
    mutex.lock().map_err(|_| IoError::Damaged("an earlier request panicked"))
}

fn host(error: io::Error) -> IoError {
    io_error(&error)
}

impl VhdxDisk {
    /// The chain of `layers`, from the top down, whose first has `layout`. `files` are theirs, in the same order (none
    /// in crash tests). The map takes about `map_memory` bytes at the most.
    pub(super) fn new(
        info: DiskInfo,
        layout: Layout,
        layers: Vec<Layer>,
        files: Vec<Arc<BackingFile>>,
        writer: Option<(Allocator, Journal)>,
        map_memory: u64,
    ) -> Self {
        let shift = match layout.has_parent {
            true => layout.block_shift.min(MAX_GRANULE_SHIFT),
            false => layout.block_shift,
        };
        let ragged = layers.iter().any(|layer| layer.ragged);
        let writer = writer.map(|(allocator, journal)| Writer {
            visible: Visible::New,
            allocator: Mutex::new(allocator),
            journal: Mutex::new(journal),
            begun: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            started: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        });
        Self {
            chain: ChainMap::new(info.capacity, shift, layers, map_memory),
            info,
            layout,
            files,
            id: Uuid::nil(),
            ragged,
            epochs: Epochs::default(),
            writer,
            resolving: Mutex::new(()),
        }
    }

    /// The same, known by its Virtual Disk ID.
    pub(super) fn with_disk_id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// The same; its data will be known by this identity once they change.
    pub(super) fn with_identity(mut self, identity: Uuid) -> Self {
        if let Some(writer) = &mut self.writer {
            writer.visible = Visible::Known(identity);
        }
        self
    }

    /// The same, inside another disk. It shares the `epochs` of the disk around it. No mapping is evicted between a
    /// write and its completion, which is passed on to that disk.
    pub(super) fn inside(mut self, epochs: Option<Epochs>) -> Self {
        self.epochs = epochs.unwrap_or_default();
        if self.writer.is_some() {
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

    /// Images of the chain, itself included.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.chain.layers.len()
    }

    /// Whether it is a differencing disk.
    pub(super) fn has_parent(&self) -> bool {
        self.layout.has_parent
    }

    fn top(&self) -> Result<&Layer, IoError> {
        self.chain.layers.first().ok_or(IoError::OutOfRange)
    }

    fn writer(&self) -> Result<&Writer, IoError> {
        self.writer.as_ref().ok_or(IoError::ReadOnly)
    }

    /// Before the first change.
    fn begin(&self) -> Result<&Writer, IoError> {
        let writer = self.writer()?;
        self.top()?.store.intact()?;
        if !writer.begun.load(Ordering::Acquire) {
            let mut journal = lock(&writer.journal)?;
            journal.begin(writer.visible).map_err(host)?;
            // Some programs leave the last block short.
            let (store, end) = (&*self.top()?.store, lock(&writer.allocator)?.end());
            if store.len().map_err(host)? < end {
                store.set_size(end).map_err(host)?;
            }
            writer.begun.store(true, Ordering::Release);
        }
        Ok(writer)
    }

    fn resolve(&self, allocator: &Allocator, offset: u64, len: u64) -> Result<bool, IoError> {
        let store = &*self.top()?.store;
        self.chain.resolve(|offset, len| allocator.entries(store, offset, len), offset, len)
    }

    fn blocks(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset >> self.layout.block_shift..(offset + len).div_ceil(self.layout.block_size())
    }

    /// Allocate the blocks of a range in the top file.
    fn allocate(
        &self,
        writer: &Writer,
        allocator: &mut Allocator,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        let (top, shift) = (self.top()?, self.chain.map.shift());
        for block in self.blocks(offset, len) {
            let Some(new) = allocator.allocate(&*top.store, &self.epochs, block)? else { continue };
            // Not only the block: a new bitmap block may lie behind it.
            top.len.fetch_max(allocator.end(), Ordering::AcqRel);
            writer.changes.fetch_add(1, Ordering::AcqRel);
            let start = block << self.layout.block_shift;
            let wanted = self.chain.granules(offset, len);
            for granule in self.chain.granules_of_block(block, self.layout.block_shift) {
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

    /// Write `data` at `offset`, whole sectors, on the slow path. On stable storage after a flush.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] beyond the disk's end; as for any write.
    #[cfg(test)]
    pub(super) fn write_now(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let len = data.len() as u64;
        if offset + len > self.info.capacity {
            return Err(IoError::OutOfRange);
        }
        let mut rest = data;
        for extent in self.chain.places(offset, len, || self.prepare_write(offset, len))?.as_slice() {
            let (part, behind) = rest.split_at_checked(extent.len as usize).unwrap_or((rest, &[]));
            rest = behind;
            if let Place::File { offset, .. } = extent.place {
                self.top()?.store.write_at(part, offset).map_err(host)?;
            }
        }
        self.written(offset, len);
        Ok(())
    }

    /// Free the whole blocks of a range, or with `keep` only those that hold no space. Returns the ranges that remain
    /// to be zeroed.
    fn free(&self, offset: u64, len: u64, to: Entry, keep: bool) -> Result<Vec<(u64, u64)>, IoError> {
        let (size, end) = (self.layout.block_size(), offset + len);
        let first = offset.next_multiple_of(size).min(end);
        // The last block is whole where the disk ends in it.
        let last = if end == self.info.capacity { end } else { (end / size * size).max(first) };
        let writer = self.begin()?;
        let store = &*self.top()?.store;
        let mut left = vec![(offset, first - offset), (last, end - last)];
        let mut blocks = if first < last { self.blocks(first, last - first) } else { 0..0 };
        while !blocks.is_empty() {
            let mut allocator = lock(&writer.allocator)?;
            if allocator.changes() >= PENDING {
                drop(allocator);
                self.flush()?;
                allocator = lock(&writer.allocator)?;
            }
            for block in blocks.by_ref().take(PENDING) {
                if keep && allocator.payload(store, block)?.present() {
                    let start = block << self.layout.block_shift;
                    left.push((start, size.min(end - start)));
                } else if allocator.free(store, block, to)? {
                    self.chain
                        .granules_of_block(block, self.layout.block_shift)
                        .for_each(|granule| self.chain.map.freed(granule));
                    writer.changes.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        left.retain(|(_, len)| *len > 0);
        Ok(left)
    }

    /// Zero what the top file has of a range.
    fn zero_here(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        for (offset, len) in self.chain.steps(offset, len) {
            for extent in self.pieces(offset, len)?.as_slice() {
                if let Place::File { file: 0, offset } = extent.place {
                    self.top()?.store.write_zeroes(offset, extent.len, may_unmap)?;
                }
            }
        }
        Ok(())
    }

    /// Zero a range, block or no block.
    fn zero(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        for (mut at, len) in self.chain.steps(offset, len) {
            for extent in self.pieces(at, len)?.as_slice() {
                match extent.place {
                    Place::Zeros => {}
                    Place::File { file: 0, offset } => {
                        self.top()?.store.write_zeroes(offset, extent.len, may_unmap)?;
                        // Another write to it may not have come through to the map yet.
                        self.written(at, extent.len);
                    }
                    Place::File { .. } => {
                        // Until the sectors are in this image, the parent's are read.
                        let prepare = || self.prepare_write(at, extent.len);
                        for piece in self.chain.places(at, extent.len, prepare)?.as_slice() {
                            if let Place::File { offset, .. } = piece.place {
                                self.top()?.store.write_zeroes(offset, piece.len, may_unmap)?;
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

    /// A flush, with the journal held.
    fn record(&self, writer: &Writer, journal: &mut Journal) -> Result<(), IoError> {
        self.top()?.store.intact()?;
        let changes = writer.changes.load(Ordering::Acquire);
        let resolve = |granule: u64| {
            let start = granule << self.chain.map.shift();
            self.resolve(&*lock(&writer.allocator)?, start, 1).map(|_full_or_not| ())
        };
        self.chain.record(resolve, || self.record_all(writer, journal))?;
        writer.settled.store(changes, Ordering::Release);
        Ok(())
    }

    /// Record what is pending and dirty now, a batch at a time: each is complete by itself, so that a crash between two leaves what
    /// a flush of the first alone would.
    fn record_all(&self, writer: &Writer, journal: &mut Journal) -> Result<(), IoError> {
        // Of blocks that are all new, bits of whole blocks are recorded.
        let per_granule = (self.layout.bits_per_block() / 8).max(4096);
        let record = Record { layout: &self.layout, chain: &self.chain, store: &*self.top()?.store };
        let (mut scan, mut below, mut committed) = (Scan::default(), u64::MAX, false);
        loop {
            let mut allocator = lock(&writer.allocator)?;
            let dirty = self.chain.map.take_dirty(&mut scan, (BATCH / per_granule) as usize);
            let composed = record.compose(&mut allocator, &dirty, &mut below);
            let end = allocator.end();
            drop(allocator);
            let (bitmaps, table, batch) = composed.inspect_err(|_| self.chain.map.recorded(&dirty, false))?;
            let done = match bitmaps.is_empty() && table.is_empty() {
                true if committed => Ok(()),
                true => journal.sync(),
                // Bits first: those of a block that the BAT does not know so far say nothing.
                false => journal.commit([bitmaps, table], end),
            };
            committed = true;
            let mut allocator = lock(&writer.allocator)?;
            match &done {
                Ok(()) => {
                    allocator.recorded(batch, &self.epochs);
                    allocator.reclaim(&*self.top()?.store, &self.epochs);
                }
                Err(_) => allocator.give_back(batch),
            }
            drop(allocator);
            // After the allocator: what is evicted from now on is found as it was recorded.
            self.chain.map.recorded(&dirty, done.is_ok());
            done.map_err(host)?;
            if scan.is_over() && below == 0 {
                return Ok(());
            }
        }
    }

    /// Flush everything to its place, and close the log. No change follows.
    ///
    /// # Errors
    /// The host's; the log stays.
    pub(super) fn close(&self) -> Result<(), IoError> {
        let Some(writer) = self.writer.as_ref().filter(|writer| writer.begun.load(Ordering::Acquire)) else {
            return Ok(());
        };
        let mut journal = lock(&writer.journal)?;
        self.record(writer, &mut journal)?;
        journal.close().map_err(host)
    }
}

impl Format for VhdxDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn image_id(&self) -> Option<[u8; 16]> {
        crate::disk::identity::of_image(self.id.into_bytes())
    }

    #[inline]
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.chain.map.map_read(offset, len, extents)
    }

    #[inline]
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        match &self.writer {
            Some(writer) if writer.begun.load(Ordering::Acquire) => {
                Ok(self.chain.map.map_write(offset, len, extents))
            }
            _ => Ok(Mapping::Blocked),
        }
    }

    fn zeros_past_end(&self) -> bool {
        self.ragged
    }

    fn prepare_read(&self, offset: u64, len: u64) -> Result<(), IoError> {
        // What the last flush wrote to the table was not waited for.
        self.top()?.store.intact()?;
        match &self.writer {
            Some(writer) => {
                let prepare = |offset, len| self.resolve(&*lock(&writer.allocator)?, offset, len);
                self.chain.prepare((offset, len), prepare, || self.flush())
            }
            None => {
                let _one_at_a_time = lock(&self.resolving)?;
                let top = self.top()?;
                let entries = |offset, len| crate::map::chain_map::Layer::entries(top, offset, len);
                let prepare = |offset, len| self.chain.resolve(entries, offset, len);
                self.chain.prepare((offset, len), prepare, || Ok(()))
            }
        }
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let writer = self.begin()?;
        let prepare = |offset, len| {
            let mut allocator = lock(&writer.allocator)?;
            if !self.resolve(&allocator, offset, len)? || allocator.changes() >= PENDING {
                return Ok(false);
            }
            self.allocate(writer, &mut allocator, offset, len)?;
            // Those that there was no unit for are unknown again.
            self.resolve(&allocator, offset, len)
        };
        // A flush makes units clean, so that they can be evicted.
        self.chain.prepare((offset, len), prepare, || self.flush())
    }

    fn map_memory(&self) -> Option<MapMemory> {
        Some(self.chain.map.memory())
    }

    #[inline]
    fn written(&self, offset: u64, len: u64) {
        if let Some(writer) = self.writer.as_ref().filter(|_| self.layout.has_parent) {
            self.chain.map.written(offset, len, &writer.changes);
        }
    }

    fn remark(&self) -> Option<String> {
        let replayed = self.chain.layers.iter().filter(|layer| layer.replayed > 0);
        let reported: Vec<String> = replayed
            .map(|layer| {
                let memory = if layer.overlay.is_some() { " in memory" } else { "" };
                let path = layer.store.path().display();
                format!("{path} was not closed: {} entries of its log are replayed{memory}", layer.replayed)
            })
            .collect();
        (!reported.is_empty()).then(|| reported.join("; "))
    }

    fn epochs(&self) -> Option<&Epochs> {
        // A read-only disk frees nothing, and a fixed one keeps its blocks.
        self.writer.as_ref().map(|_| &self.epochs)
    }

    #[inline]
    fn flush_kind(&self) -> Flush {
        match &self.writer {
            Some(writer)
                if writer.settled.load(Ordering::Acquire) < writer.changes.load(Ordering::Acquire) =>
            {
                Flush::Format
            }
            _ => Flush::SyncFiles,
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        let Some(writer) = self.writer.as_ref().filter(|writer| writer.begun.load(Ordering::Acquire)) else {
            return Ok(());
        };
        // One that begins after this moment covers this one.
        let wanted = writer.started.load(Ordering::Acquire) + 1;
        let mut journal = lock(&writer.journal)?;
        if writer.finished.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        let number = writer.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.record(writer, &mut journal)?;
        writer.finished.store(number, Ordering::Release);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.info.discard.is_none() {
            return Err(IoError::Unsupported);
        }
        for (offset, len) in self.free(offset, len, Entry::UNMAPPED, false)? {
            self.zero_here(offset, len, true)?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        // A fixed disk keeps its space.
        let may_unmap = may_unmap && self.info.discard.is_some();
        for (offset, len) in self.free(offset, len, Entry::ZERO, !may_unmap)? {
            self.zero(offset, len, may_unmap)?;
        }
        Ok(())
    }
}

impl Drop for VhdxDisk {
    /// A normal end of the program flushes: only a power failure may lose completed writes that were not flushed.
    fn drop(&mut self) {
        // A drop cannot report the error. The log stays, and the next open replays it.
        let _ = self.close();
    }
}

impl std::fmt::Debug for VhdxDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhdxDisk")
            .field("info", &self.info)
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
