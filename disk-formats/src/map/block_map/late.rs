//! Late writes: those that completed after their granule was evicted.

use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum number of bytes that the set needs for a range: an entry has 16, and the nodes of a B-tree are at least half
/// full.
pub(super) const ENTRY: u64 = 40;

/// Ranges of sectors that are in the top file although the images do not record it yet.
#[derive(Default)]
pub(super) struct Late {
    /// Granule, first sector, end (exclusive).
    ranges: BTreeSet<(u64, u32, u32)>,
    peak: usize,
}

impl Late {
    pub(super) fn push(&mut self, granule: u64, sectors: &Range<usize>) {
        self.ranges.insert((granule, sectors.start as u32, sectors.end as u32));
        self.peak = self.peak.max(self.ranges.len());
    }

    /// The ranges of a granule.
    pub(super) fn of(&self, granule: u64) -> impl Iterator<Item = Range<usize>> + '_ {
        let ranges = self.ranges.range((granule, 0, 0)..=(granule, u32::MAX, u32::MAX));
        ranges.map(|(_, start, end)| *start as usize..*end as usize)
    }

    pub(super) fn remove(&mut self, granule: u64) {
        while let Some(range) = self.ranges.range((granule, 0, 0)..=(granule, u32::MAX, u32::MAX)).next() {
            let range = *range;
            self.ranges.remove(&range);
        }
    }

    /// In ascending order.
    pub(super) fn granules(&self) -> Vec<u64> {
        let mut granules: Vec<u64> = self.ranges.iter().map(|(granule, ..)| *granule).collect();
        granules.dedup();
        granules
    }

    /// Number of ranges now, and its maximum so far.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.ranges.len(), self.peak].map(|count| count as u64)
    }
}
