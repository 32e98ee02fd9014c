//! A batch: requests are taken from the rings and started, completions are posted, interrupts decided.

use std::ops::Range;

use vm_memory::GuestAddressSpace;

use super::super::pci::Event;
use super::super::queue::{Broken, Virtqueue};
use super::super::spec::DeviceStatus;
use super::VirtioScsi;
use super::answer::Answered;
use super::spec::REQUEST_QUEUES;
use crate::dma::{Footprint, View};
use crate::pci::BusMaster;
use crate::time::Time;

/// Maximum number of requests taken from a queue before the next queue is served.
const BATCH: usize = 128;

/// Maximum number of rounds over all queues in one call.
const MAX_ROUNDS: usize = 16;

impl<A: GuestAddressSpace> VirtioScsi<A> {
    /// Complete requests that have ended, and take requests that wait.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        self.finish_resets(now);
        if self.transport.resetting() {
            return;
        }
        let memory = self.dma.view();
        for queue in self.transport.queues() {
            queue.note_waiting(&memory, now);
        }
        self.complete(&memory, now);
        for _ in 0..MAX_ROUNDS {
            let fetched = self.fetch(&memory);
            let served = self.serve(&memory);
            if !fetched && !served {
                return;
            }
            self.host.submit();
            self.complete(&memory, now);
        }
        self.more = true;
    }

    /// Take a batch from each request queue. False: nothing was taken.
    fn fetch(&mut self, memory: &View<A::T>) -> bool {
        if self.rings_refused {
            return false;
        }
        let count = self.transport.queues().len() - REQUEST_QUEUES;
        let mut any = false;
        let first = self.first_queue;
        for index in (0..count).map(|n| REQUEST_QUEUES + (first + n) % count) {
            any |= self.fetch_queue(index, memory);
        }
        // Round robin: the free slots may not suffice for all queues.
        self.first_queue = (self.first_queue + 1) % count;
        any
    }

    fn fetch_queue(&mut self, index: usize, memory: &View<A::T>) -> bool {
        let free = self.host.free_slots().min(BATCH);
        if free == 0 || !self.transport.live() {
            return false;
        }
        let Some(queue) = self.transport.queues().get_mut(index).filter(|queue| queue.active()) else {
            return false;
        };
        let mut count = 0;
        let taken = queue.take(memory).and_then(|mut chains| {
            while count < free as u32
                && let Some(chain) = chains.next()
            {
                self.host.start(index, chain, &mut self.dma)?;
                count += 1;
            }
            Ok(())
        });
        self.stats.requests += u64::from(count);
        self.transport.taken(index, count);
        if taken.is_err() {
            self.transport.needs_reset();
        }
        count > 0
    }

    /// Serve the other queues. False: nothing was done.
    fn serve(&mut self, memory: &View<A::T>) -> bool {
        if !self.transport.live() {
            return false;
        }
        let served = self.host.serve(&mut self.transport, &mut self.dma, memory);
        served.unwrap_or_else(|Broken| {
            self.transport.needs_reset();
            false
        })
    }

    /// Start chains that were taken but had to wait. False: there was none.
    pub(super) fn start_backlog(&mut self, memory: &View<A::T>) -> bool {
        let started = self.host.start_backlog(&mut self.transport, &mut self.dma, memory);
        started.unwrap_or_else(|Broken| {
            self.transport.needs_reset();
            false
        })
    }

    /// Post the completions of requests that have ended, and decide whether to interrupt.
    pub(super) fn complete(&mut self, memory: &View<A::T>, now: Time) {
        let ended = self.host.reap();
        if !self.transport.bus_master() || self.transport.resetting() {
            return;
        }
        if ended {
            for queue in self.transport.queues().iter_mut().skip(REQUEST_QUEUES) {
                queue.count_waiting(memory);
            }
            while let Some(answered) = self.host.answer(&mut self.dma) {
                self.post(&answered, memory, now);
            }
        }
        self.transport.end_batch(memory, now);
    }

    #[inline(always)]
    fn post(&mut self, answered: &Answered, memory: &View<A::T>, now: Time) {
        let Answered { queue, head, written, good } = *answered;
        let Some(written) = written else { return self.transport.needs_reset() };
        if queue >= REQUEST_QUEUES {
            self.stats.completions += 1;
            self.stats.errors += u64::from(!good);
        } else if let Some(queue) = self.transport.queues().get_mut(queue) {
            // Control responses and events are rare, and the driver waits for them.
            queue.signal.force();
        }
        self.transport.complete(queue, (head, written), memory, now);
    }

    /// Wait for all requests in flight, which completes pending resets.
    pub(super) fn drain(&mut self, now: Time) {
        self.host.drain();
        self.finish_resets(now);
    }

    /// Complete pending resets if the disks have completed what was in flight. Until then the disks may access guest memory, and
    /// the registers show the reset as pending.
    #[inline]
    pub(super) fn finish_resets(&mut self, now: Time) {
        if self.transport.any_resetting() {
            self.poll_resets(now);
        }
    }

    #[cold]
    fn poll_resets(&mut self, now: Time) {
        if self.transport.resetting() {
            if self.host.finish_reset(None) {
                // The requests that the reset has dropped are over, too.
                self.stats.completions = self.stats.requests;
                self.transport.reset();
                self.dma.release();
                self.rings_refused = false;
                self.more = false;
            }
            return;
        }
        // Completions of other queues are posted as usual.
        let memory = self.dma.view();
        self.complete(&memory, now);
        for queue in self.transport.resetting_queues() {
            if self.host.finish_reset(Some(queue)) {
                if queue >= REQUEST_QUEUES
                    && let Some(queue) = self.transport.queues().get(queue)
                {
                    self.stats.completions += u64::from(queue.in_flight);
                }
                self.transport.reset_queue(queue);
                self.more = true;
            }
        }
    }

    /// Whether a request queue for which `wanted` is true has a ring in one of these ranges.
    pub(super) fn has_rings_in(
        &mut self,
        ranges: &[Range<u64>],
        wanted: impl Fn(&Virtqueue) -> bool,
    ) -> bool {
        let queues = self.transport.queues().iter().skip(REQUEST_QUEUES);
        queues.filter(|queue| wanted(queue)).any(|queue| ranges.iter().any(|range| queue.has_ring_in(range)))
    }

    /// Guest memory that requests use. Without bus mastering there is none: the disks have completed all requests, and only their
    /// completions are not posted yet.
    pub(super) fn memory_in_use(&mut self) -> Footprint {
        if self.transport.bus_master() { self.host.footprint(&mut self.dma) } else { Footprint::NONE }
    }

    pub(super) fn on_event(&mut self, event: Event, now: Time) {
        match event {
            Event::None | Event::BusMaster(BusMaster::Same) => {}
            // No access to memory from here on: completions are posted when bus mastering is enabled again.
            Event::BusMaster(BusMaster::Off) => self.drain(now),
            Event::BusMaster(BusMaster::On) => self.more = true,
            Event::Reset => {
                tracing::debug!("virtio device reset");
                self.host.begin_reset(None);
                self.transport.begin_reset();
                self.more = false;
                self.finish_resets(now);
            }
            Event::Status(added) => {
                if added.contains(DeviceStatus::FEATURES_OK) {
                    let features = self.transport.accepted();
                    tracing::debug!(features = format_args!("{features:#x}"), "virtio features accepted");
                    self.host.accept(features);
                }
                self.more |= added.contains(DeviceStatus::DRIVER_OK);
            }
            Event::ResetQueue(queue) => {
                self.host.begin_reset(Some(queue));
                self.transport.begin_queue_reset(queue);
                self.finish_resets(now);
            }
            Event::Notify(_) => {
                self.stats.doorbells += 1;
                self.more = true;
            }
            Event::Config { offset, value, len } => self.host.write_config(offset, value, len),
        }
    }

    /// Whether a further chain of a queue could be taken. If not, the next completion makes the device fetch.
    pub(super) fn wants(&self, queue: usize) -> bool {
        if queue < REQUEST_QUEUES { self.host.wants(queue) } else { self.host.free_slots() > 0 }
    }
}
