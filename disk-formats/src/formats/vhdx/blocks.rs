//! The blocks of an open VHDX: how they are allocated, freed and recorded, in a crash-consistent order.
//!
//! Order of writes. The first write to a block allocates it, zeroed; its BAT entry exists in memory only. A flush
//! 1. calls fdatasync: allocation and payload are on stable storage, and so are the sectors that the previous flush wrote in place;
//! 2. writes an entry of the log with the sectors of bitmaps and BAT, and calls fdatasync;
//! 3. writes these sectors in place, without a flush: step 1 of the next flush covers them.
//!
//! If a block's bits on disk are stale, the batch with its BAT entry also has all of its bits. The bits take effect no later than the entry
//! ([`Journal::commit`]). If all sectors of a partially present block are in the top file, it needs no bits any more: its BAT entry becomes
//! fully present.
//!
//! Without changes of metadata, a flush consists of step 1. Many changes are recorded in batches, each with all steps,
//! so that the memory of a flush is bounded. Freed blocks are reused only after the flush that records the free, and
//! after every request that was mapped before the free has completed ([`Epochs`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uuid::Uuid;

use super::alloc::{Allocator, Batch};
use super::journal::{DataGuid, Journal, Sectors};
use super::layer::{Entries, Layer};
use super::layout::{Entry, Layout, State};
use crate::contract::error::{IoError, escaped};
use crate::contract::info::{DiskInfo, SectorSize};
use crate::formats::sparse::{Allocated, Blocks, Mutex, SparseDisk, lock};
use crate::host::backing::BackingFile;
use crate::host::store::{Store, io_error};
use crate::map::block_map::{Dirty, Presence, Scan};
use crate::map::chain_map::ChainMap;
use crate::map::epochs::Epochs;
use crate::map::format::Format;

/// Largest granule of a differencing disk's map. Its sectors may be in different places.
const MAX_GRANULE_SHIFT: u32 = 21;

/// Maximum number of bytes of bitmap sectors that a flush holds in memory for one batch of dirty granules.
const BITMAP_BATCH: u64 = 8 << 20;

/// A VHDX and its parents.
pub(super) type VhdxDisk = SparseDisk<VhdxBlocks>;

/// The blocks of the top image.
pub(super) struct VhdxBlocks {
    layout: Layout,
    /// The size of a file of the chain is not whole MiB.
    ragged: bool,
    epochs: Epochs,
    /// `None` for a read-only disk.
    writer: Option<Writer>,
}

/// State of a writable disk.
struct Writer {
    /// Which data write GUID the first change sets.
    data_guid: DataGuid,
    journal: Mutex<Journal>,
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
    /// The chain of `layers`, from the top down; `layout` is that of the top. `files` are their files in the same order
    /// (empty in crash tests). `writer` is set for a writable disk. `map_memory` is the memory budget of the map in
    /// bytes (approximate).
    pub(super) fn of_layers(
        info: DiskInfo,
        layout: Layout,
        layers: Vec<Layer>,
        files: Vec<Arc<BackingFile>>,
        writer: Option<(Allocator, Journal)>,
        map_memory: u64,
    ) -> Self {
        let (allocator, journal) = writer.unzip();
        let writer = |journal| Writer { data_guid: DataGuid::New, journal: Mutex::new(journal) };
        let blocks = VhdxBlocks {
            layout,
            ragged: layers.iter().any(|layer| layer.ragged),
            epochs: Epochs::default(),
            writer: journal.map(writer),
        };
        Self::new(info, blocks, layers, files, allocator, map_memory)
    }

    /// Set the data write GUID that the first change will set.
    pub(super) fn with_identity(mut self, identity: Uuid) -> Self {
        if let Some(writer) = &mut self.blocks.writer {
            writer.data_guid = DataGuid::Known(identity);
        }
        self
    }

    /// Share the epochs of the outer disk.
    pub(super) fn with_epochs(mut self, epochs: Option<&Epochs>) -> Self {
        self.blocks.epochs = epochs.cloned().unwrap_or_default();
        self
    }

    /// Set the BAT entries of the whole blocks of a range to `to`, and free their space. With `keep`, blocks with data in the file stay as
    /// they are. Returns the ranges that remain to be zeroed: the partial blocks at both ends, and the blocks that stayed.
    fn free_whole(&self, offset: u64, len: u64, to: Entry, keep: bool) -> Result<Vec<(u64, u64)>, IoError> {
        let layout = &self.blocks.layout;
        let (size, end) = (layout.block_size(), offset + len);
        let first = offset.next_multiple_of(size).min(end);
        // At the end of the disk, the last block counts as whole, even if the disk ends inside of it.
        let last = if end == self.info().capacity { end } else { (end / size * size).max(first) };
        self.before_change()?;
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
    /// `None` for a read-only disk.
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

    /// The in-place writes of the last flush are not synced. If a sync of the file fails, they may be lost.
    fn check_flushes(&self, top: &Layer) -> Result<(), IoError> {
        top.store.check_flushes()
    }

    /// Sets new GUIDs, and starts a log.
    fn before_first_change(&self, top: &Layer, allocator: &Mutex<Option<Allocator>>) -> Result<(), IoError> {
        let writer = self.writer()?;
        lock(&writer.journal)?.start_log(writer.data_guid).map_err(io_error)?;
        // Some programs leave the last block truncated.
        let end = lock(allocator)?.as_ref().ok_or(IoError::ReadOnly)?.end();
        if top.store.len().map_err(io_error)? < end {
            top.store.set_size(end).map_err(io_error)?;
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
            None => Entries::read(&*top.store, &self.layout, offset, len).map_err(io_error),
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
            // The end of all space in the file, not of this block: a new bitmap block may lie behind it.
            top.len.fetch_max(allocator.end(), Ordering::AcqRel);
        }
        Ok(new)
    }

    /// Records in batches. Each batch is complete: after a crash between two batches, the earlier ones are recorded.
    fn record(
        &self,
        top: &Layer,
        chain: &ChainMap<Layer>,
        allocator: &Mutex<Option<Allocator>>,
    ) -> Result<(), IoError> {
        let mut journal = lock(&self.writer()?.journal)?;
        // Maximum number of bytes of bitmap sectors for a dirty granule. If the bits on disk are stale, the bits of its whole block are
        // written.
        let per_granule = (self.layout.bits_per_block() / 8).max(4096);
        // `committed`: an earlier batch has flushed all payload, so an empty batch needs no sync.
        let (mut scan, mut below, mut committed) = (Scan::default(), u64::MAX, false);
        loop {
            let mut guard = lock(allocator)?;
            let table = guard.as_mut().ok_or(IoError::ReadOnly)?;
            let dirty = chain.map.take_dirty(&mut scan, (BITMAP_BATCH / per_granule) as usize);
            let composed = self.compose(&*top.store, chain, table, &dirty, &mut below);
            let end = table.end();
            drop(guard);
            let (bitmaps, entries, batch) = composed.inspect_err(|_| chain.map.recorded(&dirty, false))?;
            let done = match bitmaps.is_empty() && entries.is_empty() {
                true if committed => Ok(()),
                true => journal.sync(),
                // Bitmaps first: they have no meaning before the BAT refers to the block.
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
                Err(_) => table.restore(batch),
            }
            drop(guard);
            // After this call these granules may be evicted. They are then resolved from the allocator's state, so the allocator was
            // updated first.
            chain.map.recorded(&dirty, done.is_ok());
            done.map_err(io_error)?;
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
        // The space of a fixed disk stays allocated.
        let may_unmap = may_unmap && disk.info().discard.is_some();
        for (offset, len) in disk.free_whole(offset, len, Entry::ZERO, !may_unmap)? {
            disk.zero(offset, len, may_unmap)?;
        }
        Ok(())
    }

    /// If this fails, the log stays in the file, and the next open replays it.
    fn end(&self) -> Result<(), IoError> {
        lock(&self.writer()?.journal)?.close().map_err(io_error)
    }

    fn zeros_past_end(&self) -> bool {
        self.ragged
    }

    fn epochs(&self) -> Option<&Epochs> {
        // A read-only disk frees nothing.
        self.writer.as_ref().map(|_| &self.epochs)
    }

    fn remark(layers: &[Layer]) -> Option<String> {
        let replayed = layers.iter().filter(|layer| layer.replayed > 0);
        let reported: Vec<String> = replayed
            .map(|layer| {
                let memory = if layer.overlay.is_some() { " in memory" } else { "" };
                let path = escaped(layer.store.path());
                format!("{path} was not closed: {} entries of its log are replayed{memory}", layer.replayed)
            })
            .collect();
        (!reported.is_empty()).then(|| reported.join("; "))
    }
}

impl VhdxBlocks {
    /// Compose the sectors of a flush that record the granules in `dirty` and the next pending BAT entries. `store` is the top image.
    /// Returns the sectors of bitmaps, the sectors of the BAT, and the batch that they record. `below` says which pending entries are next,
    /// as in [`Allocator::pending_blocks`].
    fn compose(
        &self,
        store: &dyn Store,
        chain: &ChainMap<Layer>,
        allocator: &mut Allocator,
        dirty: &[Dirty],
        below: &mut u64,
    ) -> Result<(Sectors, Sectors, Batch), IoError> {
        let mut bitmaps = Sectors::default();
        let mut changed = allocator.pending_blocks(below);
        if self.layout.has_parent {
            let per_block = self.layout.block_shift - chain.map.shift();
            let mut blocks: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for granule in dirty.iter().map(|dirty| dirty.granule) {
                blocks.entry(granule >> per_block).or_default().push(granule);
            }
            changed.extend(blocks.keys());
            for block in &changed {
                let all = chain.granules_of_block(*block, self.layout.block_shift);
                let granules = match allocator.bitmap_is_stale(*block) {
                    true => all.clone().collect(),
                    false => blocks.remove(block).unwrap_or_default(),
                };
                if granules.is_empty() {
                    continue;
                }
                let entry = allocator.payload(store, *block)?;
                if entry.state() != State::PartiallyPresent {
                    continue;
                }
                if all.clone().all(|granule| chain.map.in_top(granule)) {
                    allocator.complete(*block, entry);
                    continue;
                }
                let at = allocator.bitmap(store, self.layout.chunk(*block))?;
                let at =
                    at.ok_or(IoError::Damaged("a block is partially present, but has no bitmap block"))?;
                for granule in granules {
                    let bit = self.layout.bit(granule << chain.map.shift());
                    let bits = self.bits(1 << chain.map.shift(), &chain.map.presence(granule)?);
                    bitmaps.patch(store, at + bit / 8, &bits).map_err(io_error)?;
                }
            }
        }
        let (table, batch) = allocator.begin_record(store, changed).map_err(io_error)?;
        Ok((bitmaps, table, batch))
    }

    /// The bitmap of a granule of `len` bytes.
    fn bits(&self, len: usize, presence: &Presence) -> Vec<u8> {
        let bytes = presence.iter().flat_map(|word| word.to_le_bytes());
        let bytes = bytes.take(len / 512 / 8);
        match self.layout.sector {
            SectorSize::B512 => bytes.collect(),
            // Eight sectors of 512 bytes, one byte of the map's bitmap, are one sector of 4,096 bytes.
            SectorSize::B4096 => {
                let sectors: Vec<bool> = bytes.map(|byte| byte == 0xFF).collect();
                let byte = |sectors: &[bool]| {
                    sectors.iter().rev().fold(0, |bits, there| bits << 1 | u8::from(*there))
                };
                sectors.chunks(8).map(byte).collect()
            }
        }
    }
}
