//! Rings that have a thread of their own.

use std::io;

use vm_memory::GuestAddressSpace;

use super::rings::{Front, Requests, Rings};
use crate::device::Sleep;
use crate::event_loop::EventLoop;
use crate::time::Time;
use crate::worker::Serve;

/// Rings, and the events that their thread ([`Worker`](crate::worker::Worker)) waits for: the disks', and the queues' notifications, which
/// the owner adds as [`Event::Doorbell`](crate::event_loop::Event::Doorbell).
pub struct RingThread<A: GuestAddressSpace, F, R> {
    /// The rings.
    pub rings: Rings<A, F, R>,
    /// The events.
    pub events: EventLoop,
}

impl<A: GuestAddressSpace, F: Front, R: Requests> RingThread<A, F, R> {
    /// With the disks' events.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(rings: Rings<A, F, R>) -> io::Result<Self> {
        let mut events = EventLoop::new()?;
        events.add_completions(&rings.events())?;
        Ok(Self { rings, events })
    }
}

impl<A: GuestAddressSpace, F: Front, R: Requests> Serve for RingThread<A, F, R> {
    fn events(&mut self) -> &mut EventLoop {
        &mut self.events
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        self.rings.before_sleep(now)
    }

    fn on_doorbell(&mut self, _index: u32) {
        self.rings.stats.doorbells += 1;
    }

    fn serve(&mut self, now: Time) {
        self.rings.service(now);
    }
}
