//! The block map of a chain of images, and how any format fills it.

use crate::contract::error::IoError;
use crate::map::block_map::{BlockMap, Claim, Refused, step_of};

/// Number of granules that are resolved together, so that the chain is walked once for all of them.
const GROUP: u64 = 64;
/// Maximum number of flushes to free units for the same granules. Then the request fails.
const TRIES: usize = 64;

/// One image of a chain, as the chain reads it.
pub(crate) trait Layer: Send + Sync {
    /// A part of the image's block table.
    type Entries;

    /// Whether resolving a granule of `1 << shift` bytes takes many reads of this image, because its blocks are small.
    fn is_costly(&self, _shift: u32) -> bool {
        false
    }

    /// The entries of the block table for `len` bytes at `offset` of the disk.
    fn entries(&self, offset: u64, len: u64) -> Result<Self::Entries, IoError>;

    /// Claim the sectors that this image has of the granule of `len` bytes at `offset`. `file` is the index of the
    /// image in the chain.
    ///
    /// # Errors
    /// [`IoError::Damaged`] for invalid entries; the host's error.
    fn claim(
        &self,
        file: u32,
        entries: &Self::Entries,
        offset: u64,
        len: u64,
        claim: &mut Claim,
    ) -> Result<(), IoError>;
}

/// A block map, and the images that fill it.
pub(crate) struct ChainMap<L> {
    pub(crate) map: BlockMap,
    /// The images from the top down, in the order of the disk's files.
    pub(crate) layers: Vec<L>,
    capacity: u64,
}

impl<L: Layer> ChainMap<L> {
    /// The map of a disk of `capacity` bytes in granules of `1 << shift` bytes, all unknown. `memory` is its budget in
    /// bytes (approximate).
    pub(crate) fn new(capacity: u64, shift: u32, layers: Vec<L>, memory: u64) -> Self {
        Self { map: BlockMap::new(capacity, shift, memory), layers, capacity }
    }

    /// The granules that a range touches.
    pub(crate) fn granules(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset >> self.map.shift()..(offset + len).div_ceil(1 << self.map.shift())
    }

    /// The granules of a block of `1 << block_shift` bytes that are inside the disk.
    pub(crate) fn granules_of_block(&self, block: u64, block_shift: u32) -> std::ops::Range<u64> {
        let start = block << block_shift;
        self.granules(start, (1 << block_shift).min(self.capacity - start))
    }

    /// Resolve the range. The caller ensures that only one thread does so at a time. While the map has free units and no
    /// layer is costly, neighboring granules are resolved together. `top` returns the entries of the top image, which may be newer in
    /// memory than in the file. Returns `false` if the map is full, so that a flush must record dirty granules first.
    pub(crate) fn resolve(
        &self,
        top: impl Fn(u64, u64) -> Result<L::Entries, IoError>,
        offset: u64,
        len: u64,
    ) -> Result<bool, IoError> {
        let last = self.capacity.div_ceil(1 << self.map.shift());
        let wanted = self.granules(offset, len);
        let mut group = wanted.start / GROUP * GROUP;
        while group < wanted.end {
            let (start, end) = (group, (group + GROUP).min(last));
            group += GROUP;
            let (first, behind) = (start.max(wanted.start), end.min(wanted.end));
            if (first..behind).all(|granule| self.map.known(granule)) {
                continue;
            }
            let ahead =
                self.map.has_free() && !self.layers.iter().any(|layer| layer.is_costly(self.map.shift()));
            let around = if ahead { start..end } else { first..behind };
            if self.resolve_group(&top, around, &wanted).is_err() {
                // The error may be in a granule outside of the requested range.
                for granule in first..behind {
                    self.resolve_group(&top, granule..granule + 1, &wanted)?;
                }
            }
        }
        Ok(wanted.into_iter().all(|granule| self.map.known(granule)))
    }

    fn resolve_group(
        &self,
        top: &impl Fn(u64, u64) -> Result<L::Entries, IoError>,
        group: std::ops::Range<u64>,
        wanted: &std::ops::Range<u64>,
    ) -> Result<(), IoError> {
        let shift = self.map.shift();
        let enter = |granule, claim: &Claim| match self.map.set(granule, claim, wanted.contains(&granule)) {
            // `resolve` reports a full map at its end.
            Ok(()) | Err(Refused::Full) => Ok(()),
            Err(Refused::Damaged(error)) => Err(error),
        };
        let mut open: Vec<(u64, Claim)> = group
            .filter(|granule| !self.map.known(*granule))
            .map(|granule| (granule, Claim::new(self.map.sectors(granule))))
            .collect();
        for (file, layer) in self.layers.iter().enumerate() {
            let (Some((first, _)), Some((last, _))) = (open.first(), open.last()) else { break };
            let (from, to) = (first << shift, (last + 1) << shift);
            let entries = match file {
                0 => top(from, to - from)?,
                _ => layer.entries(from, to - from)?,
            };
            for (granule, claim) in &mut open {
                layer.claim(file as u32, &entries, *granule << shift, 1 << shift, claim)?;
            }
            for (granule, claim) in open.extract_if(.., |(_, claim)| claim.complete()) {
                enter(granule, &claim)?;
            }
        }
        open.iter().try_for_each(|(granule, claim)| enter(*granule, claim))
    }

    /// Resolve a range. `prepare` resolves a part of it, and returns whether the part is known now; if not, the map is full of dirty
    /// granules, which `flush` makes clean. If the map has too few units for the range as a whole, the range is resolved step by step. The
    /// first steps may then be unknown again at the end.
    ///
    /// # Errors
    /// Errors of `prepare` and `flush`; [`IoError::Damaged`] if the map stays full.
    pub(crate) fn prepare(
        &self,
        (offset, len): (u64, u64),
        prepare: impl Fn(u64, u64) -> Result<bool, IoError>,
        flush: impl Fn() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        if self.map.evicted_writes_are_full() {
            flush()?;
        }
        if prepare(offset, len)? {
            return Ok(());
        }
        flush()?;
        if prepare(offset, len)? {
            return Ok(());
        }
        for (offset, len) in self.steps(offset, len) {
            let mut tries = 0..TRIES;
            while !prepare(offset, len)? {
                tries.next().ok_or(FULL)?;
                flush()?;
            }
        }
        Ok(())
    }

    /// The map's part of a flush. `record` records everything that is dirty when it is called. `resolve` makes a
    /// granule with evicted writes known, and thereby dirty, so that `record` includes it.
    ///
    /// # Errors
    /// Errors of both; [`IoError::Damaged`] if the map stays full.
    pub(crate) fn record(
        &self,
        resolve: impl Fn(u64) -> Result<(), IoError>,
        mut record: impl FnMut() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let mut unresolved = self.map.evicted_writes();
        for _ in 0..TRIES {
            unresolved.iter().try_for_each(|granule| resolve(*granule))?;
            // Some granules may not find a free unit before `record` has made others clean.
            let listed = self.map.evicted_writes();
            unresolved.retain(|granule| listed.binary_search(granule).is_ok());
            record()?;
            if unresolved.is_empty() {
                return Ok(());
            }
        }
        Err(FULL)
    }

    /// Split a range at step boundaries. A map of any budget has units for one step.
    pub(crate) fn steps(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<L> {
        let step = step_of(self.map.shift());
        let end = offset + len;
        std::iter::successors(Some(offset), move |at| Some((at / step + 1) * step))
            .take_while(move |at| *at < end)
            .map(move |at| (at, ((at / step + 1) * step).min(end) - at))
    }
}

const FULL: IoError = IoError::Damaged("the map is full of changes that cannot be recorded");

#[cfg(all(test, feature = "vhd"))]
mod read_ahead_tests;
#[cfg(test)]
pub(crate) mod testing;
