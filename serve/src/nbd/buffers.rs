//! Memory for payloads: buffers of a connection, reused from request to request.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::buffer_queue::Buffer;
use super::pool::{Pool, Reservation};
use super::spec::LARGEST;

/// Bytes of the smallest buffer.
const SMALLEST: usize = 4096;
/// Sizes, each twice the one before, except the last.
const SIZES: usize = 14;
/// Bytes of the largest buffer: the largest request that begins and ends inside of sectors, and another sector
/// ([`Parts`](super::parts::Parts)).
const BIGGEST: usize = LARGEST + 2 * 4096;
const _: () = assert!(SMALLEST << (SIZES - 1) == LARGEST);
/// Bytes that a connection may hold: two of the largest requests.
const MOST: usize = 2 * BIGGEST;
/// Bytes that each connection may allocate without the pool.
const OWN: usize = 1 << 20;

/// The host has no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// Buffers of a connection. Released buffers are reused: once warm, nothing is allocated.
#[derive(Debug)]
pub(super) struct Buffers<'a> {
    idle: [Vec<Buffer>; SIZES],
    /// Bytes of all buffers, idle and in use.
    held: usize,
    /// Bytes of the pool: `held` beyond [`OWN`].
    reservation: Reservation<'a>,
}

impl<'a> Buffers<'a> {
    /// None yet.
    ///
    /// # Errors
    /// The host has no eventfd left.
    pub(super) fn new(pool: &'a Pool) -> Result<Self, Errno> {
        Ok(Self { idle: Default::default(), held: 0, reservation: Reservation::new(pool)? })
    }

    /// A buffer of at least `len` bytes, `len` being at most [`BIGGEST`]; `None`: the connection's buffers are in use up to its
    /// limit, or the pool has too little left. In the second case the connection waits for the pool ([`event`](Self::event)) until
    /// it takes again or [withdraws](Self::withdraw).
    pub(super) fn take(&mut self, len: usize) -> Result<Option<Buffer>, NoMemory> {
        let size = if len > LARGEST / 2 { BIGGEST } else { len.max(SMALLEST).next_power_of_two() };
        let class = class(size);
        if let Some(buffer) = self.idle.get_mut(class).and_then(Vec::pop) {
            self.reservation.withdraw();
            return Ok(Some(buffer));
        }
        while self.held + size > MOST {
            if !self.drop_one() {
                self.reservation.withdraw();
                return Ok(None);
            }
        }
        while !self.reservation.want(beyond_own(self.held + size)) {
            if !self.drop_one() {
                return Ok(None);
            }
        }
        let buffer = Buffer::new(size).ok_or(NoMemory)?;
        self.held += size;
        Ok(Some(buffer))
    }

    /// Free the largest idle buffer. False: there is none.
    fn drop_one(&mut self) -> bool {
        let Some(buffer) = self.idle.iter_mut().rev().find_map(Vec::pop) else { return false };
        self.held -= buffer.size();
        drop(buffer);
        self.reservation.reduce(beyond_own(self.held));
        true
    }

    /// A buffer is no longer in use: keep it for the next request, or free it where other connections wait for memory.
    pub(super) fn release(&mut self, buffer: Buffer) {
        if let Some(idle) = self.idle.get_mut(class(buffer.size())) {
            idle.push(buffer);
        }
        self.release_idle_if_wanted();
    }

    /// Free idle memory of the pool where other connections wait for it.
    pub(super) fn release_idle_if_wanted(&mut self) {
        if self.uses_pool() && self.others_wait() {
            self.shrink();
        }
    }

    /// Whether memory of the pool is held.
    pub(super) const fn uses_pool(&self) -> bool {
        self.reservation.bytes() > 0
    }

    /// Whether other connections wait for memory of the pool.
    pub(super) fn others_wait(&self) -> bool {
        self.reservation.others_wait()
    }

    /// No request waits for memory any more.
    pub(super) fn withdraw(&mut self) {
        self.reservation.withdraw();
    }

    /// Readable when the pool has granted what was waited for, until it is [acknowledged](Self::acknowledge).
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.reservation.event()
    }

    /// Make [`event`](Self::event) unreadable.
    pub(super) fn acknowledge(&self) {
        self.reservation.acknowledge();
    }

    /// Free idle memory of the pool.
    pub(super) fn shrink(&mut self) {
        while self.uses_pool() && self.drop_one() {}
    }
}

/// Bytes that have to come from the pool.
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
        let mut buffers = Buffers::new(&pool).unwrap();
        let mut take = |len| buffers.take(len).unwrap();
        assert_eq!(take(1).unwrap().size(), 4096);
        assert_eq!(take(4097).unwrap().size(), 8192);
        let mut buffers = Buffers::new(&pool).unwrap();
        let first = buffers.take(LARGEST).unwrap().unwrap();
        let second = buffers.take(LARGEST - 1).unwrap().unwrap();
        assert_eq!((first.size(), second.size()), (BIGGEST, BIGGEST));
        assert!(buffers.take(1).unwrap().is_none());
        buffers.release(second);
        // The idle one is freed for small ones.
        let small = buffers.take(1).unwrap().unwrap();
        assert_eq!(buffers.held, BIGGEST + 4096);
        assert!(buffers.take(LARGEST).unwrap().is_none());
        buffers.release(small);
        assert!(buffers.take(LARGEST).unwrap().is_some());
        assert_eq!(buffers.held, 2 * BIGGEST);
        // Its own limit was in the way each time, not the pool.
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn the_pool_is_shared_and_everybody_has_some_of_their_own() {
        let pool = Pool::new(LARGEST, Duration::ZERO);
        let [mut one, mut two] = [(), ()].map(|()| Buffers::new(&pool).unwrap());
        let large = one.take(LARGEST).unwrap().unwrap();
        assert!(one.uses_pool() && pool.waiting() == 0);
        assert!(two.take(LARGEST).unwrap().is_none());
        assert!(pool.waiting() == 1 && one.others_wait() && !two.others_wait());
        // The next request fits into the connection's own memory.
        let small = two.take(OWN).unwrap().unwrap();
        assert!(!two.uses_pool() && pool.waiting() == 0);
        two.release(small);
        assert!(two.take(LARGEST).unwrap().is_none());
        // Buffers in use stay; released ones are freed at once.
        one.shrink();
        assert!(one.uses_pool());
        one.release(large);
        assert!(!one.uses_pool());
        let large = two.take(LARGEST).unwrap().unwrap();
        assert_eq!(two.reservation.bytes(), BIGGEST - OWN, "its own was idle, and too small for this");
        // Nobody waits: it is kept until somebody does.
        two.release(large);
        assert!(two.uses_pool());
        assert!(one.take(LARGEST).unwrap().is_none());
        two.release_idle_if_wanted();
        assert!(!two.uses_pool());
        assert!(one.take(LARGEST).unwrap().is_some());
    }

    /// The connection waits for memory that it holds itself.
    #[test]
    fn an_idle_block_ends_the_wait() {
        let pool = Pool::new(LARGEST, Duration::ZERO);
        let mut buffers = Buffers::new(&pool).unwrap();
        let large = buffers.take(LARGEST).unwrap().unwrap();
        assert!(buffers.take(LARGEST).unwrap().is_none() && pool.waiting() == 1);
        buffers.release(large);
        assert!(buffers.uses_pool(), "nobody else waits");
        assert!(buffers.take(LARGEST).unwrap().is_some() && pool.waiting() == 0);
    }

    #[test]
    fn while_others_wait_nobody_has_more_than_a_share() {
        let pool = Pool::new(4 * LARGEST, Duration::ZERO);
        let mut all: Vec<_> = (0..5).map(|_| Buffers::new(&pool).unwrap()).collect();
        let mut held = Vec::new();
        // Each in turn takes as much as it can: while nobody waits, two of the largest buffers.
        for buffers in &mut all[..2] {
            while let Some(buffer) = buffers.take(LARGEST).unwrap() {
                held.push(buffer);
            }
        }
        assert_eq!(held.len(), 4);
        assert!(all[2].take(LARGEST).unwrap().is_none() && pool.waiting() == 1);
        all[0].release(held.remove(0));
        assert!(all[0].take(LARGEST).unwrap().is_none(), "it has a share, and others wait");
        assert!(all[2].take(LARGEST).unwrap().is_some());
    }
}
