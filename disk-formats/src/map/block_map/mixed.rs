//! Mixed granules: some sectors are in the top file, others in other places. Each sector has a lane of bits.
//!
//! ```text
//! one place beside the top:  first unit: 64 words of 64 lanes of one bit; the place is in the unit itself
//! up to 255 places:          first unit: links to units of lanes, and from word 8 on to units of places
//! more:                      first unit: links to units of lanes of 64 bits, each of which holds a place
//! ```
//!
//! The largest granule decides how many units a map needs for one step: with any memory budget, any range can be resolved step by step after
//! a flush.
//!
//! Readers check the unit's stamp after reading ([`Unit::is_current`]). Writers pin the unit ([`Unit::pin`]).

use super::claim::Sectors;
use super::entry::{
    Base, DIRECT, MAX_UNITS, NO_BASE, SECTOR_SHIFT, TAG, WHOLE, ZEROS, base_of, lane_mask, lane_shift,
    nonzero_lanes, splat,
};
use super::pool::{PAGE_SHIFT, Pool, Presence, UNIT, Unit, WORDS};
use super::sync::atomic::{AtomicU64, Ordering};
use crate::contract::error::IoError;
use crate::map::extent::{Extents, Place};

/// In the first unit, index of the first link to a unit of places. The links to units of lanes are before it.
pub(super) const PLACES: usize = 8;

/// A mixed granule, given by its first unit.
#[derive(Clone, Copy)]
pub(super) struct Mixed<'a> {
    pub(super) pool: &'a Pool,
    pub(super) unit: &'a Unit,
}

impl<'a> Mixed<'a> {
    /// The granule's word of lanes with this index.
    #[inline]
    fn lanes(&self, shift: u32, number: usize) -> Option<&'a AtomicU64> {
        if shift == 0 {
            return self.unit.words.get(number);
        }
        let part = self.pool.unit(self.unit.words.get(number / WORDS)?.load(Ordering::Acquire) as u32)?;
        part.words.get(number % WORDS)
    }

    /// The place that a lane's value refers to.
    #[inline]
    fn place(&self, shift: u32, value: u64) -> Option<u64> {
        match shift {
            0 => Some(self.unit.place.load(Ordering::Acquire)),
            DIRECT => Some(value),
            _ => {
                let at = value as usize - 1;
                let part = self
                    .pool
                    .unit(self.unit.words.get(PLACES + at / WORDS)?.load(Ordering::Acquire) as u32)?;
                Some(part.words.get(at % WORDS)?.load(Ordering::Acquire))
            }
        }
    }

    /// Append the extents of the granule's bytes `[within, within + part)`; `None` if a sector has no place.
    #[inline]
    pub(super) fn read(&self, within: u64, part: u64, extents: &mut Extents) -> Option<()> {
        let shift = self.unit.lanes.load(Ordering::Acquire);
        let (mut run, end) = ((within >> SECTOR_SHIFT) as usize, ((within + part) >> SECTOR_SHIFT) as usize);
        // If the unit was reused, this value is arbitrary.
        if shift > DIRECT {
            return None;
        }
        let lanes_shift = DIRECT - shift;
        let (lanes, mask) = (1usize << lanes_shift, lane_mask(shift));
        while run < end {
            let word = self.lanes(shift, run >> lanes_shift)?.load(Ordering::Acquire);
            let first = run & (lanes - 1);
            let rest = word >> (first << shift);
            let value = rest & mask;
            // Count the following lanes with the same value: the first bit that differs ends the run.
            let same = (rest ^ value.wrapping_mul(splat(shift))).trailing_zeros() as usize >> shift;
            let count = same.min(lanes - first).min(end - run);
            let sectors = run as u64;
            let at = |base: Base| Place::File {
                file: base.file,
                offset: base.offset.wrapping_add(sectors << SECTOR_SHIFT),
            };
            let place = match value {
                0 => at(Base { file: 0, offset: self.unit.top.load(Ordering::Acquire) }),
                value => match self.place(shift, value)? {
                    ZEROS => Place::Zeros,
                    word if word & TAG == WHOLE => at(base_of(word)),
                    _ => return None,
                },
            };
            extents.push((count as u64) << SECTOR_SHIFT, place);
            run += count;
        }
        Some(())
    }

    /// Write lanes and places into the first unit and `others`; `None` if `others` has the wrong length.
    pub(super) fn fill(&self, others: &[u32], lanes: usize, shift: u32, sectors: &Sectors) -> Option<()> {
        let unit = self.unit;
        unit.lanes.store(shift, Ordering::Relaxed);
        unit.top.store(sectors.top, Ordering::Relaxed);
        unit.place.store(sectors.places.first().copied().unwrap_or(0), Ordering::Relaxed);
        let not_in_top = sectors.values.iter().filter(|value| **value != 0).count();
        unit.not_in_top.store(not_in_top as u32, Ordering::Relaxed);
        unit.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for (number, other) in others.iter().enumerate() {
            let slot = if number < lanes { number } else { PLACES + number - lanes };
            unit.words.get(slot)?.store(u64::from(*other), Ordering::Relaxed);
            self.pool.unit(*other)?.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        let per_word = DIRECT - shift;
        for (sector, value) in sectors.values.iter().enumerate().filter(|(_, value)| **value != 0) {
            let value = match shift {
                DIRECT => *sectors.places.get(usize::from(*value) - 1)?,
                _ => u64::from(*value),
            };
            let word = self.lanes(shift, sector >> per_word)?;
            let at = (sector & ((1 << per_word) - 1)) << shift;
            word.store(word.load(Ordering::Relaxed) | value << at, Ordering::Relaxed);
        }
        if shift != 0 && shift != DIRECT {
            for (number, places) in sectors.places.chunks(WORDS).enumerate() {
                let part = self.pool.unit(*others.get(lanes + number)?)?;
                part.words.iter().zip(places).for_each(|(word, place)| word.store(*place, Ordering::Relaxed));
            }
        }
        Some(())
    }

    /// Move sectors to the top file. The caller has pinned the unit.
    pub(super) fn move_to_top(&self, sectors: &std::ops::Range<usize>) {
        let shift = self.unit.lanes.load(Ordering::Acquire);
        let per_word = DIRECT - shift;
        let (mut at, mut came) = (sectors.start, 0);
        while at < sectors.end {
            let first = at & ((1 << per_word) - 1);
            let count = ((1 << per_word) - first).min(sectors.end - at);
            let mask = u64::MAX >> (64 - (count << shift)) << (first << shift);
            if let Some(word) = self.lanes(shift, at >> per_word) {
                // The top file is lane value 0: clear the lane.
                came += nonzero_lanes(word.fetch_and(!mask, Ordering::AcqRel) & mask, shift);
            }
            at += count;
        }
        self.unit.not_in_top.fetch_sub(came, Ordering::AcqRel);
    }

    /// Set the bits of the sectors that are in the top file.
    ///
    /// # Errors
    /// [`IoError::Damaged`] if a unit of lanes is missing.
    pub(super) fn presence(&self, sectors: usize, bits: &mut Presence) -> Result<(), IoError> {
        let shift = self.unit.lanes.load(Ordering::Acquire);
        let per_word = DIRECT - shift;
        for first in (0..sectors).step_by(1 << per_word) {
            let word = self.lanes(shift, first >> per_word);
            let word = word.ok_or(NO_BASE)?.load(Ordering::Acquire);
            if let (0, Some(bits)) = (shift, bits.get_mut(first / 64)) {
                *bits = !word & u64::MAX >> (64 - (sectors - first).min(64));
                continue;
            }
            for lane in 0..(1usize << per_word).min(sectors - first) {
                if word >> (lane << shift) & lane_mask(shift) == 0 {
                    set_bits(bits, first + lane..first + lane + 1);
                }
            }
        }
        Ok(())
    }
}

/// Number of units of lanes and of places that a mixed granule needs in addition to its first unit.
pub(super) fn parts_of(sectors: usize, places: usize) -> [usize; 2] {
    match lane_shift(places) {
        0 => [0; 2],
        DIRECT => [sectors.div_ceil(WORDS), 0],
        shift => [(sectors << shift).div_ceil(64 * WORDS), places.div_ceil(WORDS)],
    }
}

/// Maximum number of units of a granule. A granule that can be mixed has at most 4,096 sectors.
pub(super) fn most_units(shift: u32) -> u64 {
    let sectors = 1 << (shift - SECTOR_SHIFT).min(12);
    // The lane width changes at these numbers of places.
    let counts = [1, 3, 15, 255, sectors].map(|places| parts_of(sectors, places.min(sectors)));
    1 + counts.map(|[lanes, places]| lanes + places).into_iter().max().unwrap_or(0) as u64
}

pub(super) fn set_bits(bits: &mut Presence, range: std::ops::Range<usize>) {
    for sector in range {
        if let Some(word) = bits.get_mut(sector / 64) {
            *word |= 1 << (sector % 64);
        }
    }
}

/// Default limit of a map's memory in bytes.
pub(crate) const DEFAULT_MEMORY: u64 = 64 << 20;

/// Size in bytes of the largest request that fits a map of any budget if each of its granules takes one unit.
const REQUEST: u64 = 32 << 20;
/// A step is the part of a range that is resolved at once: this many granules, and at least `LEAST_STEP` bytes.
const STEP: u64 = 4;
const LEAST_STEP: u64 = 64 << 10;
/// The map lists one evicted write for each so many units (1.8% of the memory), and at least `LEAST_WRITES`.
const UNITS_PER_WRITE: u64 = 4;
const LEAST_WRITES: u64 = 64;

/// Number of granules, and of pages of granules, of a disk of `size` bytes with granules of `1 << shift` bytes.
pub(super) fn granules_and_pages(size: u64, shift: u32) -> [u64; 2] {
    let granules = size.div_ceil(1 << shift);
    [granules, granules.div_ceil(1 << PAGE_SHIFT)]
}

/// Number of units for a budget of about `memory` bytes.
pub(super) fn unit_budget(size: u64, shift: u32, memory: u64) -> u32 {
    let [granules, pages] = granules_and_pages(size, shift);
    let each = most_units(shift);
    let most = pages + granules.saturating_mul(each);
    // Most granules of the largest request take one unit each. Two steps always fit, because two threads may each
    // resolve one at the same time.
    let request = (REQUEST >> shift) + (REQUEST >> shift >> PAGE_SHIFT) + 4;
    let part = step_of(shift) >> shift;
    let steps = 2 * (part * each + (part >> PAGE_SHIFT) + 2);
    let units = (memory.saturating_sub(pages * 8) / UNIT).max(request).max(steps).min(most);
    u32::try_from(units).unwrap_or(MAX_UNITS)
}

/// Number of units for a map that never evicts; each granule takes at most one.
pub(super) fn units_without_eviction(size: u64, shift: u32) -> u32 {
    let [granules, pages] = granules_and_pages(size, shift);
    u32::try_from(granules + pages).unwrap_or(MAX_UNITS)
}

/// Number of evicted writes that a map of `units` units lists before a flush is required.
pub(super) fn most_evicted_writes(units: u64) -> u64 {
    (units / UNITS_PER_WRITE).max(LEAST_WRITES)
}

/// Size of a step in bytes: the part of a range that is resolved at once. A map of any budget has units for it.
pub(crate) fn step_of(shift: u32) -> u64 {
    (STEP << shift).max(LEAST_STEP)
}
