//! One image of a chain, as the block map resolves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::Layout;
use super::spec::{SECTOR, SECTORS_PER_BITMAP_SECTOR, UNALLOCATED};
use crate::contract::error::IoError;
use crate::host::store::{Store, io_error};
use crate::map::block_map::{Base, Claim};
use crate::map::chain_map;

/// How the data are stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// All sectors in order from the start of the file.
    Flat,
    /// In blocks.
    Sparse(Layout),
}

/// An image of a chain.
pub(super) struct Layer {
    pub(super) store: Arc<dyn Store>,
    pub(super) shape: Shape,
    /// Virtual size in bytes, or less if an image above is smaller: the part that is visible from the top.
    pub(super) size: u64,
    /// Size of the file in bytes. That of the top image grows.
    pub(super) len: AtomicU64,
}

/// BAT entries of consecutive blocks.
pub(super) struct Entries {
    first: u64,
    entries: Vec<u32>,
    /// New blocks of a disk without a parent: they are present as a whole, whatever their bitmaps on disk say.
    whole: Vec<u64>,
}

impl Entries {
    pub(super) fn new(first: u64, entries: Vec<u32>) -> Self {
        Self { first, entries, whole: Vec::new() }
    }

    /// Mark the blocks for which `whole` is true as present as a whole.
    pub(super) fn complete(&mut self, whole: impl Fn(u64) -> bool) {
        let blocks = self.first..self.first + self.entries.len() as u64;
        self.whole = blocks.filter(|block| whole(*block)).collect();
    }

    fn get(&self, block: u64) -> Result<u32, IoError> {
        let at = block.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.entries.get(at)).copied().ok_or(IoError::Damaged("a BAT entry was not read"))
    }
}

/// Read entries of the BAT from the file.
pub(super) fn read_bat(
    store: &dyn Store,
    layout: &Layout,
    first: u64,
    count: u64,
) -> std::io::Result<Vec<u32>> {
    let mut bytes = vec![0; count as usize * 4];
    store.read_at(&mut bytes, layout.bat + first * 4)?;
    Ok(bytes.as_chunks().0.iter().map(|entry| u32::from_be_bytes(*entry)).collect())
}

impl chain_map::Layer for Layer {
    type Entries = Entries;

    fn is_costly(&self, shift: u32) -> bool {
        // A granule has more than 16 blocks, each with a bitmap to read.
        matches!(&self.shape, Shape::Sparse(layout) if layout.block_shift + 4 < shift)
    }

    fn entries(&self, offset: u64, len: u64) -> Result<Entries, IoError> {
        let Shape::Sparse(layout) = &self.shape else { return Ok(Entries::new(0, Vec::new())) };
        let first = offset >> layout.block_shift;
        let end = (offset + len).div_ceil(layout.block_size()).min(u64::from(layout.entries));
        let entries = match end.checked_sub(first) {
            Some(count) if count > 0 => read_bat(&*self.store, layout, first, count).map_err(io_error)?,
            _ => Vec::new(),
        };
        Ok(Entries::new(first, entries))
    }

    fn claim(
        &self,
        file: u32,
        entries: &Entries,
        offset: u64,
        len: u64,
        claim: &mut Claim,
    ) -> Result<(), IoError> {
        let layout = match &self.shape {
            Shape::Flat => {
                let sectors = self.size.saturating_sub(offset).min(len) / SECTOR;
                claim.claim_run(Base { file, offset }, 0, sectors as usize);
                return Ok(());
            }
            Shape::Sparse(layout) => layout,
        };
        let mut at = offset;
        while at < offset + len && !claim.complete() {
            let block = at >> layout.block_shift;
            let within = at & (layout.block_size() - 1);
            let part = (layout.block_size() - within).min(offset + len - at);
            // A parent may be smaller than its child, and has no entries beyond its end.
            let inside = block < u64::from(layout.entries);
            let entry = if inside { entries.get(block)? } else { UNALLOCATED };
            if entry != UNALLOCATED {
                let data = self.checked(layout, entry)? + within;
                // Offset at which the whole granule would start in the file.
                let base = Base { file, offset: data.wrapping_sub(at - offset) };
                if at == offset && file == 0 {
                    claim.set_top(data);
                }
                match file == 0 && entries.whole.contains(&block) {
                    true => {
                        let first = (at - offset) / SECTOR;
                        let there = self.size.saturating_sub(at).min(part) / SECTOR;
                        claim.claim_run(base, first as usize, (first + there) as usize);
                    }
                    false => self.claim_block(layout, entry, (offset, at, part), base, claim)?,
                }
            }
            at += part;
        }
        Ok(())
    }
}

impl Layer {
    /// The byte offset of a block's data, if the entry is valid.
    fn checked(&self, layout: &Layout, entry: u32) -> Result<u64, IoError> {
        let (bitmap, end) = layout.block_range(entry);
        if layout.hits_metadata(bitmap, end) {
            return Err(IoError::Damaged("a BAT entry points into the metadata"));
        }
        if bitmap + layout.bitmap > self.len.load(Ordering::Acquire) {
            return Err(IoError::Damaged("a BAT entry points behind the end of the file"));
        }
        Ok(layout.data_at(entry))
    }

    fn claim_block(
        &self,
        layout: &Layout,
        entry: u32,
        (granule, at, part): (u64, u64, u64),
        base: Base,
        claim: &mut Claim,
    ) -> Result<(), IoError> {
        let within = (at & (layout.block_size() - 1)) / SECTOR;
        let first = (at - granule) / SECTOR;
        // Of a truncated block, the sectors inside the file are present. No sectors are present beyond the disk's end.
        let data = layout.data_at(entry) + within * SECTOR;
        let len = self.len.load(Ordering::Acquire);
        let there = len.saturating_sub(data).min(self.size.saturating_sub(at)).min(part) / SECTOR;
        // A granule is at most as large as the range of one bitmap sector, and does not straddle two.
        let bit = within % SECTORS_PER_BITMAP_SECTOR;
        let mut bits = [0; SECTOR as usize];
        let sector_of_bitmap = within / SECTORS_PER_BITMAP_SECTOR * SECTOR;
        self.store.read_at(&mut bits, Layout::bitmap_at(entry) + sector_of_bitmap).map_err(io_error)?;
        let has = |sector: usize| Layout::has_bit(&bits, bit + sector as u64 - first);
        claim.claim(base, first as usize, (first + there) as usize, has);
        Ok(())
    }
}
