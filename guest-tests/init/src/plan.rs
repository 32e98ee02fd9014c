//! Which ranges of a disk are written, zeroed and discarded; the guest does it, the test around it computes what the disk
//! must hold then.

use crate::pattern::Pattern;
use crate::report::Extent;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Longest range of one access: the size of the guest's buffer.
pub const LONGEST: u64 = 256 * KIB;

/// What happens to one disk, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of what is written.
    pub seed: u64,
    /// Writes past the page cache: the first and last sectors, single ones, some across the boundaries at which formats
    /// allocate or a request is split, and a few anywhere.
    pub direct: Vec<Extent>,
    /// Some of them again.
    pub again: Vec<Extent>,
    /// Writes through the page cache: every second page of a range, so that many requests are on their way when they
    /// are flushed.
    pub buffered: Vec<Extent>,
    /// What is made zero, inside of what was written.
    pub zeroed: Vec<Extent>,
    /// What is discarded, where the disk can: a whole mebibyte, with the largest formats' smallest unit inside.
    pub discarded: Vec<Extent>,
}

impl Plan {
    /// Generation of [`direct`](Self::direct).
    pub const DIRECT: u64 = 1;
    /// Generation of [`again`](Self::again).
    pub const AGAIN: u64 = 2;
    /// Generation of [`buffered`](Self::buffered).
    pub const BUFFERED: u64 = 3;

    /// The plan for a disk of `size` bytes with logical sectors of `sector` bytes.
    #[must_use]
    pub fn new(seed: u64, size: u64, sector: u64) -> Self {
        let fixed = [
            (0, sector),
            (sector, 3 * sector),
            (64 * KIB - sector, 2 * sector),
            (MIB - sector, 2 * sector),
            (2 * MIB - 4 * KIB, 8 * KIB),
            (1280 * KIB, LONGEST),
            (1536 * KIB + sector, 64 * KIB),
            (size / 2 / sector * sector, 68 * KIB),
            (size.saturating_sub(sector), sector),
        ];
        let mut random = seed ^ size;
        let anywhere = std::iter::repeat_with(|| next(&mut random))
            .take(8)
            .map(|number| ((number >> 8) % (size / sector).max(1) * sector, (1 + number % 64) * sector));
        let clip = |(offset, len): (u64, u64)| Extent { offset, len: len.min(size.saturating_sub(offset)) };
        let direct: Vec<_> = fixed.into_iter().chain(anywhere).map(clip).filter(|it| it.len > 0).collect();
        let again = direct.iter().step_by(3).copied().collect();
        let pages = (2 * MIB..2 * MIB + 128 * KIB).step_by(8 * KIB as usize).map(|page| (page, 4 * KIB));
        let zeroed = [(1344 * KIB, 64 * KIB), (2 * MIB + 4 * KIB, 4 * KIB), (2 * MIB, 4 * KIB)];
        let discarded = [(size / 2 / MIB * MIB, MIB)];
        let [buffered, zeroed, discarded] =
            [pages.collect(), zeroed.to_vec(), discarded.to_vec()].map(|ranges: Vec<_>| {
                let extents = ranges.into_iter().map(|(offset, len)| Extent { offset, len });
                extents.filter(|it| it.offset + it.len <= size).collect()
            });
        Self { seed, direct, again, buffered, zeroed, discarded }
    }

    /// What is written in a generation.
    #[must_use]
    pub const fn pattern(&self, generation: u64) -> Pattern {
        Pattern { seed: self.seed, generation }
    }

    /// Do to a copy of the disk's content what the guest does to the disk, up to the discards.
    pub fn apply(&self, content: &mut [u8]) {
        let generations =
            [(Self::DIRECT, &self.direct), (Self::AGAIN, &self.again), (Self::BUFFERED, &self.buffered)];
        for (generation, extents) in generations {
            for extent in extents {
                self.pattern(generation).fill(extent.offset, extent.part(content));
            }
        }
        self.zeroed.iter().for_each(|extent| extent.part(content).fill(0));
    }
}

/// SplitMix64.
pub const fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_on_the_disk_and_on_its_sectors() {
        for (size, sector) in [(4096, 512), (3 * MIB, 512), (16 * MIB + 512, 512), (64 * MIB, 4096)] {
            let plan = Plan::new(1, size, sector);
            assert!(plan.direct.iter().any(|extent| extent.offset + extent.len == size));
            assert!(plan.direct.iter().chain(&plan.buffered).all(|extent| extent.len <= LONGEST));
            for extent in [plan.direct, plan.buffered, plan.zeroed, plan.discarded].concat() {
                assert!(extent.len > 0 && extent.offset + extent.len <= size, "{extent:?} of {size}");
                assert!(extent.offset % sector == 0 && extent.len % sector == 0, "{extent:?} of {size}");
            }
        }
    }

    #[test]
    fn later_writes_lie_over_earlier_ones() {
        let plan = Plan::new(1, 64 * MIB, 512);
        let mut content = vec![0xff; 64 << 20];
        plan.apply(&mut content);
        assert_eq!(plan.pattern(Plan::AGAIN).difference(0, &content[..512]), None);
        assert_eq!(plan.pattern(Plan::DIRECT).difference(512, &content[512..2048]), None);
        let buffered = &content[2 << 20..3 << 20];
        assert_eq!(buffered[..8192], [0; 8192]);
        assert_eq!(plan.pattern(Plan::BUFFERED).difference(2 * MIB + 8192, &buffered[8192..][..4096]), None);
        assert_eq!(buffered[160 << 10..168 << 10], [0xff; 8192]);
    }
}
