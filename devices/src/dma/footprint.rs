//! Which regions of guest memory a request uses.

use std::ops::{BitOr, BitOrAssign, Range};

use super::window::{NO_WINDOW, Window, overlap};

/// A set of regions: one bit for each of up to 63 regions, and one bit for all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint(u64);

impl Footprint {
    /// No region.
    pub(crate) const NONE: Self = Self(0);
    /// Regions without a bit of their own.
    pub(crate) const OTHER: Self = Self(1 << 63);

    /// Whether the sets have a region in common.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Footprint {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Footprint {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Regions that have a bit of their own.
const REGIONS: usize = 63;

/// The regions that requests in flight may use, by bit.
pub(super) struct Regions([Window; REGIONS]);

impl Default for Regions {
    fn default() -> Self {
        Self([NO_WINDOW; REGIONS])
    }
}

impl Regions {
    /// The bit of a region. A region without a bit gets a free one, if there is one.
    pub(super) fn mark(&mut self, region: Window) -> Footprint {
        let place = self.0.iter().position(|known| *known == region);
        let place = place.or_else(|| self.0.iter().position(|known| known.len == 0));
        match place.and_then(|index| Some((index, self.0.get_mut(index)?))) {
            Some((index, known)) => {
                *known = region;
                Footprint(1 << index)
            }
            None => Footprint::OTHER,
        }
    }

    /// The regions that overlap these ranges, and [`OTHER`](Footprint::OTHER).
    pub(super) fn inside(&self, ranges: &[Range<u64>]) -> Footprint {
        self.of(|known| ranges.iter().any(|range| overlap(range, known.start, known.len)))
    }

    /// The regions that are not kept, and [`OTHER`](Footprint::OTHER).
    pub(super) fn without(&self, kept: impl Fn(&Window) -> bool) -> Footprint {
        self.of(|known| !kept(known))
    }

    /// Free the bits of these regions.
    pub(super) fn forget(&mut self, lost: Footprint) {
        for (index, known) in self.0.iter_mut().enumerate() {
            if lost.meets(Footprint(1 << index)) {
                *known = NO_WINDOW;
            }
        }
    }

    fn of(&self, wanted: impl Fn(&Window) -> bool) -> Footprint {
        let known = self.0.iter().enumerate().filter(|(_, known)| known.len > 0);
        known
            .filter(|(_, known)| wanted(known))
            .fold(Footprint::OTHER, |all, (index, _)| all | Footprint(1 << index))
    }
}
