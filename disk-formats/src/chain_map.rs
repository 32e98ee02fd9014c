//! A chain of images behind one flat map: how the map is filled, whatever the format.

use crate::block_map::{BlockMap, Claim};
use crate::{Extents, IoError, Mapping};

/// Granules that are resolved together, so that a long chain is walked once for all of them.
const GROUP: u64 = 64;

/// One image of a chain, as the chain reads it.
pub(crate) trait Layer: Send + Sync {
    /// What its table says of a run of blocks.
    type Entries;

    /// The table's part for `len` bytes at `offset` of the disk.
    ///
    /// # Errors
    /// The host's.
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
    pub(crate) fn new(capacity: u64, shift: u32, layers: Vec<L>) -> Self {
        Self { map: BlockMap::new(capacity, shift), layers, capacity }
    }

    /// The same; its map keeps `granules` of those that are in one place, and looks others up again.
    pub(crate) fn forgetful(mut self, granules: u64) -> Self {
        self.map = self.map.forgetful(granules);
        self
    }

    /// Granules of a range.
    pub(crate) fn granules(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        offset >> self.map.shift()..(offset + len).div_ceil(1 << self.map.shift())
    }

    /// Make the range known, one caller at a time. Groups of granules are walked through the chain together. `top` gives the
    /// entries of the image that is being written, as they are in memory.
    ///
    /// # Errors
    /// As [`Layer::claim`].
    pub(crate) fn resolve(
        &self,
        top: impl Fn(u64, u64) -> Result<L::Entries, IoError>,
        offset: u64,
        len: u64,
    ) -> Result<(), IoError> {
        let last = self.capacity.div_ceil(1 << self.map.shift());
        let wanted = self.granules(offset, len);
        let mut group = wanted.start / GROUP * GROUP;
        while group < wanted.end {
            let (start, end) = (group, (group + GROUP).min(last));
            group += GROUP;
            if (start.max(wanted.start)..end.min(wanted.end)).all(|granule| self.map.known(granule)) {
                continue;
            }
            if self.resolve_group(&top, start, end).is_err() {
                // What is wrong may be beside what is wanted.
                for granule in start.max(wanted.start)..end.min(wanted.end) {
                    self.resolve_group(&top, granule, granule + 1)?;
                }
            }
        }
        Ok(())
    }

    fn resolve_group(
        &self,
        top: &impl Fn(u64, u64) -> Result<L::Entries, IoError>,
        start: u64,
        end: u64,
    ) -> Result<(), IoError> {
        let shift = self.map.shift();
        let mut open: Vec<(u64, Claim)> = (start..end)
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
            open.retain_mut(|(granule, claim)| {
                let done = claim.complete();
                if done {
                    self.map.set(*granule, std::mem::replace(claim, Claim::new(0)));
                }
                !done
            });
        }
        for (granule, claim) in open {
            self.map.set(granule, claim);
        }
        Ok(())
    }

    /// Where a range is, on the slow path; `prepare` makes it known.
    ///
    /// # Errors
    /// Those of `prepare`.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        len: u64,
        prepare: impl FnOnce() -> Result<(), IoError>,
    ) -> Result<Extents, IoError> {
        let mut extents = Extents::new();
        if self.map.map_read(offset, len, &mut extents) == Mapping::Blocked {
            prepare()?;
            extents.clear();
            if self.map.map_read(offset, len, &mut extents) == Mapping::Blocked {
                return Err(UNMAPPED);
            }
        }
        Ok(extents)
    }

    /// Where a range is written, on the slow path, after it was prepared.
    ///
    /// # Errors
    /// [`IoError::Damaged`] where it has no place.
    pub(crate) fn places(&self, offset: u64, len: u64) -> Result<Extents, IoError> {
        let mut extents = Extents::new();
        match self.map.map_write(offset, len, &mut extents) {
            Mapping::Ready => Ok(extents),
            Mapping::Blocked => Err(UNMAPPED),
        }
    }
}

const UNMAPPED: IoError = IoError::Damaged("the range cannot be mapped");
