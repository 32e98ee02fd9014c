//! Random numbers of the load: the generator that the guest's load generator uses, so that both pay the same.

/// xorshift64* (Vigna, 2016).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Stream `stream` of `seed`.
    pub(crate) const fn new(seed: u32, stream: u32) -> Self {
        // Spread the few bits (the finaliser of splitmix64); the state must not be zero.
        let mut z = (((stream as u64) << 32) | seed as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(z ^ (z >> 31) | 1)
    }

    /// 64 random bits; the high ones are the best.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }
}
