//! The rings over which a driver spreads its requests: request `tag` goes into ring `tag` modulo their number.

use super::pci::Transport;
use super::queue::{Piece, Shape, Virtqueue};
use super::{Options, Step, failed};
use crate::adapter::KickPolicy;
use crate::platform::Platform;
use crate::workload::Fault;

/// Rings for requests at the most.
pub const MAX_QUEUES: usize = 16;

/// The rings for requests.
#[derive(Debug)]
pub struct Queues {
    /// The first of them among the device's queues.
    first: u16,
    count: u32,
    rings: [Option<Virtqueue>; MAX_QUEUES],
    /// Requests in each ring at the most.
    each: u32,
    kick: KickPolicy,
    /// The ring that is looked into next.
    turn: usize,
    /// Interrupts come by the line.
    line: bool,
}

impl Queues {
    /// `count` rings, the device's queues from `first`, for requests of `pieces` pieces at the most. Called between
    /// [`Transport::start`] and [`Transport::go`].
    pub fn start<P: Platform>(
        platform: &mut P,
        transport: &mut Transport,
        options: &Options,
        (first, count): (u16, u16),
        pieces: u16,
    ) -> Result<Self, Fault> {
        let count = count.min(MAX_QUEUES as u16);
        let mut queues = Self {
            first,
            count: count.into(),
            rings: [const { None }; MAX_QUEUES],
            each: u32::MAX,
            kick: options.kick,
            turn: 0,
            line: transport.has_line(),
        };
        for (index, ring) in (first..).zip(queues.rings.iter_mut().take(count.into())) {
            let size = transport.queue_size(platform, index, options.queue_size)?;
            let indirect = transport.indirect();
            // A chain may not be longer than the ring, wherever it lies (2.7.5.3.1).
            let capacity = if indirect { u32::from(size) } else { u32::from(size / pieces) };
            if capacity == 0 || pieces > size {
                return Err(failed(Step::Options));
            }
            // One more than are in flight: a driver's own request may have a table.
            let requests = capacity + 1;
            let shape = Shape { size, requests, pieces, indirect, event_index: transport.event_index() };
            *ring = Some(transport.make_queue(platform, index, shape)?);
            queues.each = queues.each.min(capacity);
        }
        if count == 0 { Err(failed(Step::Queue)) } else { Ok(queues) }
    }

    /// The rings again, after the transport was started again.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart<P: Platform>(&mut self, platform: &mut P, transport: &mut Transport) -> Result<(), Fault> {
        for (index, ring) in (self.first..).zip(self.rings.iter_mut().flatten()) {
            ring.reset();
            transport.enable_queue(platform, index, ring)?;
        }
        Ok(())
    }

    /// Reset the ring with this number and take it into use again; its requests are gone.
    ///
    /// # Errors
    /// As [`Transport::reset_queue`] and [`Transport::enable_queue`].
    pub fn reset_ring<P: Platform>(
        &mut self,
        platform: &mut P,
        transport: &mut Transport,
        index: u16,
    ) -> Result<(), Fault> {
        let Some(Some(ring)) = self.rings.get_mut(usize::from(index)) else {
            return Err(failed(Step::Queue));
        };
        transport.reset_queue(platform, self.first + index)?;
        ring.reset();
        transport.enable_queue(platform, self.first + index, ring)
    }

    /// Requests in flight at the most: their tags are below this, and the driver's own request has it as its tag.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.count * self.each
    }

    /// Rings in use.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// A ring, for tests that spoil it.
    #[must_use]
    pub fn ring(&self, index: usize) -> Option<&Virtqueue> {
        self.rings.get(index)?.as_ref()
    }

    /// Put a request in; `false`: the queue is full.
    #[inline(always)]
    pub fn add<P: Platform>(
        &mut self,
        platform: &mut P,
        transport: &mut Transport,
        tag: u32,
        pieces: impl Iterator<Item = Piece> + Clone,
    ) -> bool {
        let (index, number) = if self.count == 1 { (0, tag) } else { (tag % self.count, tag / self.count) };
        let Some(Some(ring)) = self.rings.get_mut(index as usize) else { return false };
        let added = ring.add(number, pieces);
        if added && self.kick == KickPolicy::PerRequest && ring.publish() {
            transport.notify(platform, self.first + index as u16, ring);
        }
        added
    }

    /// Show the device all that was put in.
    #[inline]
    pub fn kick<P: Platform>(&mut self, platform: &mut P, transport: &mut Transport) {
        for (index, ring) in (self.first..).zip(self.rings.iter_mut().flatten()) {
            if ring.pending() && ring.publish() {
                transport.notify(platform, index, ring);
            }
        }
    }

    /// An interrupt arrived.
    #[inline]
    pub fn interrupted<P: Platform>(&mut self, platform: &mut P, transport: &mut Transport) {
        if self.line {
            transport.read_isr(platform);
        }
        self.rings.iter_mut().flatten().for_each(Virtqueue::hold);
    }

    /// The next request that came back: its tag, `u32::MAX` where it was none of ours, and the bytes written.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(u32, u32)> {
        if self.count == 1 {
            let used = self.rings.first_mut()?.as_mut()?.take()?;
            return Some((used.number.unwrap_or(u32::MAX), used.len));
        }
        let count = self.count as usize;
        for _ in 0..count {
            if let Some(used) = self.rings.get_mut(self.turn)?.as_mut()?.take() {
                let tag = used.number.map_or(u32::MAX, |number| number * self.count + self.turn as u32);
                return Some((tag, used.len));
            }
            self.turn = if self.turn + 1 == count { 0 } else { self.turn + 1 };
        }
        None
    }
}
