//! A chain of images behind one block map: how the map is filled, for any format.

use crate::error::IoError;
use crate::formats::format::Mapping;
use crate::map::block_map::{BlockMap, Claim, step_of};
use crate::map::extent::Extents;

/// Granules that are resolved together, so that a long chain is walked once for all.
const GROUP: u64 = 64;
/// Times that a flush makes space in a full map for the same granules before they fail.
const TRIES: usize = 64;

/// One image of a chain, as the chain reads it.
pub(crate) trait Layer: Send + Sync {
    /// The part of its table for a run of blocks.
    type Entries;

    /// Whether a granule of `1 << shift` bytes takes many reads of this image: its blocks are small.
    fn is_costly(&self, _shift: u32) -> bool {
        false
    }

    /// The table's part for `len` bytes at `offset` of the disk.
    fn entries(&self, offset: u64, len: u64) -> Result<Self::Entries, IoError>;

    /// Claim what this image has of the granule of `len` bytes at `offset`; `file` is its index in the chain.
    ///
    /// # Errors
    /// [`IoError::Damaged`] for entries that cannot be; the host's error.
    fn claim(
        &self,
        file: u32,
        entries: &Self::Entries,
        offset: u64,
        len: u64,
        claim: &mut Claim,
    ) -> Result<(), IoError>;
}

/// The map and what fills it.
pub(crate) struct ChainMap<L> {
    pub(crate) map: BlockMap,
    /// From the top down, in the order of the disk's files.
    pub(crate) layers: Vec<L>,
    capacity: u64,
}

impl<L: Layer> ChainMap<L> {
    /// A disk of `capacity` bytes, mapped in granules of `1 << shift` bytes, all unknown.
    /// The map takes about `memory` bytes at the most.
    pub(crate) fn new(capacity: u64, shift: u32, layers: Vec<L>, memory: u64) -> Self {
        Self { map: BlockMap::new(capacity, shift, memory), layers, capacity }
    }

    /// Granules of a range.
    pub(crate) fn granules(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset >> self.map.shift()..(offset + len).div_ceil(1 << self.map.shift())
    }

    /// Granules of a block of `1 << block_shift` bytes, without those behind the disk's end.
    pub(crate) fn granules_of_block(&self, block: u64, block_shift: u32) -> std::ops::Range<u64> {
        let start = block << block_shift;
        self.granules(start, (1 << block_shift).min(self.capacity - start))
    }

    /// Resolve the range, one caller at a time. Groups of granules are walked through the chain together, as long as
    /// the map has free units. `top` gives the entries of the image that is being written, as they are in memory.
    /// `false` where the map is full and a flush has to record dirty granules first.
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
                // The error may be in a granule beside the requested range.
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
        // A full map is reported at the end.
        let enter = |granule, claim: &Claim| {
            self.map.set(granule, claim, wanted.contains(&granule)).map(|_full_or_not| ())
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

    /// Resolve a range: run `prepare` until it returns that all of it is known, with a flush whenever the map is full
    /// of dirty granules. Where the map has not enough units for all of the range, this is done step by step, and the
    /// first steps may be unknown again at the end.
    ///
    /// # Errors
    /// Those of `prepare` and `flush`; [`IoError::Damaged`] where the map is full again and again.
    pub(crate) fn prepare(
        &self,
        (offset, len): (u64, u64),
        prepare: impl Fn(u64, u64) -> Result<bool, IoError>,
        flush: impl Fn() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        if self.map.late_is_full() {
            flush()?;
        }
        for _ in 0..2 {
            if prepare(offset, len)? {
                return Ok(());
            }
            flush()?;
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

    /// A flush: `record` records everything that is dirty when it is called. Writes that have arrived after their granule was
    /// evicted are made dirty by `resolve`, which makes a granule known, and recorded, too.
    ///
    /// # Errors
    /// Those of both; [`IoError::Damaged`] where the map is full again and again.
    pub(crate) fn record(
        &self,
        resolve: impl Fn(u64) -> Result<(), IoError>,
        mut record: impl FnMut() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let mut late = self.map.late();
        for _ in 0..TRIES {
            late.iter().try_for_each(|granule| resolve(*granule))?;
            // There may be no unit for some, before others are clean.
            let open = self.map.late();
            late.retain(|granule| open.binary_search(granule).is_ok());
            record()?;
            if late.is_empty() {
                return Ok(());
            }
        }
        Err(FULL)
    }

    /// The parts of a range, each small enough for any map.
    pub(crate) fn steps(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<L> {
        let step = step_of(self.map.shift());
        let end = offset + len;
        std::iter::successors(Some(offset), move |at| Some((at / step + 1) * step))
            .take_while(move |at| *at < end)
            .map(move |at| (at, ((at / step + 1) * step).min(end) - at))
    }

    /// Where a part of the disk is, no longer than a step, on the slow path; `prepare` makes it known.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        len: u64,
        prepare: impl Fn() -> Result<(), IoError>,
    ) -> Result<Extents, IoError> {
        let mut extents = Extents::new();
        for _ in 0..TRIES {
            extents.clear();
            if self.map.map_read(offset, len, &mut extents)? == Mapping::Ready {
                return Ok(extents);
            }
            prepare()?;
        }
        Err(UNMAPPED)
    }

    /// Where a part of the disk is written, no longer than a step, on the slow path; `prepare` gives it blocks.
    ///
    /// # Errors
    /// Those of `prepare`; [`IoError::Damaged`] where it has no place.
    pub(crate) fn places(
        &self,
        offset: u64,
        len: u64,
        prepare: impl Fn() -> Result<(), IoError>,
    ) -> Result<Extents, IoError> {
        let mut extents = Extents::new();
        for _ in 0..TRIES {
            // At first, too: it may have more to do than to find places.
            prepare()?;
            extents.clear();
            if self.map.map_write(offset, len, &mut extents) == Mapping::Ready {
                return Ok(extents);
            }
        }
        Err(UNMAPPED)
    }
}

const UNMAPPED: IoError = IoError::Damaged("the range cannot be mapped");
const FULL: IoError = IoError::Damaged("the map is full of changes that cannot be recorded");

#[cfg(all(test, feature = "vhd"))]
mod read_ahead_tests;
#[cfg(test)]
pub(crate) mod testing;
