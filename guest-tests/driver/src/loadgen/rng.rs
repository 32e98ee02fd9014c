//! Random numbers for offsets: a few cycles each.

/// xorshift64* (Vigna, 2016).
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Stream `stream` of `seed`.
    #[must_use]
    pub const fn new(seed: u32, stream: u32) -> Self {
        // Spread the few bits (the finaliser of splitmix64); the state must not be zero.
        let mut z = ((stream as u64) << 32 | seed as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(z ^ z >> 31 | 1)
    }

    /// 64 random bits; the high ones are the best.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_spread_over_the_range_and_streams_differ() {
        let (mut a, mut b) = (Rng::new(7, 0), Rng::new(7, 1));
        let mut seen = [0u32; 10];
        let mut same = 0;
        for _ in 0..10_000 {
            let number = a.below(10);
            seen[number as usize] += 1;
            same += u32::from(number == b.below(10));
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert!((800..1200).contains(&same), "{same}");
    }
}
