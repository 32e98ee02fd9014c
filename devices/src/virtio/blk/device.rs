//! The contract with the owner.

use std::os::fd::BorrowedFd;

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use super::super::pci::Event;
use super::super::spec::DeviceStatus;
use super::VirtioBlk;
use super::spec::{BlkFeatures, WRITEBACK};
use crate::{Bar, Coalescing, Doorbell, PciDevice, Sleep, Stats, Time};

impl<A: GuestAddressSpace> VirtioBlk<A> {
    fn on_event(&mut self, event: Event, now: Time) {
        match event {
            Event::None => {}
            Event::Reset => {
                self.forget(None, now);
                self.transport.reset();
                self.dma.release();
                self.config.writeback = self.writeback;
                self.more = false;
            }
            Event::Status(added) => {
                // 5.2.5.2: without flushes, nothing is kept in a cache.
                let flushes = self.transport.negotiated(BlkFeatures::FLUSH.bits());
                if added.contains(DeviceStatus::FEATURES_OK) && !flushes {
                    self.config.writeback = 0;
                }
                self.more |= added.contains(DeviceStatus::DRIVER_OK);
            }
            Event::ResetQueue(queue) => {
                self.forget(Some(queue), now);
                self.transport.reset_queue(queue);
                self.more = true;
            }
            Event::Notify(_) => {
                self.stats.doorbells += 1;
                self.more = true;
            }
            Event::Config { offset: WRITEBACK, value, len: 1 } => {
                if self.transport.negotiated(BlkFeatures::CONFIG_WCE.bits()) {
                    self.config.writeback = u8::from(value != 0);
                }
            }
            Event::Config { .. } => {}
        }
    }
}

impl<A> PciDevice for VirtioBlk<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.transport.config_read(offset, data, self.config.as_bytes());
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        let before = self.transport.bus_master();
        let event = self.transport.config_write(offset, data, &self.dma.view());
        // Nothing of this has a time of its own: what it starts is done before the thread sleeps.
        self.on_event(event, Time::default());
        match (before, self.transport.bus_master()) {
            // No access to memory from here on: wait for the disk, and show what ended when bus mastering is back.
            (true, false) => self.requests.drain(),
            (false, true) => self.more = true,
            _ => {}
        }
    }

    fn bars(&self) -> Vec<Bar> {
        self.transport.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        self.transport.bar_read(bar, offset, data, self.config.as_bytes());
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        let event = self.transport.bar_write(bar, offset, data, &self.dma.view());
        self.on_event(event, now);
        if self.more {
            self.service(now);
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        self.transport.doorbells()
    }

    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.stats.doorbells += 1;
        self.service(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.requests.disk().event()]
    }

    fn on_completions(&mut self, now: Time) {
        self.service(now);
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if self.more {
            return Sleep::No;
        }
        // Without room, completions make us look.
        if self.transport.live() && self.requests.room() > 0 {
            let memory = self.dma.view();
            for index in 0..self.transport.queues().len() {
                if self.transport.arm(index, &memory, now) {
                    self.more = true;
                    return Sleep::No;
                }
            }
        }
        self.transport.deadline().map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, now: Time) {
        self.on_event(Event::Reset, now);
        self.transport.power_on();
    }

    fn quiesce(&mut self, now: Time) {
        self.finish(now);
        self.dma.release();
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.transport.set_coalescing(coalescing);
        let memory = self.dma.view();
        if self.transport.bus_master() {
            self.transport.end_batch(&memory, Time::default());
        }
    }

    fn stats(&self) -> Stats {
        let queue = self.requests.disk().stats();
        Stats {
            interrupts: self.transport.interrupts(),
            submits: queue.submits,
            submit_ticks: queue.submit_ticks,
            ..self.stats
        }
    }
}
