//! Memory for payloads, kept from request to request.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::lending::Block;

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
/// The pool is short so long after somebody has asked in vain; who still waits asks more often.
const SHORT: Duration = Duration::from_secs(1);

/// The host has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// What all connections of a server may borrow together.
#[derive(Debug)]
pub(super) struct Pool {
    bytes: usize,
    left: AtomicUsize,
    /// Connections that share it.
    sharers: AtomicUsize,
    /// How long a client that neither sends nor receives may hold memory that others wait for.
    patience: Duration,
    begin: Instant,
    /// When somebody last asked in vain, in milliseconds after the beginning; 0: never.
    refused: AtomicU64,
}

impl Pool {
    /// Of so many bytes, of the largest request at least: else it could never be served.
    pub(super) fn new(bytes: usize, patience: Duration) -> Self {
        let bytes = bytes.max(LARGEST);
        Self {
            bytes,
            left: AtomicUsize::new(bytes),
            sharers: AtomicUsize::new(0),
            patience,
            begin: Instant::now(),
            refused: AtomicU64::new(0),
        }
    }

    /// Lend so many bytes to a connection that has borrowed some already. While others wait, none has more than its share, or
    /// than the largest request takes.
    fn borrow(&self, bytes: usize, borrowed: usize) -> bool {
        let share = self.bytes / self.sharers.load(Ordering::Relaxed).max(1);
        if bytes + borrowed > share.max(LARGEST) && self.is_short() {
            return false;
        }
        let lent = self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if lent.is_err() {
            self.refused.store(self.now().max(1), Ordering::Relaxed);
        }
        lent.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How long a client that neither sends nor receives may hold memory that others wait for.
    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether somebody is waiting.
    pub(super) fn is_short(&self) -> bool {
        let refused = self.refused.load(Ordering::Relaxed);
        refused > 0 && self.now().saturating_sub(refused) < SHORT.as_millis() as u64
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }
}

/// Blocks of a connection. Those that come back serve again: once warm, nothing is allocated.
#[derive(Debug)]
pub(super) struct Blocks<'a> {
    pool: &'a Pool,
    idle: [Vec<Block>; SIZES],
    /// Bytes of all blocks, here and out.
    held: usize,
    /// Bytes of them that the pool has lent.
    borrowed: usize,
    /// The pool had not what was asked for last.
    refused: bool,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(pool: &'a Pool) -> Self {
        pool.sharers.fetch_add(1, Ordering::Relaxed);
        Self { pool, idle: Default::default(), held: 0, borrowed: 0, refused: false }
    }

    /// A block of at least `len` bytes, `len` being at most [`LARGEST`]; `None`: as much as may be is out, here or at other
    /// connections, and some has to come back first.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn take(&mut self, len: usize) -> Result<Option<Block>, NoMemory> {
        let size = len.clamp(SMALLEST, LARGEST).next_power_of_two();
        let class = class(size);
        self.refused = false;
        if let Some(block) = self.idle.get_mut(class).and_then(Vec::pop) {
            return Ok(Some(block));
        }
        while self.held + size > MOST || !self.reserve(size) {
            if !self.drop_one() {
                return Ok(None);
            }
        }
        self.refused = false;
        let block = Block::new(size).ok_or(NoMemory)?;
        self.held += size;
        Ok(Some(block))
    }

    /// Borrow what `size` bytes more will take.
    fn reserve(&mut self, size: usize) -> bool {
        let more = (self.held + size).saturating_sub(OWN).saturating_sub(self.borrowed);
        self.refused = more > 0 && !self.pool.borrow(more, self.borrowed);
        if !self.refused {
            self.borrowed += more;
        }
        !self.refused
    }

    /// Let the largest idle block go. False: there is none.
    fn drop_one(&mut self) -> bool {
        let Some(block) = self.idle.iter_mut().rev().find_map(Vec::pop) else { return false };
        self.held -= block.size();
        drop(block);
        let less = self.borrowed.saturating_sub(self.held.saturating_sub(OWN));
        self.borrowed -= less;
        self.pool.give_back(less);
        true
    }

    /// Take a block back: for the next request, or for other connections where they wait.
    pub(super) fn give(&mut self, block: Block) {
        if let Some(idle) = self.idle.get_mut(class(block.size())) {
            idle.push(block);
        }
        if self.borrows() && self.pool.is_short() {
            self.shrink();
        }
    }

    /// Whether memory of the pool is held.
    pub(super) fn borrows(&self) -> bool {
        self.borrowed > 0
    }

    /// The pool that it borrows from.
    pub(super) const fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Whether the last block was not to be had for what other connections hold.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Give back what is borrowed and idle.
    pub(super) fn shrink(&mut self) {
        while self.borrows() && self.drop_one() {}
    }
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        self.pool.give_back(self.borrowed);
        self.pool.sharers.fetch_sub(1, Ordering::Relaxed);
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
        let pool = Pool::new(3 * LARGEST, Duration::ZERO);
        let mut blocks = Blocks::new(&pool);
        let mut take = |len| blocks.take(len).unwrap();
        assert_eq!(take(1).unwrap().size(), 4096);
        assert_eq!(take(4097).unwrap().size(), 8192);
        let mut blocks = Blocks::new(&pool);
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
        assert!(!blocks.is_refused() && !pool.is_short());
    }

    #[test]
    fn the_pool_is_shared_and_everybody_has_some_of_their_own() {
        let pool = Pool::new(LARGEST, Duration::from_secs(2));
        let (mut one, mut two) = (Blocks::new(&pool), Blocks::new(&pool));
        let large = one.take(LARGEST).unwrap().unwrap();
        assert!(one.borrows() && !pool.is_short());
        assert_eq!(pool.left.load(Ordering::Relaxed), OWN);
        assert!(two.take(LARGEST).unwrap().is_none());
        assert!(two.is_refused() && pool.is_short());
        let small = two.take(OWN).unwrap().unwrap();
        assert!(!two.borrows() && !two.is_refused());
        // What is out stays out; what comes back goes back at once.
        one.shrink();
        assert!(one.borrows());
        one.give(large);
        assert!(!one.borrows());
        two.give(small);
        let large = two.take(LARGEST).unwrap().unwrap();
        assert_eq!(two.borrowed, LARGEST, "its own is idle, and too small for this");
        // Nobody waits: it is kept.
        pool.refused.store(0, Ordering::Relaxed);
        two.give(large);
        assert_eq!(two.borrowed, LARGEST);
        two.shrink();
        assert!(!two.borrows());
        drop((one, two));
        assert_eq!(pool.left.into_inner(), LARGEST);
    }

    #[test]
    fn while_others_wait_nobody_has_more_than_a_share() {
        let pool = Pool::new(4 * LARGEST, Duration::ZERO);
        let mut all: Vec<_> = (0..5).map(|_| Blocks::new(&pool)).collect();
        let mut held = Vec::new();
        // One after the other, as much as each can have: alone, two of the largest.
        for blocks in &mut all[..2] {
            while let Some(block) = blocks.take(LARGEST).unwrap() {
                held.push(block);
            }
        }
        assert_eq!(held.len(), 4);
        assert!(all[2].take(LARGEST).unwrap().is_none() && pool.is_short());
        all[0].give(held.remove(0));
        assert!(all[0].take(LARGEST).unwrap().is_none(), "it has a share, and others wait");
        assert!(all[2].take(LARGEST).unwrap().is_some());
    }
}
