//! The queues that one thread serves, and the thread's loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_disk_formats::ThreadKind;
use vm_memory::GuestAddressSpace;

use super::super::super::queue::Broken;
use super::super::ring::{Ring, RingSetup};
use super::shared::Shared;
use crate::device::{Sleep, Stats};
use crate::event_loop::{Event, EventLoop, Interest};
use crate::moderation::Coalescing;
use crate::time::Time;
use crate::worker::{Serve, Worker};

/// A queue on its thread.
struct Queue<A: GuestAddressSpace> {
    /// Its number in the device.
    index: usize,
    ring: Ring<A>,
    doorbells: u64,
}

/// The queues of a thread.
pub(super) struct Queues<A: GuestAddressSpace> {
    queues: Vec<Queue<A>>,
    /// The device must not access memory: bus mastering is disabled.
    paused: bool,
    events: EventLoop,
    shared: Arc<Shared>,
}

/// Start thread number `thread` with these queues: their numbers, their rings, and the eventfds of their doorbells, which are never read.
pub(super) fn start<A>(
    thread: u16,
    rings: Vec<(usize, Ring<A>, BorrowedFd<'_>)>,
    shared: Arc<Shared>,
) -> io::Result<Worker<Queues<A>>>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    let mut events = EventLoop::new()?;
    for (place, (_, _, kick)) in (0..).zip(&rings) {
        events.add(kick, Event::Doorbell(place), Interest::Edge)?;
    }
    events.add_completions(&rings.iter().map(|(_, ring, _)| ring.event()).collect::<Vec<_>>())?;
    let queue = |(index, ring, _)| Queue { index, ring, doorbells: 0 };
    let queues = rings.into_iter().map(queue).collect();
    let queues = Queues { queues, paused: false, events, shared };
    queues.report();
    Worker::start(ThreadKind::AdapterQueue, format!("blk-queues-{thread}"), queues)
}

impl<A: GuestAddressSpace> Serve for Queues<A> {
    fn events(&mut self) -> &mut EventLoop {
        &mut self.events
    }

    /// Until the earliest deadline of the queues.
    fn before_sleep(&mut self, now: Time) -> Sleep {
        let mut until = None::<Time>;
        if self.paused {
            return Sleep::Forever;
        }
        for queue in &mut self.queues {
            match queue.ring.before_sleep(now, &mut ()) {
                Ok(Sleep::No) => return Sleep::No,
                Ok(Sleep::Until(time)) => until = Some(until.map_or(time, |other| other.min(time))),
                Ok(Sleep::Forever) => {}
                Err(Broken) => {
                    self.shared.signal(queue.index);
                    self.shared.broken();
                }
            }
        }
        until.map_or(Sleep::Forever, Sleep::Until)
    }

    fn on_doorbell(&mut self, index: u32) {
        if let Some(queue) = self.queues.get_mut(index as usize) {
            queue.doorbells += 1;
        }
    }

    fn serve(&mut self, now: Time) {
        let shared = &*self.shared;
        if self.paused {
            // After the first call nothing is in flight. But a disk's event may become readable later, and stays readable until the disk's
            // queue is reaped.
            self.drain();
            return;
        }
        for queue in &mut self.queues {
            let index = queue.index;
            if queue.ring.service(now, &mut (), || shared.signal(index)) == Err(Broken) {
                // Completions that were posted before are signalled, too.
                shared.signal(index);
                shared.broken();
            }
            queue.report(shared);
        }
    }
}

impl<A: GuestAddressSpace> Queues<A> {
    fn queue(&mut self, index: usize) -> Option<&mut Queue<A>> {
        self.queues.iter_mut().find(|queue| queue.index == index)
    }

    /// Start a queue's rings.
    ///
    /// # Errors
    /// [`Broken`] if the rings are not valid.
    pub(super) fn start(
        &mut self,
        index: usize,
        setup: &RingSetup,
        write_through: bool,
        capacity: u64,
    ) -> Result<(), Broken> {
        let queue = self.queue(index).ok_or(Broken)?;
        queue.ring.set_write_through(write_through);
        queue.ring.set_capacity(capacity);
        queue.ring.start(setup)
    }

    /// Wait for a queue's requests in flight, post their completions, and stop its rings. Returns the index of the next chain. `None`: the
    /// rings did not run.
    pub(super) fn stop(&mut self, index: usize) -> Option<u16> {
        let queue = self.queue(index)?;
        let stopped = queue.ring.stop(&mut ());
        if stopped.is_some_and(|(_, wanted)| wanted) {
            self.shared.signal(index);
        }
        stopped.map(|(next, _)| next)
    }

    /// Wait for a queue's requests in flight, post nothing, and stop its rings.
    pub(super) fn abandon(&mut self, index: usize) {
        if let Some(queue) = self.queue(index) {
            queue.ring.abandon();
        }
    }

    /// Stop accessing memory, except for the requests in flight; or resume.
    pub(super) const fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Wait for the requests in flight, and post nothing.
    pub(super) fn drain(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.ring.drain());
    }

    /// Release guest memory that the owner has removed. No request may be in flight.
    pub(super) fn release_memory(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.ring.release_memory());
    }

    /// Set the capacity of the disk in bytes.
    pub(super) fn set_capacity(&mut self, bytes: u64) {
        self.queues.iter_mut().for_each(|queue| queue.ring.set_capacity(bytes));
    }

    /// Whether writes must be on stable storage before they are completed.
    pub(super) fn set_write_through(&mut self, write_through: bool) {
        self.queues.iter_mut().for_each(|queue| queue.ring.set_write_through(write_through));
    }

    /// Change the interrupt moderation. After a job the thread serves its queues, and then sends the signals that were held back.
    pub(super) fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.queues.iter_mut().for_each(|queue| queue.ring.set_coalescing(coalescing));
        self.report();
    }

    fn report(&self) {
        self.queues.iter().for_each(|queue| queue.report(&self.shared));
    }
}

impl<A: GuestAddressSpace> Queue<A> {
    /// Publish what the queue has done, for other threads.
    fn report(&self, shared: &Shared) {
        if let Some(mut report) = shared.report(self.index) {
            report.stats = Stats { doorbells: self.doorbells, ..self.ring.stats() };
            report.moderation = Some(self.ring.moderation());
        }
    }
}
