//! The memory budget of a block map: the number of units, and the number of late writes that it lists.
//!
//! With any budget, a map has units for one step: after a flush, any range can be resolved step by step.

use super::entry::MAX_UNITS;
use super::mixed::most_units;
use super::pool::{PAGE_SHIFT, UNIT};

/// Default limit of a map's memory in bytes.
pub(crate) const DEFAULT_MEMORY: u64 = 64 << 20;

/// Size in bytes of the largest request that fits a map of any budget if each of its granules takes one unit.
const REQUEST: u64 = 32 << 20;
/// A step is the part of a range that is resolved at once: this many granules, and at least `LEAST_STEP` bytes.
const STEP: u64 = 4;
const LEAST_STEP: u64 = 64 << 10;
/// The map lists one late write for each so many units (1.8% of the memory), and at least `LEAST_LATE`.
const UNITS_PER_LATE: u64 = 4;
const LEAST_LATE: u64 = 64;

/// Number of granules, and of pages of granules, of a disk of `size` bytes with granules of `1 << shift` bytes.
pub(super) fn counts(size: u64, shift: u32) -> [u64; 2] {
    let granules = size.div_ceil(1 << shift);
    [granules, granules.div_ceil(1 << PAGE_SHIFT)]
}

/// Number of units for a budget of about `memory` bytes.
pub(super) fn units(size: u64, shift: u32, memory: u64) -> u32 {
    let [granules, pages] = counts(size, shift);
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
    let [granules, pages] = counts(size, shift);
    u32::try_from(granules + pages).unwrap_or(MAX_UNITS)
}

/// Number of late writes that a map of `units` units lists before a flush is required.
pub(super) fn late(units: u64) -> u64 {
    (units / UNITS_PER_LATE).max(LEAST_LATE)
}

/// Size of a step in bytes: the part of a range that is resolved at once. A map of any budget has units for it.
pub(crate) fn step_of(shift: u32) -> u64 {
    (STEP << shift).max(LEAST_STEP)
}

#[cfg(test)]
mod tests {
    use super::super::mixed::parts_of;
    use super::super::{Base, BlockMap, Claim};
    use super::*;

    /// For each granule size and each number of places, a step fits the smallest map.
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
