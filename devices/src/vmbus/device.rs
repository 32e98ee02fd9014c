//! The contract with the owner.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use vm_memory::GuestAddressSpace;

use super::Vmbus;
use super::spec::{
    HV_MESSAGE_PAYLOAD_BYTE_COUNT, HV_MESSAGE_TYPE_VMBUS, VMBUS_MESSAGE_CONNECTION_ID,
    VMBUS_MESSAGE_CONNECTION_ID_4,
};
use super::synic::{HypercallStatus, VmbusDevice};
use crate::device::{HotPlug, IoDevice, Sleep, Stats};
use crate::moderation::{Coalescing, ModerationState};
use crate::time::Time;

impl<A> VmbusDevice for Vmbus<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn on_message(&mut self, connection: u32, kind: u32, payload: &[u8], now: Time) -> HypercallStatus {
        match connection {
            VMBUS_MESSAGE_CONNECTION_ID | VMBUS_MESSAGE_CONNECTION_ID_4 => {}
            _ => return HypercallStatus::InvalidConnectionId,
        }
        if kind != HV_MESSAGE_TYPE_VMBUS || payload.len() > HV_MESSAGE_PAYLOAD_BYTE_COUNT {
            return HypercallStatus::InvalidHypercallInput;
        }
        self.on_request(payload, now)
    }

    fn on_end_of_message(&mut self, vp: u32, _now: Time) {
        self.outbox.on_end_of_message(&mut *self.signals.synic, vp);
    }

    fn connections(&self) -> &[u32] {
        &self.connections
    }
}

impl<A> IoDevice for Vmbus<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.stats.doorbells += 1;
        self.service(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.storvsc.bus().events()
    }

    fn on_completions(&mut self, now: Time) {
        let completed = self.stats.completions;
        self.service(now);
        if self.stats.completions == completed {
            self.storvsc.bus_mut().clear_late_events();
        }
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        let mut more = self.more | self.storvsc.bus_mut().fail_lost();
        let blocked = !self.storvsc.can_take();
        let mut first: Option<Time> = None;
        for index in 0..self.channels.len() {
            let channel = &mut self.channels[index];
            let Some(duplex) = &mut channel.duplex else { continue };
            match duplex.before_sleep(channel.requests, blocked, now) {
                Ok(found) => more |= found,
                Err(broken) => {
                    self.break_channel(index, broken);
                    continue;
                }
            }
            first = duplex.deadline(now).into_iter().chain(first).min();
        }
        if more {
            return Sleep::No;
        }
        first.map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, _now: Time) {
        self.power_on();
    }

    fn quiesce(&mut self, now: Time) {
        self.storvsc.bus_mut().drain();
        self.complete(now);
        // Requests that were taken from the rings complete, too.
        while !self.storvsc.backlog_is_empty() && self.start_backlog(now) {
            self.storvsc.bus_mut().drain();
            self.complete(now);
        }
        for duplex in self.channels.iter_mut().filter_map(|channel| channel.duplex.as_mut()) {
            duplex.flush(&mut self.signals);
        }
        self.dma.release();
    }

    fn uses_memory(&mut self, ranges: &[Range<u64>], now: Time) -> bool {
        let before = self.storvsc.in_flight();
        self.complete(now);
        // Requests in the rings or the backlog may get the freed task numbers, and no event reports that.
        self.more |= self.storvsc.in_flight() < before;
        self.storvsc.footprint(&mut self.dma).meets(self.dma.users_of(ranges))
    }

    fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        self.dma.refuse(ranges);
    }

    fn memory_replaced(&mut self, _now: Time) {
        let in_use = self.storvsc.footprint(&mut self.dma);
        self.dma.replaced(in_use);
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.coalescing = coalescing;
        for duplex in self.channels.iter_mut().filter_map(|channel| channel.duplex.as_mut()) {
            duplex.set_coalescing(coalescing, &mut self.signals);
        }
    }

    fn moderation(&self) -> Vec<ModerationState> {
        let open = self.channels.iter().filter_map(|channel| channel.duplex.as_ref());
        open.map(|duplex| duplex.moderation()).collect()
    }

    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        Some(self)
    }

    fn refresh(&mut self, _now: Time) {
        self.storvsc.bus_mut().refresh();
    }

    fn stats(&self) -> Stats {
        let counts = self.storvsc.counts();
        let stats = Stats {
            requests: counts.requests,
            errors: counts.errors,
            interrupts: self.signals.sent,
            ..self.stats
        };
        stats.with(&self.storvsc.queue_stats())
    }
}
