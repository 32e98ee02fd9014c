//! A memory budget that the connections of a server share, granted in the order of the requests that were refused.
//!
//! - A connection that is refused enters a queue. While one waits there, no other connection is granted anything: freed memory
//!   accumulates for the first. So a large request is served even if many connections need less than it does.
//! - First is the earliest waiter that stays within its share (the budget divided by the number of connections, but at least the
//!   largest request); where none does, the earliest.
//! - The thread that frees memory grants it to waiters, under the lock under which connections are refused. So no wake-up is lost. A
//!   waiter whose thread is busy does not delay the waiters behind it: a grant stays valid until the waiter takes it.
//! - A connection waits only while it has the whole header of a request that it can take ([`Reservation::withdraw`]).
//!
//! ```text
//! want -> enough left, and first -> granted
//!      -> else: queued -> another reduces, withdraws or drops -> granted, event -> want
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

use super::spec::LARGEST;

/// The budget of all connections of a server together.
#[derive(Debug)]
#[expect(
    clippy::disallowed_types,
    reason = "memory beyond a connection's own is allocated, which takes longer"
)]
pub(super) struct Pool {
    bytes: usize,
    /// See [`MinimumRate`](super::minimum_rate::MinimumRate): its initial time.
    stall_timeout: Duration,
    /// Connections that wait, readable without the lock.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that are not granted.
    left: usize,
    /// Connections that share the budget.
    connections: usize,
    /// The number of the next connection.
    next: u64,
    /// In the order in which they were refused.
    queue: VecDeque<Waiter>,
}

/// A connection that was refused.
#[derive(Debug)]
struct Waiter {
    number: u64,
    /// Bytes that it wants beyond `reserved`.
    wanted: usize,
    reserved: usize,
    /// It has been granted what it wants, and has not taken the grant yet.
    granted: bool,
    event: Arc<OwnedFd>,
}

impl Pool {
    /// A pool of `bytes`, but at least of the largest request, which could never be served otherwise.
    #[expect(
        clippy::disallowed_types,
        reason = "memory beyond a connection's own is allocated, which takes longer"
    )]
    pub(super) fn new(bytes: usize, stall_timeout: Duration) -> Self {
        let bytes = bytes.max(LARGEST);
        let state = State { left: bytes, connections: 0, next: 0, queue: VecDeque::new() };
        Self { bytes, stall_timeout, waiting: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// The initial time of a [`MinimumRate`](super::minimum_rate::MinimumRate).
    pub(super) const fn stall_timeout(&self) -> Duration {
        self.stall_timeout
    }

    /// Connections that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether connections have memory of the pool.
    #[cfg(all(test, feature = "tls"))]
    pub(super) fn is_held(&self) -> bool {
        self.state().left < self.bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grant what is left to waiters, in order, and wake them; `caller` is running and needs no wake-up.
    fn grant(&self, state: &mut State, caller: u64) {
        let share = (self.bytes / state.connections.max(1)).max(LARGEST);
        while let Some(place) = state.next_waiter(share)
            && let Some(waiter) = state.queue.get_mut(place)
            && let Some(left) = state.left.checked_sub(waiter.wanted)
        {
            waiter.granted = true;
            state.left = left;
            if waiter.number != caller {
                // Fails only for a full counter, which is readable.
                let _ = rustix::io::write(&waiter.event, &1u64.to_ne_bytes());
            }
        }
        let waiting = state.queue.iter().filter(|waiter| !waiter.granted).count();
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}

impl State {
    /// The position of the waiter to be granted next.
    fn next_waiter(&self, share: usize) -> Option<usize> {
        let mut waiting = self.queue.iter().enumerate().filter(|(_, waiter)| !waiter.granted);
        let first = waiting.clone().next();
        let within = waiting.find(|(_, waiter)| waiter.wanted + waiter.reserved <= share);
        within.or(first).map(|(place, _)| place)
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.number == number)
    }
}

/// What a connection holds of the pool, and its place in the queue. Dropping it frees both.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pool: &'a Pool,
    number: u64,
    bytes: usize,
    /// The connection is in the queue.
    queued: bool,
    event: Arc<OwnedFd>,
}

impl<'a> Reservation<'a> {
    /// An empty one.
    ///
    /// # Errors
    /// The host has no eventfd left.
    pub(super) fn new(pool: &'a Pool) -> Result<Self, Errno> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut state = pool.state();
        let number = state.next;
        state.next += 1;
        state.connections += 1;
        Ok(Self { pool, number, bytes: 0, queued: false, event })
    }

    /// Bytes that are held.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Readable when what was wanted has been granted.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Make [`event`](Self::event) unreadable.
    pub(super) fn acknowledge(&self) {
        // Fails only where it is unreadable already.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Set the reservation to `bytes`. False: too little is left, or others have waited longer. Then the connection is in the queue for
    /// this amount, which replaces the amount that it waited for before.
    pub(super) fn want(&mut self, bytes: usize) -> bool {
        let mut state = self.pool.state();
        self.take_grant(&mut state);
        let Some(wanted) = bytes.checked_sub(self.bytes).filter(|wanted| *wanted > 0) else {
            self.dequeue(&mut state);
            self.shrink_to(bytes, &mut state);
            self.pool.grant(&mut state, self.number);
            return true;
        };
        match state.place(self.number).and_then(|place| state.queue.get_mut(place)) {
            Some(waiter) => waiter.wanted = wanted,
            None => state.queue.push_back(Waiter {
                number: self.number,
                wanted,
                reserved: self.bytes,
                granted: false,
                event: Arc::clone(&self.event),
            }),
        }
        self.queued = true;
        self.pool.grant(&mut state, self.number);
        self.take_grant(&mut state);
        !self.queued
    }

    /// Reduce the reservation to `bytes`, if it is larger. A connection in the queue stays there.
    pub(super) fn reduce(&mut self, bytes: usize) {
        let mut state = self.pool.state();
        self.shrink_to(bytes, &mut state);
        self.pool.grant(&mut state, self.number);
    }

    /// Leave the queue. A grant that was not taken is freed.
    #[inline]
    pub(super) fn withdraw(&mut self) {
        if self.queued {
            self.withdraw_now();
        }
    }

    #[cold]
    fn withdraw_now(&mut self) {
        let mut state = self.pool.state();
        self.dequeue(&mut state);
        self.pool.grant(&mut state, self.number);
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

    /// Add what was granted meanwhile.
    fn take_grant(&mut self, state: &mut State) {
        let place = state.place(self.number).filter(|_| self.queued);
        let granted = place.filter(|place| state.queue.get(*place).is_some_and(|waiter| waiter.granted));
        if let Some(waiter) = granted.and_then(|place| state.queue.remove(place)) {
            self.bytes += waiter.wanted;
            self.queued = false;
        }
    }

    /// Leave the queue. The caller grants what that frees.
    fn dequeue(&mut self, state: &mut State) {
        if let Some(waiter) = state.place(self.number).and_then(|place| state.queue.remove(place))
            && waiter.granted
        {
            state.left += waiter.wanted;
        }
        self.queued = false;
    }

    fn shrink_to(&mut self, bytes: usize, state: &mut State) {
        state.left += self.bytes.saturating_sub(bytes);
        self.bytes = self.bytes.min(bytes);
        if let Some(waiter) = state.place(self.number).and_then(|place| state.queue.get_mut(place)) {
            waiter.reserved = self.bytes;
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        self.dequeue(&mut state);
        self.shrink_to(0, &mut state);
        // With one connection fewer, each share is larger.
        state.connections -= 1;
        self.pool.grant(&mut state, self.number);
    }
}

#[cfg(test)]
mod tests;
