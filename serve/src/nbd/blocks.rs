//! Memory for payloads, kept from request to request.

use super::lending::Block;

/// Bytes of the smallest block.
const SMALLEST: usize = 4096;
/// Sizes, each twice the one before; the largest holds the largest request.
const SIZES: usize = 14;
/// Bytes of the largest request, 32 MiB: what clients may expect of every server.
pub(super) const LARGEST: usize = SMALLEST << (SIZES - 1);
/// Bytes that a connection may hold: two of the largest requests.
const MOST: usize = 2 * LARGEST;

/// The host has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// Blocks of a connection. Those that come back serve again: once warm, nothing is allocated.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    idle: [Vec<Block>; SIZES],
    /// Bytes of all blocks, here and out.
    held: usize,
}

impl Blocks {
    /// A block of at least `len` bytes, `len` being at most [`LARGEST`]; `None`: as much as may be is out, some has to come
    /// back first.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn take(&mut self, len: usize) -> Result<Option<Block>, NoMemory> {
        let size = len.clamp(SMALLEST, LARGEST).next_power_of_two();
        let class = class(size);
        if let Some(block) = self.idle.get_mut(class).and_then(Vec::pop) {
            return Ok(Some(block));
        }
        while self.held + size > MOST {
            let Some(block) = self.idle.iter_mut().rev().find_map(Vec::pop) else { return Ok(None) };
            self.held -= block.size();
        }
        let block = Block::new(size).ok_or(NoMemory)?;
        self.held += size;
        Ok(Some(block))
    }

    /// Take a block back.
    pub(super) fn give(&mut self, block: Block) {
        if let Some(idle) = self.idle.get_mut(class(block.size())) {
            idle.push(block);
        }
    }
}

fn class(size: usize) -> usize {
    (size / SMALLEST).checked_ilog2().unwrap_or_default() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_serve_again_and_are_bounded() {
        let mut blocks = Blocks::default();
        let mut take = |len| blocks.take(len).unwrap();
        assert_eq!(take(1).unwrap().size(), 4096);
        assert_eq!(take(4097).unwrap().size(), 8192);
        let mut blocks = Blocks::default();
        let first = blocks.take(LARGEST).unwrap().unwrap();
        let second = blocks.take(LARGEST - 1).unwrap().unwrap();
        assert_eq!((first.size(), second.size()), (LARGEST, LARGEST));
        assert!(blocks.take(1).unwrap().is_none());
        blocks.give(second);
        // The idle one makes room for small ones.
        let small = blocks.take(1).unwrap().unwrap();
        assert_eq!(blocks.held, LARGEST + 4096);
        assert!(blocks.take(LARGEST).unwrap().is_none());
        blocks.give(small);
        assert!(blocks.take(LARGEST).unwrap().is_some());
        assert_eq!(blocks.held, 2 * LARGEST);
    }
}
