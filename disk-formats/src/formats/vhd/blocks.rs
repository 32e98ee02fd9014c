//! The blocks of an open dynamic or differencing disk: how they are allocated and recorded, in a crash-consistent
//! order.
//!
//! Order of writes. The first write to a block allocates it, zeroed, with space for the footer after it, so that the
//! file never ends with guest data. The BAT entry exists in memory only. A flush
//! 1. writes the footer after the last block;
//! 2. calls fdatasync: footer, allocation and payload are on stable storage;
//! 3. writes the bitmaps and BAT entries that were pending when it began;
//! 4. calls fdatasync again.
//!
//! Step 1 is skipped if there are no new blocks; steps 3 and 4 are skipped if there are no dirty bitmaps either. Many
//! bitmaps are recorded in batches, so that the memory of a flush is bounded. The sectors of each batch are synced
//! before its bits are written, which costs one more fdatasync for each further batch. So an entry never points to a
//! block that is not on stable storage, and no bit is set for a sector that is not. A crash leaves at worst a block
//! without an entry, and no footer at the end of the file; the copy at the start remains.
//!
//! Before the first write after an open, the footers get a new time stamp, on stable storage ([`stamp`](super::stamp)).

use std::sync::atomic::Ordering;

use super::alloc::Allocator;
use super::layer::{Entries, Layer};
use super::layout::Layout;
use super::spec::{SECTOR, SECTORS_PER_BITMAP_SECTOR, UNALLOCATED};
use crate::contract::error::IoError;
use crate::formats::sparse::{Allocated, Blocks, Mutex, SparseDisk, lock};
use crate::host::store::{Store, io_error};
use crate::map::block_map::{Dirty, Scan};
use crate::map::chain_map::ChainMap;

/// Largest granule of the map: the range that one sector of a bitmap describes.
const MAX_GRANULE_SHIFT: u32 = (SECTORS_PER_BITMAP_SECTOR * SECTOR).trailing_zeros();

/// Maximum number of granules whose bitmaps a flush holds in memory at once: 512 bytes each.
const BATCH: usize = 4096;

/// A chain whose top is a dynamic or differencing VHD.
pub(super) type SparseVhd = SparseDisk<VhdBlocks>;

/// The blocks of the top image.
pub(super) struct VhdBlocks {
    layout: Layout,
    /// Sectors that the image does not have are read from the parent. If false, they are zeros, and the bitmap of a new block says that it
    /// has all sectors.
    differencing: bool,
}

/// The state that a flush records: the dirty granules of the chain, and the pending blocks.
type Recorded<'a> = (&'a ChainMap<Layer>, &'a Mutex<Allocator>);

/// Offset of a bitmap sector in the file, and its content.
type Bitmap = (u64, [u8; SECTOR as usize]);

impl VhdBlocks {
    pub(super) fn new(layout: Layout, differencing: bool) -> Self {
        Self { layout, differencing }
    }

    /// The bitmap sector of a granule, and its offset.
    fn bitmap(
        &self,
        chain: &ChainMap<Layer>,
        allocator: &Allocator,
        granule: u64,
    ) -> Result<Bitmap, IoError> {
        let start = granule << chain.map.shift();
        let entry = allocator.entry(start >> self.layout.block_shift);
        if entry == UNALLOCATED {
            return Err(IoError::Damaged("sectors were written to a block that is not allocated"));
        }
        let within = (start & (self.layout.block_size() - 1)) / SECTOR;
        let mut bits = [0u8; SECTOR as usize];
        let presence = chain.map.presence(granule)?;
        for (bytes, word) in bits.chunks_exact_mut(8).zip(presence) {
            // The first sector is the highest bit of the first byte.
            bytes.copy_from_slice(&word.reverse_bits().to_be_bytes());
        }
        Ok((Layout::bitmap_at(entry) + within / SECTORS_PER_BITMAP_SECTOR * SECTOR, bits))
    }

    /// The bitmap sectors of a block without a parent: all bits are set.
    fn full_bitmap(&self, entry: u32) -> impl Iterator<Item = Bitmap> + use<> {
        let start = Layout::bitmap_at(entry);
        let mut bits = [0; SECTOR as usize];
        let sectors = (self.layout.block_size() / SECTOR).min(8 * SECTOR) as usize;
        for sector in 0..sectors {
            bits[sector / 8] |= 0x80 >> (sector % 8);
        }
        (start..start + self.layout.bitmap).step_by(SECTOR as usize).map(move |at| (at, bits))
    }

    /// Flush the payload, and write the bitmaps of dirty granules in batches: the sectors of a batch are on stable
    /// storage before their bits are written. `open` gets the granules whose bits are not flushed yet. Returns `true`
    /// if the flush is complete, because there are no bits and (`no_blocks`) no entries.
    fn record_bits(
        &self,
        (chain, allocator): Recorded<'_>,
        store: &dyn Store,
        open: &mut Vec<Dirty>,
        no_blocks: bool,
    ) -> Result<bool, IoError> {
        let mut scan = Scan::default();
        loop {
            let before = open.len();
            let bitmaps: Vec<Bitmap> = {
                let allocator = lock(allocator)?;
                let dirty = chain.map.take_dirty(&mut scan, BATCH);
                open.extend(&dirty);
                let bitmaps = dirty.iter().map(|dirty| self.bitmap(chain, &allocator, dirty.granule));
                bitmaps.collect::<Result<_, _>>()?
            };
            store.sync().map_err(io_error)?;
            // This sync also covered the bits of the previous batch.
            chain.map.recorded(open.get(..before).unwrap_or_default(), true);
            open.drain(..before);
            for (at, bits) in &bitmaps {
                store.write_at(bits, *at).map_err(io_error)?;
            }
            if scan.is_over() {
                return Ok(open.is_empty() && no_blocks);
            }
        }
    }

    /// The last part of a flush: writes the BAT entries and, for disks without a parent, the bitmaps of new blocks.
    /// Payload, footer and new blocks are on stable storage already.
    fn record_blocks(
        &self,
        allocator: &Mutex<Allocator>,
        store: &dyn Store,
        blocks: &[u32],
    ) -> Result<(), IoError> {
        let write = |at, bytes: &[u8]| store.write_at(bytes, at).map_err(io_error);
        if !self.differencing {
            for block in blocks {
                let entry = lock(allocator)?.entry(u64::from(*block));
                self.full_bitmap(entry).try_for_each(|(at, bits)| write(at, &bits))?;
            }
        }
        for sector in Allocator::table_sectors(blocks) {
            // Composed under the lock and written without it, because only one flush at a time writes entries.
            let (at, bytes) = lock(allocator)?.table_sector(sector);
            write(self.layout.bat + at, &bytes)?;
        }
        store.sync().map_err(io_error)
    }
}

impl Blocks for VhdBlocks {
    type Layer = Layer;
    type Allocator = Allocator;

    fn block_shift(&self) -> u32 {
        self.layout.block_shift
    }

    fn granule_shift(&self) -> u32 {
        self.layout.block_shift.min(MAX_GRANULE_SHIFT)
    }

    #[inline]
    fn records_sectors(&self) -> bool {
        true
    }

    fn store(layer: &Layer) -> &dyn Store {
        &*layer.store
    }

    /// Writes a new time stamp, on stable storage.
    fn before_first_change(&self, top: &Layer, allocator: &Mutex<Allocator>) -> Result<(), IoError> {
        let mut allocator = lock(allocator)?;
        allocator.renew_stamp(&*top.store).map_err(io_error)?;
        top.len.store(allocator.len(), Ordering::Release);
        Ok(())
    }

    fn entries(
        &self,
        allocator: &Allocator,
        _top: &Layer,
        offset: u64,
        len: u64,
    ) -> Result<Entries, IoError> {
        let mut entries = allocator.entries(offset, len);
        if !self.differencing {
            entries.complete(|block| allocator.is_new(block));
        }
        Ok(entries)
    }

    fn pending(allocator: &Allocator) -> usize {
        allocator.changes()
    }

    fn allocate(
        &self,
        allocator: &mut Allocator,
        top: &Layer,
        block: u64,
    ) -> Result<Option<Allocated>, IoError> {
        if allocator.entry(block) != UNALLOCATED {
            return Ok(None);
        }
        let entry = allocator.allocate(&*top.store, &self.layout, block)?;
        top.len.store(allocator.len(), Ordering::Release);
        Ok(Some(Allocated { offset: self.layout.data_at(entry), whole: !self.differencing }))
    }

    fn record(
        &self,
        top: &Layer,
        chain: &ChainMap<Layer>,
        allocator: &Mutex<Allocator>,
    ) -> Result<(), IoError> {
        let store = &*top.store;
        let (blocks, closed) = {
            let mut allocator = lock(allocator)?;
            let blocks = allocator.begin_record();
            // With the lock held, because the next allocation overwrites the footer.
            let closed = if blocks.is_empty() { Ok(()) } else { allocator.close(store) };
            (blocks, closed)
        };
        // Granules whose bits are written or about to be, but are not on stable storage.
        let mut open = Vec::new();
        let done = closed
            .map_err(io_error)
            .and_then(|()| self.record_bits((chain, allocator), store, &mut open, blocks.is_empty()))
            .and_then(|over| if over { Ok(()) } else { self.record_blocks(allocator, store, &blocks) });
        chain.map.recorded(&open, done.is_ok());
        lock(allocator)?.recorded(done.is_ok());
        done
    }

    /// Zeroes the range. Blocks stay allocated, because the format has no state for a freed block.
    fn discard(disk: &SparseVhd, offset: u64, len: u64) -> Result<(), IoError> {
        disk.deallocate(offset, len)
    }

    fn write_zeroes(disk: &SparseVhd, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        disk.zero(offset, len, may_unmap)
    }
}

impl Entries {
    /// The entries of the blocks of `len` bytes at `offset`, from a table in memory.
    pub(super) fn of_table(table: &[u32], layout: &Layout, offset: u64, len: u64) -> Self {
        let first = offset >> layout.block_shift;
        let end = (offset + len).div_ceil(layout.block_size()).min(table.len() as u64);
        let entries = table.get(first as usize..end as usize).unwrap_or_default().to_vec();
        Self::new(first, entries)
    }
}

#[cfg(test)]
impl SparseVhd {
    /// The value of each sector, as the disk reads it; `None` for a torn sector.
    pub(super) fn values(&self) -> Result<Vec<Option<u64>>, IoError> {
        Ok(self.content()?.chunks_exact(SECTOR as usize).map(crate::host::crash::value_of).collect())
    }
}

#[cfg(test)]
mod tests;
