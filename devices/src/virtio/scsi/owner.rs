//! The contract with the owner.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use vm_memory::GuestAddressSpace;

use super::super::pci::Event;
use super::super::queue::Broken;
use super::VirtioScsi;
use crate::device::{AccessKind, Bar, Doorbell, HotPlug, IoDevice, PciDevice, Sleep, Stats};
use crate::moderation::{Coalescing, ModerationState};
use crate::time::Time;

impl<A> PciDevice for VirtioScsi<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.transport.config_read(offset, data, self.host.config());
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let event = self.transport.config_write(offset, data, &self.dma.view());
        // Configuration accesses carry no time. Work that they start is done before the thread sleeps.
        self.on_event(event, Time::default());
    }

    fn bars(&self) -> Vec<Bar> {
        self.transport.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], now: Time) {
        // A driver polls the status until the reset is complete.
        self.finish_resets(now);
        self.transport.bar_read(bar, offset, data, self.host.config());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        let event = self.transport.bar_write(bar, offset, data, &self.dma.view());
        self.on_event(event, now);
        if self.more {
            self.service(now);
        }
    }

    /// A read of the status completes a reset that waits for the disks.
    fn access_kind(&self, _bar: u8, _offset: u64, write: Option<&[u8]>) -> AccessKind {
        match write {
            None if !self.transport.any_resetting() => AccessKind::Register,
            _ => AccessKind::Command,
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        self.transport.doorbells()
    }
}

impl<A> IoDevice for VirtioScsi<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.stats.doorbells += 1;
        self.service(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.host.events()
    }

    fn on_completions(&mut self, now: Time) {
        let completed = self.stats.completions;
        self.service(now);
        if self.stats.completions == completed {
            self.host.clear_late_events();
        }
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if self.more || self.host.fail_lost() {
            return Sleep::No;
        }
        if self.transport.live() && !self.rings_refused {
            let memory = self.dma.view();
            for index in 0..self.transport.queues().len() {
                if !self.wants(index) {
                    continue;
                }
                let queue = self.transport.queues().get_mut(index).filter(|queue| queue.active());
                match queue.map(|queue| queue.arm(&memory, now)) {
                    Some(Ok(true)) => {
                        self.more = true;
                        return Sleep::No;
                    }
                    Some(Err(Broken)) => self.transport.needs_reset(),
                    _ => {}
                }
            }
        }
        self.transport.deadline().map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, now: Time) {
        self.on_event(Event::Reset, now);
        self.drain(now);
        self.transport.power_on();
    }

    fn quiesce(&mut self, now: Time) {
        self.drain(now);
        let memory = self.dma.view();
        self.transport.flush();
        self.complete(&memory, now);
        // Requests that were taken from the rings complete, too.
        while self.transport.live() && self.start_backlog(&memory) {
            self.drain(now);
            self.complete(&memory, now);
        }
        self.dma.release();
    }

    fn uses_memory(&mut self, ranges: &[Range<u64>], now: Time) -> bool {
        self.finish_resets(now);
        let memory = self.dma.view();
        let before = self.stats.completions;
        self.complete(&memory, now);
        // Requests that waited for the completed ones can start, and no further event will announce that.
        self.more |= self.stats.completions != before;
        // The completion of a request writes to its ring.
        let in_rings = self.transport.live() && self.has_rings_in(ranges, |queue| queue.in_flight > 0);
        in_rings || self.memory_in_use().meets(self.dma.users_of(ranges))
    }

    fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        self.dma.refuse(ranges);
        // Further requests would keep the rings in use.
        self.rings_refused |= self.has_rings_in(ranges, |_| true);
    }

    fn memory_replaced(&mut self, _now: Time) {
        let in_use = self.memory_in_use();
        self.dma.replaced(in_use);
        self.more |= std::mem::take(&mut self.rings_refused);
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.transport.set_coalescing(coalescing);
        let memory = self.dma.view();
        if self.transport.bus_master() {
            self.transport.end_batch(&memory, Time::default());
        }
    }

    fn moderation(&self) -> Vec<ModerationState> {
        self.transport.moderation()
    }

    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        Some(self)
    }

    fn refresh(&mut self, now: Time) {
        self.check_capacities(now);
    }

    fn stats(&self) -> Stats {
        let stats = Stats { interrupts: self.transport.interrupts(), ..self.stats };
        stats.with(&self.host.queue_stats())
    }
}
