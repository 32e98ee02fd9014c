//! Where the accesses of a job begin: the same for a guest and for the host's row without one.

use crate::workload::{SKEW_CLASSES, Shape, Workload};

use super::rng::Rng;

/// All of 2^32.
const ALL: u64 = 1 << 32;
/// Scatters ranks over the span: a prime, so that no two ranks share a position unless their number is a multiple of it.
const SCATTER: u64 = 2_654_435_761;

/// The positions of a span, and how the next one is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    start: u64,
    /// Bytes from one position to the next.
    unit: u64,
    positions: u64,
    /// Positions from an access to the one that follows it sequentially.
    advance: u64,
    /// Random accesses in 2^32.
    random_share: u64,
    skew: Option<[u32; SKEW_CLASSES]>,
}

impl Offsets {
    /// Of a job over `span` bytes from its start; `None` where not one access fits. The job's sizes are not zero.
    #[must_use]
    pub fn new(workload: &Workload, span: u64) -> Option<Self> {
        let block = u64::from(workload.block_size);
        let Shape { align, skew, .. } = workload.shape;
        let unit = if align == 0 { block } else { align.into() };
        let positions = span.checked_sub(block)? / unit + 1;
        Some(Self {
            start: workload.start,
            unit,
            positions,
            advance: block.div_ceil(unit),
            random_share: (u64::from(workload.random_percent.min(100)) << 32) / 100,
            skew: skew.iter().any(|share| *share != 0).then_some(skew),
        })
    }

    /// The same, all of them random.
    #[must_use]
    pub(super) const fn random(self) -> Self {
        Self { random_share: ALL, ..self }
    }

    /// Positions, at least one.
    #[must_use]
    pub const fn positions(&self) -> u64 {
        self.positions
    }

    /// First byte of a position, on the disk.
    #[inline]
    #[must_use]
    pub const fn byte(&self, position: u64) -> u64 {
        self.start + position * self.unit
    }

    /// The position of a stream's next access; `cursor` is the one that follows its last access.
    #[inline]
    pub fn next(&self, rng: &mut Rng, cursor: &mut u64) -> u64 {
        let position = match self.random_share {
            ALL => return self.random_position(rng),
            0 => *cursor,
            share if rng.next() >> 32 < share => self.random_position(rng),
            _ => *cursor,
        };
        let next = position + self.advance;
        *cursor = if next < self.positions { next } else { 0 };
        position
    }

    #[inline]
    fn random_position(&self, rng: &mut Rng) -> u64 {
        match &self.skew {
            None => rng.below(self.positions),
            Some(skew) => self.popular(skew, rng),
        }
    }

    /// A position by its popularity.
    fn popular(&self, skew: &[u32; SKEW_CLASSES], rng: &mut Rng) -> u64 {
        let drawn = rng.next() >> 32;
        let class = skew.iter().position(|share| drawn < u64::from(*share));
        let (low, high) = match class {
            None => (0, self.positions),
            Some(0) => (0, 2),
            Some(class) => (1 << class, 2 << class),
        };
        let high = self.positions.min(high);
        let low = if low < high { low } else { 0 };
        let rank = low + rng.below(high - low);
        // A rank of a class is below 2^32: the product does not overflow. Others are spread evenly either way.
        rank.wrapping_mul(SCATTER) % self.positions
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::workload::Mode;

    const JOB: Workload = Workload {
        mode: Mode::Measure,
        target: 0,
        random_percent: 0,
        read_percent: 100,
        block_size: 4096,
        queue_depth: 1,
        workers: 1,
        seed: 1,
        generation: 0,
        start: 8192,
        span: 0,
        ticks: 0,
        ios: 1,
        shape: Shape::PLAIN,
    };

    fn bytes(job: &Workload, span: u64, count: usize) -> Vec<u64> {
        let offsets = Offsets::new(job, span).unwrap();
        let (mut rng, mut cursor) = (Rng::new(7, 0), 0);
        (0..count).map(|_| offsets.byte(offsets.next(&mut rng, &mut cursor))).collect()
    }

    #[test]
    fn sequential_accesses_follow_each_other_and_wrap() {
        assert_eq!(bytes(&JOB, 12288 + 100, 5), [8192, 12288, 16384, 8192, 12288]);
        let shape = Shape { align: 512, ..Shape::PLAIN };
        assert_eq!(bytes(&Workload { shape, ..JOB }, 12288, 4), [8192, 12288, 16384, 8192]);
        let shape = Shape { align: 16384, ..Shape::PLAIN };
        assert_eq!(bytes(&Workload { shape, ..JOB }, 40000, 4), [8192, 24576, 40960, 8192]);
        assert!(Offsets::new(&JOB, 4095).is_none());
    }

    #[test]
    fn a_share_of_the_accesses_is_random_and_the_others_follow_the_last_one() {
        for percent in [0, 20, 75, 100] {
            let job = Workload { random_percent: percent, ..JOB };
            let all = bytes(&job, 4096 << 20, 20_000);
            let jumps = all.windows(2).filter(|pair| pair[1] != pair[0] + 4096).count();
            assert!(jumps.abs_diff(percent as usize * 200) < 250, "{percent}: {jumps}");
        }
    }

    #[test]
    fn aligned_accesses_stay_inside_the_span() {
        let shape = Shape { align: 512, ..Shape::PLAIN };
        let job = Workload { random_percent: 100, shape, ..JOB };
        let all = bytes(&job, 8192, 5000);
        assert!(all.iter().all(|at| (8192..=8192 + 4096).contains(at) && at % 512 == 0));
        for at in (8192..=8192 + 4096).step_by(512) {
            assert!(all.contains(&at), "{at}");
        }
    }

    #[test]
    fn ranks_are_as_popular_as_the_shares_say() {
        // A quarter to ranks 0 and 1, a half to 2 and 3, the others to 4 to 7.
        let mut skew = [u32::MAX; SKEW_CLASSES];
        (skew[0], skew[1]) = (1 << 30, 3 << 30);
        let job = Workload { random_percent: 100, shape: Shape { skew, ..Shape::PLAIN }, ..JOB };
        let mut seen = [0u32; 8];
        for at in bytes(&job, 8 * 4096, 32_000) {
            seen[((at - 8192) / 4096) as usize] += 1;
        }
        let of = |rank: u64| seen[(rank * SCATTER % 8) as usize];
        for (rank, wanted) in [4000, 4000, 8000, 8000, 2000, 2000, 2000, 2000].into_iter().enumerate() {
            assert!(of(rank as u64).abs_diff(wanted) < 400, "{rank}: {seen:?}");
        }
        // Classes beyond a small span.
        skew[0] = 0;
        let job = Workload { random_percent: 100, shape: Shape { skew, ..Shape::PLAIN }, ..JOB };
        assert!(bytes(&job, 4096, 100).iter().all(|at| *at == 8192));
    }
}
