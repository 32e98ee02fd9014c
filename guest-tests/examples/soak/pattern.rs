//! What a disk must hold, block by block.

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// Bytes that hold one write, old or new, if a server or host ended in between.
pub(crate) const SECTOR: usize = 512;

/// Content of a block: written in this generation; 0: zeros.
pub(crate) fn fill(block: u64, generation: u32, data: &mut [u8]) {
    if generation == 0 {
        return data.fill(0);
    }
    let mut word = (block << 32 | u64::from(generation)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for piece in data.chunks_mut(8) {
        word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(1);
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

/// A block's generations: the last that is certain, and those that may have replaced it.
#[derive(Clone, Default)]
struct Block {
    certain: u32,
    possible: Vec<u32>,
}

/// The blocks of a disk.
pub(crate) struct Model {
    blocks: Vec<Block>,
    generation: u32,
    random: u64,
}

impl Model {
    /// Of a disk that reads as zeros.
    pub(crate) fn new(blocks: u64, seed: u64) -> Self {
        Self { blocks: vec![Block::default(); blocks as usize], generation: 0, random: seed | 1 }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    pub(crate) fn block(&mut self) -> u64 {
        let count = self.blocks.len() as u64;
        self.below(count)
    }

    /// The disk has become larger.
    pub(crate) fn grow(&mut self, blocks: u64) {
        self.blocks.resize(blocks as usize, Block::default());
    }

    /// New data for a block, which may arrive from now on.
    pub(crate) fn write(&mut self, block: u64) -> Vec<u8> {
        self.generation += 1;
        let mut data = vec![0; BLOCK];
        fill(block, self.generation, &mut data);
        self.blocks[block as usize].possible.push(self.generation);
        data
    }

    /// The last write of a block has completed.
    pub(crate) fn written(&mut self, block: u64) {
        let block = &mut self.blocks[block as usize];
        if let Some(last) = block.possible.pop() {
            block.possible.clear();
            block.certain = last;
        }
    }

    /// The block reads as zeros.
    pub(crate) fn zeroed(&mut self, block: u64) {
        self.blocks[block as usize] = Block::default();
    }

    /// The last write may be lost, with a server that was killed before it was flushed: the data may be of `before`.
    pub(crate) fn unflushed(&mut self, block: u64, before: u32) {
        let block = &mut self.blocks[block as usize];
        block.possible.push(block.certain);
        block.certain = before;
    }

    pub(crate) fn certain(&self, block: u64) -> u32 {
        self.blocks[block as usize].certain
    }

    /// Panic if a sector of the block has data that it cannot have. If all of the block is of one generation, that generation is certain
    /// from now on.
    pub(crate) fn verify(&mut self, block: u64, data: &[u8]) -> u64 {
        let Block { certain, possible } = &self.blocks[block as usize];
        let candidates: Vec<Vec<u8>> = std::iter::once(certain)
            .chain(possible)
            .map(|generation| {
                let mut data = vec![0; BLOCK];
                fill(block, *generation, &mut data);
                data
            })
            .collect();
        for (at, sector) in data.chunks(SECTOR).enumerate() {
            let range = at * SECTOR..at * SECTOR + sector.len();
            let good = candidates.iter().any(|candidate| candidate[range.clone()] == *sector);
            assert!(
                good,
                "block {block}, sector {at}: wrong data; generation {certain}, perhaps {possible:?}"
            );
        }
        if let Some(found) = candidates.iter().position(|candidate| candidate == data) {
            let found = if found == 0 { *certain } else { possible[found - 1] };
            self.blocks[block as usize] = Block { certain: found, possible: Vec::new() };
        }
        data.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_or_new_data_are_good_and_others_are_not() {
        let mut model = Model::new(4, 1);
        model.verify(2, &[0; BLOCK]);
        let first = model.write(2);
        model.written(2);
        model.verify(2, &first);
        let second = model.write(2);
        let torn = [&first[..SECTOR], &second[SECTOR..]].concat();
        model.verify(2, &torn);
        model.written(2);
        model.verify(2, &second);
        let wrong = |model: &mut Model, data: &[u8]| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.verify(2, data))).is_err()
        };
        assert!(wrong(&mut model, &first) && wrong(&mut model, &torn) && wrong(&mut model, &[0; BLOCK]));
        model.zeroed(2);
        assert!(wrong(&mut model, &second));
    }
}
