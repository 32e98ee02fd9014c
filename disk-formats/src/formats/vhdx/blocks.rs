//! The blocks of an open VHDX: how they are allocated, freed and recorded, in a crash-consistent order.
//!
//! Order of writes. A block is allocated, all zeros, when it is first written; its BAT entry exists in memory only. A flush
//! 1. calls fdatasync: allocation and payload are on stable storage, and so are the sectors that the previous flush wrote in place;
//! 2. writes an entry of the log with the sectors of bitmaps and BAT, and calls fdatasync;
//! 3. writes these sectors in place, without a flush: step 1 of the next flush covers them.
//!
//! Without changes of metadata, only step 1 is made. Many changes are recorded in batches, each with all steps, so that the
//! memory of a flush is bounded. Freed blocks are reused only after the flush that records the change, and after every
//! request that was mapped before has completed ([`Epochs`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::alloc::Allocator;
use super::bat::Entry;
use super::journal::{Journal, Visible};
use super::layer::{Entries, Layer};
use super::layout::Layout;
use super::record::Record;
use crate::disk::info::DiskInfo;
use crate::error::IoError;
use crate::formats::format::Format;
use crate::formats::sparse::{Allocated, Blocks, Mutex, SparseDisk, lock};
use crate::host::backing::BackingFile;
use crate::host::store::{Store, io_error};
use crate::map::block_map::Scan;
use crate::map::chain_map::ChainMap;
use crate::map::epochs::Epochs;

/// Largest granule of the map of a differencing disk, where sectors may have entries of their own.
const MAX_GRANULE_SHIFT: u32 = 21;

/// Bytes of bitmap sectors that a flush holds in memory for one batch of dirty granules.
const BATCH: u64 = 8 << 20;

/// A VHDX and its parents.
pub(super) type VhdxDisk = SparseDisk<VhdxBlocks>;

/// The blocks of the top image.
pub(super) struct VhdxBlocks {
    layout: Layout,
    /// A file ends inside its last block.
    ragged: bool,
    epochs: Epochs,
    /// `None` for a disk that is not written.
    writer: Option<Writer>,
}

/// What only a disk has that is written.
struct Writer {
    /// The data write GUID that a change of the data sets.
    visible: Visible,
    journal: Mutex<Journal>,
}

fn host(error: io::Error) -> IoError {
    io_error(&error)
}

impl VhdxBlocks {
    fn writer(&self) -> Result<&Writer, IoError> {
        self.writer.as_ref().ok_or(IoError::ReadOnly)
    }

    /// Whether it is a differencing disk.
    pub(super) fn has_parent(&self) -> bool {
        self.layout.has_parent
    }
}

impl VhdxDisk {
    /// The chain of `layers`, from the top down, whose first has `layout`. `files` are theirs, in the same order (none
    /// in crash tests); `writer`: of a disk that is written. The map takes about `map_memory` bytes at the most.
    pub(super) fn of_layers(
        info: DiskInfo,
        layout: Layout,
        layers: Vec<Layer>,
        files: Vec<Arc<BackingFile>>,
        writer: Option<(Allocator, Journal)>,
        map_memory: u64,
    ) -> Self {
        let (allocator, journal) = writer.unzip();
        let writer = |journal| Writer { visible: Visible::New, journal: Mutex::new(journal) };
        let blocks = VhdxBlocks {
            layout,
            ragged: layers.iter().any(|layer| layer.ragged),
            epochs: Epochs::default(),
            writer: journal.map(writer),
        };
        Self::new(info, blocks, layers, files, allocator, map_memory)
    }

    /// The same; its data will be known by this identity once they change.
    pub(super) fn with_identity(mut self, identity: Uuid) -> Self {
        if let Some(writer) = &mut self.blocks.writer {
            writer.visible = Visible::Known(identity);
        }
        self
    }

    /// The same; it shares the epochs of the disk around it.
    pub(super) fn with_epochs(mut self, epochs: Option<&Epochs>) -> Self {
        self.blocks.epochs = epochs.cloned().unwrap_or_default();
        self
    }

    /// Free the whole blocks of a range, or with `keep` only those that hold no space. Returns the ranges that remain
    /// to be zeroed.
    fn free_whole(&self, offset: u64, len: u64, to: Entry, keep: bool) -> Result<Vec<(u64, u64)>, IoError> {
        let layout = &self.blocks.layout;
        let (size, end) = (layout.block_size(), offset + len);
        let first = offset.next_multiple_of(size).min(end);
        // The last block is whole where the disk ends in it.
        let last = if end == self.info().capacity { end } else { (end / size * size).max(first) };
        self.begin()?;
        let store = self.store()?;
        let mut left = vec![(offset, first - offset), (last, end - last)];
        let blocks = if first < last { self.blocks_of(first, last - first) } else { 0..0 };
        self.free(blocks, |allocator, block| {
            let allocator = allocator.as_mut().ok_or(IoError::ReadOnly)?;
            if keep && allocator.payload(store, block)?.present() {
                let start = block << layout.block_shift;
                left.push((start, size.min(end - start)));
                return Ok(false);
            }
            allocator.free(store, block, to)
        })?;
        left.retain(|(_, len)| *len > 0);
        Ok(left)
    }
}

impl Blocks for VhdxBlocks {
    type Layer = Layer;
    /// `None` for a disk that is not written.
    type Allocator = Option<Allocator>;

    const HAS_END: bool = true;

    fn block_shift(&self) -> u32 {
        self.layout.block_shift
    }

    fn granule_shift(&self) -> u32 {
        match self.layout.has_parent {
            true => self.layout.block_shift.min(MAX_GRANULE_SHIFT),
            false => self.layout.block_shift,
        }
    }

    #[inline]
    fn records_sectors(&self) -> bool {
        self.layout.has_parent
    }

    fn store(layer: &Layer) -> &dyn Store {
        &*layer.store
    }

    /// The in-place writes of the last flush are not synced: a failed sync of the file may have lost them.
    fn intact(&self, top: &Layer) -> Result<(), IoError> {
        top.store.intact()
    }

    /// New identities, and a log that has begun.
    fn begin(&self, top: &Layer, allocator: &Mutex<Option<Allocator>>) -> Result<(), IoError> {
        let writer = self.writer()?;
        lock(&writer.journal)?.begin(writer.visible).map_err(host)?;
        // Some programs leave the last block short.
        let end = lock(allocator)?.as_ref().ok_or(IoError::ReadOnly)?.end();
        if top.store.len().map_err(host)? < end {
            top.store.set_size(end).map_err(host)?;
        }
        Ok(())
    }

    fn entries(
        &self,
        allocator: &Option<Allocator>,
        top: &Layer,
        offset: u64,
        len: u64,
    ) -> Result<Entries, IoError> {
        match allocator {
            Some(allocator) => allocator.entries(&*top.store, offset, len),
            None => Entries::read(&*top.store, &self.layout, offset, len).map_err(host),
        }
    }

    fn pending(allocator: &Option<Allocator>) -> usize {
        allocator.as_ref().map_or(0, Allocator::changes)
    }

    fn allocate(
        &self,
        allocator: &mut Option<Allocator>,
        top: &Layer,
        block: u64,
    ) -> Result<Option<Allocated>, IoError> {
        let allocator = allocator.as_mut().ok_or(IoError::ReadOnly)?;
        let new = allocator.allocate(&*top.store, &self.epochs, block)?;
        if new.is_some() {
            // Not only the block: a new bitmap block may lie behind it.
            top.len.fetch_max(allocator.end(), Ordering::AcqRel);
        }
        Ok(new)
    }

    /// A batch at a time: each is complete by itself, so that a crash between two leaves what a flush of the first alone would.
    fn record(
        &self,
        top: &Layer,
        chain: &ChainMap<Layer>,
        allocator: &Mutex<Option<Allocator>>,
    ) -> Result<(), IoError> {
        let mut journal = lock(&self.writer()?.journal)?;
        // Of blocks that are all new, bits of whole blocks are recorded.
        let per_granule = (self.layout.bits_per_block() / 8).max(4096);
        let record = Record { layout: &self.layout, chain, store: &*top.store };
        let (mut scan, mut below, mut committed) = (Scan::default(), u64::MAX, false);
        loop {
            let mut guard = lock(allocator)?;
            let table = guard.as_mut().ok_or(IoError::ReadOnly)?;
            let dirty = chain.map.take_dirty(&mut scan, (BATCH / per_granule) as usize);
            let composed = record.compose(table, &dirty, &mut below);
            let end = table.end();
            drop(guard);
            let (bitmaps, entries, batch) = composed.inspect_err(|_| chain.map.recorded(&dirty, false))?;
            let done = match bitmaps.is_empty() && entries.is_empty() {
                true if committed => Ok(()),
                true => journal.sync(),
                // Bits first: they have no meaning before the BAT has the block.
                false => journal.commit([bitmaps, entries], end),
            };
            committed = true;
            let mut guard = lock(allocator)?;
            let table = guard.as_mut().ok_or(IoError::ReadOnly)?;
            match &done {
                Ok(()) => {
                    table.recorded(batch, &self.epochs);
                    table.reclaim(&*top.store, &self.epochs);
                }
                Err(_) => table.give_back(batch),
            }
            drop(guard);
            // After the allocator: granules that are evicted from now on are resolved from the recorded state.
            chain.map.recorded(&dirty, done.is_ok());
            done.map_err(host)?;
            if scan.is_over() && below == 0 {
                return Ok(());
            }
        }
    }

    fn discard(disk: &VhdxDisk, offset: u64, len: u64) -> Result<(), IoError> {
        if disk.info().discard.is_none() {
            return Err(IoError::Unsupported);
        }
        for (offset, len) in disk.free_whole(offset, len, Entry::UNMAPPED, false)? {
            disk.deallocate(offset, len)?;
        }
        Ok(())
    }

    fn write_zeroes(disk: &VhdxDisk, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        // A fixed disk keeps its space.
        let may_unmap = may_unmap && disk.info().discard.is_some();
        for (offset, len) in disk.free_whole(offset, len, Entry::ZERO, !may_unmap)? {
            disk.zero(offset, len, may_unmap)?;
        }
        Ok(())
    }

    /// Without it the log stays, and the next open replays it.
    fn end(&self) -> Result<(), IoError> {
        lock(&self.writer()?.journal)?.close().map_err(host)
    }

    fn zeros_past_end(&self) -> bool {
        self.ragged
    }

    fn epochs(&self) -> Option<&Epochs> {
        // A read-only disk frees nothing, and a fixed one keeps its blocks.
        self.writer.as_ref().map(|_| &self.epochs)
    }

    fn remark(layers: &[Layer]) -> Option<String> {
        let replayed = layers.iter().filter(|layer| layer.replayed > 0);
        let reported: Vec<String> = replayed
            .map(|layer| {
                let memory = if layer.overlay.is_some() { " in memory" } else { "" };
                let path = layer.store.path().display();
                format!("{path} was not closed: {} entries of its log are replayed{memory}", layer.replayed)
            })
            .collect();
        (!reported.is_empty()).then(|| reported.join("; "))
    }
}
