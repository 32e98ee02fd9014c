//! The sectors of bitmaps and BAT that a flush writes for one batch of changes.
//!
//! If a block's bits on disk are stale, the batch with its BAT entry also has all of its bits. The bits take effect no later than the entry
//! ([`Journal::commit`](super::journal::Journal::commit)). If all sectors of a partially present block are in the top file, it needs no
//! bits any more: its BAT entry becomes fully present.

use std::collections::BTreeMap;

use super::alloc::{Allocator, Batch};
use super::journal::Sectors;
use super::layer::Layer;
use super::layout::{Layout, State};
use crate::contract::error::IoError;
use crate::contract::info::SectorSize;
use crate::host::store::{Store, io_error};
use crate::map::block_map::{Dirty, Presence};
use crate::map::chain_map::ChainMap;

/// The parts of a disk that a flush reads.
pub(super) struct Composer<'a> {
    pub(super) layout: &'a Layout,
    pub(super) chain: &'a ChainMap<Layer>,
    /// The top image.
    pub(super) store: &'a dyn Store,
}

impl Composer<'_> {
    /// Compose the sectors that record the granules in `dirty` and the next pending BAT entries. Returns the sectors of bitmaps, the
    /// sectors of the BAT, and the batch that they record. `below` says which pending entries are next, as in
    /// [`Allocator::pending_blocks`].
    pub(super) fn compose(
        &self,
        allocator: &mut Allocator,
        dirty: &[Dirty],
        below: &mut u64,
    ) -> Result<(Sectors, Sectors, Batch), IoError> {
        let mut bitmaps = Sectors::default();
        let mut changed = allocator.pending_blocks(below);
        if self.layout.has_parent {
            let per_block = self.layout.block_shift - self.chain.map.shift();
            let mut blocks: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for granule in dirty.iter().map(|dirty| dirty.granule) {
                blocks.entry(granule >> per_block).or_default().push(granule);
            }
            changed.extend(blocks.keys());
            for block in &changed {
                let all = self.chain.granules_of_block(*block, self.layout.block_shift);
                let granules = match allocator.bitmap_is_stale(*block) {
                    true => all.clone().collect(),
                    false => blocks.remove(block).unwrap_or_default(),
                };
                if granules.is_empty() {
                    continue;
                }
                let entry = allocator.payload(self.store, *block)?;
                if entry.state() != State::PartiallyPresent {
                    continue;
                }
                if all.clone().all(|granule| self.chain.map.in_top(granule)) {
                    allocator.complete(*block, entry);
                    continue;
                }
                let at = allocator.bitmap(self.store, self.layout.chunk(*block))?;
                let at =
                    at.ok_or(IoError::Damaged("a block is partially present, but has no bitmap block"))?;
                for granule in granules {
                    let bit = self.layout.bit(granule << self.chain.map.shift());
                    let bits = self.bits(&self.chain.map.presence(granule)?);
                    bitmaps.patch(self.store, at + bit / 8, &bits).map_err(io_error)?;
                }
            }
        }
        let (table, batch) = allocator.begin_record(self.store, changed).map_err(io_error)?;
        Ok((bitmaps, table, batch))
    }

    /// The bitmap of a granule, of the length of a whole granule.
    fn bits(&self, presence: &Presence) -> Vec<u8> {
        let bytes = presence.iter().flat_map(|word| word.to_le_bytes());
        let bytes = bytes.take((1 << self.chain.map.shift()) / 512 / 8);
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
