//! What is written: each word of 8 bytes says where it belongs and how old it is, mixed so that no two are alike.

/// Content of a disk as a function of the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Whose.
    pub seed: u64,
    /// How old: a range that is written again gets another one.
    pub generation: u64,
}

impl Pattern {
    /// Fill `buffer`, which begins at byte `offset` of the disk, a multiple of 8.
    pub fn fill(self, offset: u64, buffer: &mut [u8]) {
        for (at, word) in (offset..).step_by(8).zip(buffer.chunks_mut(8)) {
            let bytes = self.word(at).to_le_bytes();
            word.iter_mut().zip(bytes).for_each(|(byte, value)| *byte = value);
        }
    }

    /// Offset on the disk of the first word of `buffer` that is not as [`fill`](Self::fill) would make it.
    #[must_use]
    pub fn difference(self, offset: u64, buffer: &[u8]) -> Option<u64> {
        let words = (offset..).step_by(8).zip(buffer.chunks(8));
        words.into_iter().find(|(at, word)| !self.word(*at).to_le_bytes().starts_with(word)).map(|(at, _)| at)
    }

    /// The finalizer of SplitMix64 over offset, seed and generation.
    const fn word(self, at: u64) -> u64 {
        let word = at ^ self.seed.rotate_left(17) ^ self.generation.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_where_it_is() {
        let pattern = Pattern { seed: 7, generation: 1 };
        let mut buffer = [0; 1024];
        pattern.fill(4096, &mut buffer);
        assert_eq!(pattern.difference(4096, &buffer), None);
        assert_eq!(pattern.difference(4096 + 512, &buffer[512..]), None);
        assert_eq!(pattern.difference(0, &buffer), Some(0));
        assert_eq!(Pattern { generation: 2, ..pattern }.difference(4096, &buffer), Some(4096));
        assert_eq!(Pattern { seed: 8, ..pattern }.difference(4096, &buffer), Some(4096));
        buffer[1001] ^= 1;
        assert_eq!(pattern.difference(4096, &buffer), Some(4096 + 1000));
    }
}
