//! Rings that have a thread of their own.

use std::io;
use std::time::Duration;

use vm_memory::GuestAddressSpace;

use super::rings::{Front, Requests, Rings};
use crate::device::Sleep;
use crate::event_loop::{EventLoop, Polling};
use crate::time::Time;
use crate::worker::Serve;

/// Rings, and the events that their thread ([`Worker`](crate::worker::Worker)) waits for: the disks', and the queues' notifications, which
/// the owner adds as [`Event::Doorbell`](crate::event_loop::Event::Doorbell).
pub struct RingThread<A: GuestAddressSpace, F, R> {
    /// The rings.
    pub rings: Rings<A, F, R>,
    /// The events.
    pub events: EventLoop,
    polling: Polling,
}

impl<A: GuestAddressSpace, F: Front, R: Requests> RingThread<A, F, R> {
    /// With the disks' events. The thread [polls](Polling) the rings for up to `poll` before it sleeps; 0: it does not poll.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(rings: Rings<A, F, R>, poll: Duration) -> io::Result<Self> {
        let mut events = EventLoop::new()?;
        events.add_completions(&rings.events())?;
        Ok(Self { rings, events, polling: Polling::new(poll) })
    }
}

impl<A: GuestAddressSpace, F: Front, R: Requests> Serve for RingThread<A, F, R> {
    fn events(&mut self) -> &mut EventLoop {
        &mut self.events
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if self.polling.goes_on(|| self.rings.stats(), now) {
            Sleep::No
        } else {
            self.rings.before_sleep(now)
        }
    }

    fn has_slept(&mut self, now: Time) {
        self.polling.has_slept(now);
    }

    fn on_doorbell(&mut self, _index: u32) {
        self.rings.stats.doorbells += 1;
    }

    fn serve(&mut self, now: Time) {
        self.rings.service(now);
    }
}
