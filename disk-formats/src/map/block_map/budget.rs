//! The memory that a block map may use: how many units it has, and how many late writes it keeps.
//!
//! A step always fits, whatever the budget: a map that has been flushed can resolve any range, a step at a time.

use super::entry::MAX_UNITS;
use super::mixed::most_units;
use super::pool::{PAGE_SHIFT, UNIT};

/// Default limit of a map's memory in bytes.
pub(crate) const DEFAULT_MEMORY: u64 = 64 << 20;

/// Largest request, in bytes, that a map of any budget can hold if each of its granules takes one unit.
const REQUEST: u64 = 32 << 20;
/// A step (the part of a range that is resolved at once) has this many granules, and at least `LEAST_STEP` bytes.
const STEP: u64 = 4;
const LEAST_STEP: u64 = 64 << 10;
/// A late write is kept for each so many units, and so many in any case: 1.8% of the memory.
const UNITS_PER_LATE: u64 = 4;
const LEAST_LATE: u64 = 64;

/// Granules of a disk of `size` bytes in granules of `1 << shift` bytes, and pages of them.
pub(super) fn counts(size: u64, shift: u32) -> [u64; 2] {
    let granules = size.div_ceil(1 << shift);
    [granules, granules.div_ceil(1 << PAGE_SHIFT)]
}

/// Units of a map of about `memory` bytes at the most.
pub(super) fn units(size: u64, shift: u32, memory: u64) -> u32 {
    let [granules, pages] = counts(size, shift);
    let each = most_units(shift);
    let most = pages + granules.saturating_mul(each);
    // Granules of the largest request mostly take one unit each. A step always fits, also if two threads resolve
    // one each at the same time.
    let request = (REQUEST >> shift) + (REQUEST >> shift >> PAGE_SHIFT) + 4;
    let part = step_of(shift) >> shift;
    let steps = 2 * (part * each + (part >> PAGE_SHIFT) + 2);
    let units = (memory.saturating_sub(pages * 8) / UNIT).max(request).max(steps).min(most);
    u32::try_from(units).unwrap_or(MAX_UNITS)
}

/// Units of a map that never evicts: every granule takes one at the most.
pub(super) fn units_without_eviction(size: u64, shift: u32) -> u32 {
    let [granules, pages] = counts(size, shift);
    u32::try_from(granules + pages).unwrap_or(MAX_UNITS)
}

/// Late writes that a map of `units` units keeps before a flush is required.
pub(super) fn late(units: u64) -> u64 {
    (units / UNITS_PER_LATE).max(LEAST_LATE)
}

/// Bytes of a step: the part of a range that is resolved at once, which a map of any budget has units for.
pub(crate) fn step_of(shift: u32) -> u64 {
    (STEP << shift).max(LEAST_STEP)
}

#[cfg(test)]
mod tests {
    use super::super::mixed::parts_of;
    use super::super::{Base, BlockMap, Claim};
    use super::*;

    /// Whatever the sizes of granules and the number of places, a step of any disk fits the smallest map.
    #[test]
    fn the_smallest_map_has_units_for_a_step() {
        for shift in 9..=21 {
            let sectors = 1usize << (shift - 9);
            let most = (1..=sectors).map(|places| parts_of(sectors, places).iter().sum::<usize>()).max();
            assert!(most_units(shift) > most.unwrap_or(0) as u64, "{shift}");
            let map = BlockMap::new(1 << 40, shift, 0);
            let granules = step_of(shift) >> shift;
            for granule in 0..granules {
                let mut claim = Claim::new(sectors);
                claim.set_top(1 << 30);
                for sector in 0..sectors {
                    claim.claim_run(Base { file: 1, offset: (sector as u64) << 30 }, sector, sector + 1);
                }
                assert_eq!(map.set(granule, &claim, true), Ok(Ok(())), "{shift}");
            }
            assert!((0..granules).all(|granule| map.known(granule)), "{shift}");
        }
    }
}
