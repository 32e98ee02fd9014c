//! Memory that the connections of a server share, lent in the order in which they asked in vain.
//!
//! - A connection that is refused enters a queue. While one waits there, nobody else is lent anything: what comes back is
//!   collected for the one whose turn it is. So a large request is served however many connections borrow less than it takes.
//! - It is the turn of the first that stays within its share; where nobody does, of the first.
//! - What comes back is lent to waiting connections by whoever gives it back, under the lock under which connections are
//!   refused. So no wake-up is lost, and a connection whose thread is busy does not hold up those behind it: what it was lent is
//!   its own, whenever it looks.
//! - A connection waits while it has a whole header of a request that it can take, and no longer ([`Loan::withdraw`]).
//!
//! ```text
//! want -> enough, and its turn -> lent
//!      -> else: queue -> give_back, withdraw or drop of another -> lent, event -> want
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
#[expect(
    clippy::disallowed_types,
    reason = "memory beyond a connection's own is allocated, which takes longer"
)]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::blocks::LARGEST;

/// What all connections of a server may borrow together.
#[derive(Debug)]
#[expect(
    clippy::disallowed_types,
    reason = "memory beyond a connection's own is allocated, which takes longer"
)]
pub(super) struct Pool {
    bytes: usize,
    /// How long a client that neither sends nor receives may hold memory that others wait for.
    patience: Duration,
    /// Connections that wait, for those who only want to know whether there are any.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that are not lent.
    left: usize,
    /// Connections that share it.
    sharers: usize,
    /// The number of the next connection.
    next: u64,
    /// In the order in which they were refused.
    queue: VecDeque<Waiter>,
}

/// A connection that was refused.
#[derive(Debug)]
struct Waiter {
    number: u64,
    /// Bytes that it wants beyond those that it has borrowed.
    wish: usize,
    borrowed: usize,
    /// It has been lent what it wants, and has not looked yet.
    granted: bool,
    event: Arc<OwnedFd>,
}

impl Pool {
    /// Of so many bytes, of the largest request at least: else it could never be served.
    #[expect(
        clippy::disallowed_types,
        reason = "memory beyond a connection's own is allocated, which takes longer"
    )]
    pub(super) fn new(bytes: usize, patience: Duration) -> Self {
        let bytes = bytes.max(LARGEST);
        let state = State { left: bytes, sharers: 0, next: 0, queue: VecDeque::new() };
        Self { bytes, patience, waiting: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// How long a client that neither sends nor receives may hold memory that others wait for.
    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// Connections that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in between can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lend what there is to those who wait, in turn. All of them are told but `caller`, which looks itself.
    fn lend(&self, state: &mut State, caller: u64) {
        let share = (self.bytes / state.sharers.max(1)).max(LARGEST);
        while let Some(place) = state.turn(share)
            && let Some(waiter) = state.queue.get_mut(place)
            && let Some(left) = state.left.checked_sub(waiter.wish)
        {
            waiter.granted = true;
            state.left = left;
            if waiter.number != caller {
                // Only a full counter refuses, and that is readable.
                let _ = rustix::io::write(&waiter.event, &1u64.to_ne_bytes());
            }
        }
        let waiting = state.queue.iter().filter(|waiter| !waiter.granted).count();
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}

impl State {
    /// Whose turn it is: its place in the queue.
    fn turn(&self, share: usize) -> Option<usize> {
        let mut waiting = self.queue.iter().enumerate().filter(|(_, waiter)| !waiter.granted);
        let first = waiting.clone().next();
        let within = waiting.find(|(_, waiter)| waiter.wish + waiter.borrowed <= share);
        within.or(first).map(|(place, _)| place)
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.number == number)
    }
}

/// What a connection has borrowed, and its place among those who wait. All of it goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Loan<'a> {
    pool: &'a Pool,
    number: u64,
    bytes: usize,
    /// It is in the queue.
    queued: bool,
    event: Arc<OwnedFd>,
}

impl<'a> Loan<'a> {
    /// Of nothing.
    ///
    /// # Errors
    /// The host has no eventfd left.
    pub(super) fn new(pool: &'a Pool) -> Result<Self, Errno> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut state = pool.state();
        let number = state.next;
        state.next += 1;
        state.sharers += 1;
        Ok(Self { pool, number, bytes: 0, queued: false, event })
    }

    /// Bytes that are borrowed.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Readable when what was wanted has been lent.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The event has been seen.
    pub(super) fn acknowledge(&self) {
        // Nothing in it: nothing to forget.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Have `bytes` in all. False: they are not there, or others have waited longer. The connection waits then, with this wish
    /// in place of the one before.
    pub(super) fn want(&mut self, bytes: usize) -> bool {
        let mut state = self.pool.state();
        self.collect(&mut state);
        let Some(wish) = bytes.checked_sub(self.bytes).filter(|wish| *wish > 0) else {
            self.leave(&mut state);
            self.shrink_to(bytes, &mut state);
            self.pool.lend(&mut state, self.number);
            return true;
        };
        match state.place(self.number).and_then(|place| state.queue.get_mut(place)) {
            Some(waiter) => waiter.wish = wish,
            None => state.queue.push_back(Waiter {
                number: self.number,
                wish,
                borrowed: self.bytes,
                granted: false,
                event: Arc::clone(&self.event),
            }),
        }
        self.queued = true;
        self.pool.lend(&mut state, self.number);
        self.collect(&mut state);
        !self.queued
    }

    /// Keep no more than `bytes`. What is wanted besides stays wanted.
    pub(super) fn reduce(&mut self, bytes: usize) {
        let mut state = self.pool.state();
        self.shrink_to(bytes, &mut state);
        self.pool.lend(&mut state, self.number);
    }

    /// Wait no longer: what was lent for that goes back.
    #[inline]
    pub(super) fn withdraw(&mut self) {
        if self.queued {
            self.withdraw_now();
        }
    }

    #[cold]
    fn withdraw_now(&mut self) {
        let mut state = self.pool.state();
        self.leave(&mut state);
        self.pool.lend(&mut state, self.number);
    }

    /// Whether others wait.
    #[inline]
    pub(super) fn others_wait(&self) -> bool {
        self.pool.waiting() > 0 && (!self.queued || self.others_in_queue())
    }

    #[cold]
    fn others_in_queue(&self) -> bool {
        self.pool.state().queue.iter().any(|waiter| !waiter.granted && waiter.number != self.number)
    }

    /// Take what was lent meanwhile.
    fn collect(&mut self, state: &mut State) {
        let place = state.place(self.number).filter(|_| self.queued);
        let granted = place.filter(|place| state.queue.get(*place).is_some_and(|waiter| waiter.granted));
        if let Some(waiter) = granted.and_then(|place| state.queue.remove(place)) {
            self.bytes += waiter.wish;
            self.queued = false;
        }
    }

    /// Leave the queue. Whoever calls it lends what that makes free.
    fn leave(&mut self, state: &mut State) {
        if let Some(waiter) = state.place(self.number).and_then(|place| state.queue.remove(place))
            && waiter.granted
        {
            state.left += waiter.wish;
        }
        self.queued = false;
    }

    fn shrink_to(&mut self, bytes: usize, state: &mut State) {
        state.left += self.bytes.saturating_sub(bytes);
        self.bytes = self.bytes.min(bytes);
        if let Some(waiter) = state.place(self.number).and_then(|place| state.queue.get_mut(place)) {
            waiter.borrowed = self.bytes;
        }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        self.leave(&mut state);
        self.shrink_to(0, &mut state);
        // A share is larger now.
        state.sharers -= 1;
        self.pool.lend(&mut state, self.number);
    }
}

#[cfg(test)]
mod tests;
