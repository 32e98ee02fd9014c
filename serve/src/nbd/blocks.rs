//! Memory for payloads, kept from request to request.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::lending::Block;
use super::pool::{Loan, Pool};

/// Bytes of the smallest block.
const SMALLEST: usize = 4096;
/// Sizes, each twice the one before; the largest holds the largest request.
const SIZES: usize = 14;
/// Bytes of the largest request, 32 MiB: what clients may expect of every server.
pub(super) const LARGEST: usize = SMALLEST << (SIZES - 1);
/// Bytes that a connection may hold: two of the largest requests.
const MOST: usize = 2 * LARGEST;
/// Bytes that each connection has of its own, whatever the others do. Beyond, it borrows.
const OWN: usize = 1 << 20;

/// The host has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// Blocks of a connection. Those that come back serve again: once warm, nothing is allocated.
#[derive(Debug)]
pub(super) struct Blocks<'a> {
    idle: [Vec<Block>; SIZES],
    /// Bytes of all blocks, here and out.
    held: usize,
    /// What the pool has lent: `held` beyond the connection's own.
    loan: Loan<'a>,
}

impl<'a> Blocks<'a> {
    /// None yet.
    ///
    /// # Errors
    /// The host has no eventfd left.
    pub(super) fn new(pool: &'a Pool) -> Result<Self, Errno> {
        Ok(Self { idle: Default::default(), held: 0, loan: Loan::new(pool)? })
    }

    /// A block of at least `len` bytes, `len` being at most [`LARGEST`]; `None`: as much as may be is out here, and some has to
    /// come back first, or the pool has not enough. In the second case the connection waits for it ([`event`](Self::event)) until
    /// it asks again or [withdraws](Self::withdraw).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn take(&mut self, len: usize) -> Result<Option<Block>, NoMemory> {
        let size = len.clamp(SMALLEST, LARGEST).next_power_of_two();
        let class = class(size);
        if let Some(block) = self.idle.get_mut(class).and_then(Vec::pop) {
            self.loan.withdraw();
            return Ok(Some(block));
        }
        while self.held + size > MOST {
            if !self.drop_one() {
                self.loan.withdraw();
                return Ok(None);
            }
        }
        while !self.loan.want(beyond_own(self.held + size)) {
            if !self.drop_one() {
                return Ok(None);
            }
        }
        let block = Block::new(size).ok_or(NoMemory)?;
        self.held += size;
        Ok(Some(block))
    }

    /// Let the largest idle block go. False: there is none.
    fn drop_one(&mut self) -> bool {
        let Some(block) = self.idle.iter_mut().rev().find_map(Vec::pop) else { return false };
        self.held -= block.size();
        drop(block);
        self.loan.reduce(beyond_own(self.held));
        true
    }

    /// Take a block back: for the next request, or for other connections where they wait.
    pub(super) fn give(&mut self, block: Block) {
        if let Some(idle) = self.idle.get_mut(class(block.size())) {
            idle.push(block);
        }
        self.yield_idle();
    }

    /// Give back what is borrowed and idle, where others wait for memory.
    pub(super) fn yield_idle(&mut self) {
        if self.borrows() && self.others_wait() {
            self.shrink();
        }
    }

    /// Whether memory of the pool is held.
    pub(super) const fn borrows(&self) -> bool {
        self.loan.bytes() > 0
    }

    /// Whether other connections wait for memory of the pool.
    pub(super) fn others_wait(&self) -> bool {
        self.loan.others_wait()
    }

    /// No request waits for memory any more.
    pub(super) fn withdraw(&mut self) {
        self.loan.withdraw();
    }

    /// Readable when the pool has lent what was waited for, until it is [acknowledged](Self::acknowledge).
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.loan.event()
    }

    /// The event has been seen.
    pub(super) fn acknowledge(&self) {
        self.loan.acknowledge();
    }

    /// Give back what is borrowed and idle.
    pub(super) fn shrink(&mut self) {
        while self.borrows() && self.drop_one() {}
    }
}

/// What of so many bytes is not the connection's own.
const fn beyond_own(bytes: usize) -> usize {
    bytes.saturating_sub(OWN)
}

fn class(size: usize) -> usize {
    (size / SMALLEST).checked_ilog2().unwrap_or_default() as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn blocks_serve_again_and_are_bounded() {
        let pool = Pool::new(3 * LARGEST, Duration::ZERO);
        let mut blocks = Blocks::new(&pool).unwrap();
        let mut take = |len| blocks.take(len).unwrap();
        assert_eq!(take(1).unwrap().size(), 4096);
        assert_eq!(take(4097).unwrap().size(), 8192);
        let mut blocks = Blocks::new(&pool).unwrap();
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
        // Its own limit was in the way each time, not the pool.
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn the_pool_is_shared_and_everybody_has_some_of_their_own() {
        let pool = Pool::new(LARGEST, Duration::ZERO);
        let [mut one, mut two] = [(), ()].map(|()| Blocks::new(&pool).unwrap());
        let large = one.take(LARGEST).unwrap().unwrap();
        assert!(one.borrows() && pool.waiting() == 0);
        assert!(two.take(LARGEST).unwrap().is_none());
        assert!(pool.waiting() == 1 && one.others_wait() && !two.others_wait());
        // Another request: this one it has memory for.
        let small = two.take(OWN).unwrap().unwrap();
        assert!(!two.borrows() && pool.waiting() == 0);
        two.give(small);
        assert!(two.take(LARGEST).unwrap().is_none());
        // What is out stays out; what comes back goes back at once.
        one.shrink();
        assert!(one.borrows());
        one.give(large);
        assert!(!one.borrows());
        let large = two.take(LARGEST).unwrap().unwrap();
        assert_eq!(two.loan.bytes(), LARGEST - OWN, "its own was idle, and too small for this");
        // Nobody waits: it is kept, until somebody does.
        two.give(large);
        assert!(two.borrows());
        assert!(one.take(LARGEST).unwrap().is_none());
        two.yield_idle();
        assert!(!two.borrows());
        assert!(one.take(LARGEST).unwrap().is_some());
    }

    /// The block that it waits for comes back to itself.
    #[test]
    fn an_idle_block_ends_the_wait() {
        let pool = Pool::new(LARGEST, Duration::ZERO);
        let mut blocks = Blocks::new(&pool).unwrap();
        let large = blocks.take(LARGEST).unwrap().unwrap();
        assert!(blocks.take(LARGEST).unwrap().is_none() && pool.waiting() == 1);
        blocks.give(large);
        assert!(blocks.borrows(), "nobody else waits");
        assert!(blocks.take(LARGEST).unwrap().is_some() && pool.waiting() == 0);
    }

    #[test]
    fn while_others_wait_nobody_has_more_than_a_share() {
        let pool = Pool::new(4 * LARGEST, Duration::ZERO);
        let mut all: Vec<_> = (0..5).map(|_| Blocks::new(&pool).unwrap()).collect();
        let mut held = Vec::new();
        // One after the other, as much as each can have: alone, two of the largest.
        for blocks in &mut all[..2] {
            while let Some(block) = blocks.take(LARGEST).unwrap() {
                held.push(block);
            }
        }
        assert_eq!(held.len(), 4);
        assert!(all[2].take(LARGEST).unwrap().is_none() && pool.waiting() == 1);
        all[0].give(held.remove(0));
        assert!(all[0].take(LARGEST).unwrap().is_none(), "it has a share, and others wait");
        assert!(all[2].take(LARGEST).unwrap().is_some());
    }
}
