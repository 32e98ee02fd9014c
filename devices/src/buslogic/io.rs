//! The I/O path of a batch: from the outgoing mailboxes to the disks, then into the incoming mailboxes, with one decision to interrupt.
//!
//! The bus-master bit of the command register does not gate accesses to memory: Linux's driver never sets it (it does not call
//! `pci_set_master`), and works with the board even if firmware has not set it.

use std::ops::Range;

use vm_memory::GuestAddressSpace;

use super::BusLogic;
use super::ccb::{Parsed, Pending, Request};
use super::interrupts::Causes;
use super::mailbox::{Incoming, Outgoing};
use super::spec::{Ccb, action, adapter_status, completion};
use crate::bus_adapter::work;
use crate::dma::{Footprint, overlap};
use crate::scsi::{Task, TaskEnd};
use crate::time::Time;

/// Mailboxes taken before the disks are kicked.
const BATCH: usize = 128;

impl<A: GuestAddressSpace> BusLogic<A> {
    /// Complete requests that have ended, and take requests from the mailboxes.
    pub(super) fn service(&mut self, now: Time) {
        self.poll_doorbell();
        self.more = false;
        self.retry_late();
        let more = work(self, |adapter| adapter.fetch(now), |adapter| adapter.complete(now));
        self.more |= more;
    }

    fn poll_doorbell(&mut self) {
        if std::mem::take(&mut self.rung) {
            self.stats.doorbells += 1;
            self.loaded = true;
        }
    }

    /// Whether another mailbox may be taken. While a completion waits for a free mailbox, none is: this bounds the memory for a guest that
    /// reads no completions. A request that waits for a task number does not stop this, so that an abort behind it is found.
    pub(super) fn can_fetch(&self) -> bool {
        let Some(mailboxes) = &self.mailboxes else { return false };
        self.loaded
            && self.late.is_empty()
            && !self.mailboxes_refused
            && self.backlog.len() < mailboxes.count() as usize
    }

    /// Take a batch of requests and hand it to the disks. False: nothing was taken.
    fn fetch(&mut self, now: Time) -> bool {
        let mut taken = !self.backlog.is_empty() && self.start_backlog(now);
        for _ in 0..BATCH {
            if !self.can_fetch() {
                break;
            }
            let Self { mailboxes: Some(mailboxes), dma, strict, .. } = self else { break };
            let Some(outgoing) = mailboxes.take(dma, *strict) else {
                // The driver rings again for mailboxes that it loads after this.
                self.loaded = false;
                break;
            };
            taken = true;
            self.take(outgoing, now);
        }
        if taken {
            self.bus.kick();
        }
        taken
    }

    #[inline]
    fn take(&mut self, outgoing: Outgoing, now: Time) {
        if outgoing.action == action::ABORT {
            return self.abort(outgoing.ccb, now);
        }
        self.stats.requests += 1;
        match outgoing.action {
            action::START => self.take_ccb(outgoing.ccb, now),
            _ => self.refuse(outgoing.ccb, completion::ERROR, adapter_status::INVALID_ACTION, now),
        }
    }

    #[inline]
    fn take_ccb(&mut self, address: u32, now: Time) {
        // One copy: the guest can change its memory at any time.
        let Ok(ccb) = self.dma.read::<Ccb>(address.into()) else {
            return self.refuse(address, completion::INVALID_CCB, adapter_status::SOFTWARE_ERROR, now);
        };
        match Parsed::of(address, &ccb, self.extended) {
            Ok(Parsed::Command(request)) => self.start_or_queue(&request, now),
            Ok(Parsed::ResetTarget(target, pending)) => self.reset_target(target, pending, now),
            Err((status, pending)) => self.fail(&pending, status, now),
        }
    }

    /// Start a request, or put it into the backlog until its unit may have a task number.
    #[inline]
    fn start_or_queue(&mut self, request: &Request, now: Time) {
        let free = self.in_flight.free_slots();
        if self.backlog.admits(&self.bus, request.address, free)
            && let Some(id) = self.in_flight.allocate()
        {
            self.start(id, request, now);
        } else {
            self.backlog.push(request.address, *request);
        }
    }

    /// Start requests of the backlog while there are task numbers. False: nothing was started.
    #[cold]
    pub(super) fn start_backlog(&mut self, now: Time) -> bool {
        let mut started = false;
        while let Some((id, request)) = self.backlog.next_task(&self.bus, &mut self.in_flight) {
            started = true;
            self.start(id, &request, now);
        }
        started
    }

    /// Hand a request to its unit.
    #[inline]
    fn start(&mut self, id: u32, request: &Request, now: Time) {
        self.bufs.clear();
        self.dma.begin();
        let len = match request.map_data(&mut self.dma, &mut self.bufs) {
            Ok(len) => len,
            Err(status) => {
                self.in_flight.release(id);
                return self.fail(&request.pending, status, now);
            }
        };
        let pending = request.pending.with_data(len);
        let task = Task {
            id,
            address: request.address,
            cdb: request.cdb(),
            attribute: request.attribute,
            direction: request.direction,
            bufs: &self.bufs,
            len: len.into(),
        };
        match self.bus.submit(&task) {
            None => self.in_flight.store(id, pending, self.dma.footprint()),
            Some(end) => {
                self.in_flight.release(id);
                self.end(&pending, &end, now);
            }
        }
    }

    /// Post completions, and decide whether to interrupt.
    pub(super) fn complete(&mut self, now: Time) {
        let mut ended = std::mem::take(&mut self.ended);
        self.bus.reap(&mut ended);
        self.more |= !ended.is_empty() && !self.backlog.is_empty();
        for &(id, ref end) in &ended {
            if let Some(pending) = self.in_flight.end(id) {
                self.end(&pending, end, now);
            }
        }
        ended.clear();
        self.ended = ended;
        if !self.resets.is_empty() {
            self.complete_target_resets(now);
        }
        if self.moderator.end_batch(now) {
            self.raise_mailbox_in();
        }
    }

    #[inline]
    pub(super) fn end(&mut self, pending: &Pending, end: &TaskEnd, now: Time) {
        let incoming = pending.ended(end, &mut self.dma);
        self.post(incoming, now);
    }

    /// Complete a CCB with an adapter status.
    #[cold]
    pub(super) fn fail(&mut self, pending: &Pending, status: u8, now: Time) {
        let incoming = pending.failed(status, &mut self.dma);
        self.post(incoming, now);
    }

    /// Post an error for an address without a usable CCB: only the mailbox is written.
    #[cold]
    pub(super) fn refuse(&mut self, ccb: u32, code: u8, adapter_status: u8, now: Time) {
        self.post(Incoming { ccb, adapter_status, target_status: 0, code }, now);
    }

    /// Load the next incoming mailbox, or queue the completion until that mailbox is free.
    #[inline]
    pub(super) fn post(&mut self, incoming: Incoming, now: Time) {
        self.stats.errors += u64::from(incoming.code != completion::GOOD);
        let Self { mailboxes: Some(mailboxes), dma, .. } = self else { return };
        if !self.late.is_empty() || !mailboxes.has_free_slot(dma) {
            return self.queue_late(incoming);
        }
        mailboxes.post(dma, incoming);
        self.stats.completions += 1;
        let cif = self.in_flight.count() + self.backlog.len() as u32;
        if self.moderator.completed(cif, now) {
            self.raise_mailbox_in();
        }
    }

    /// Queue a completion, and interrupt: the guest frees no mailbox before an interrupt.
    #[cold]
    fn queue_late(&mut self, incoming: Incoming) {
        self.late.push_back(incoming);
        let _ = self.moderator.flush();
        self.raise_mailbox_in();
    }

    /// Post completions that wait for free mailboxes.
    fn retry_late(&mut self) {
        self.retry.tried();
        let Self { mailboxes: Some(mailboxes), dma, late, stats, .. } = self else { return };
        let before = late.len();
        while !late.is_empty() && mailboxes.has_free_slot(dma) {
            let Some(incoming) = late.pop_front() else { break };
            mailboxes.post(dma, incoming);
            stats.completions += 1;
        }
        if late.len() < before {
            self.raise_mailbox_in();
        }
    }

    /// Requests that were taken from outgoing mailboxes and whose completions are not in incoming mailboxes yet.
    pub(super) fn unanswered(&self) -> u64 {
        let waiting = self.backlog.len() + self.resets.len() + self.late.len();
        u64::from(self.in_flight.count()) + waiting as u64
    }

    /// Guest memory that requests use: data, CCBs and sense data.
    pub(super) fn memory_in_use(&mut self) -> Footprint {
        let mut used = self.in_flight.footprint(&mut self.dma, |pending| pending.sense_address.into())
            | self.in_flight.footprint(&mut self.dma, |pending| pending.ccb.into());
        for (_, pending) in &self.resets {
            used |= self.dma.region_of(pending.ccb.into());
        }
        used
    }

    /// Whether mailboxes lie in one of these ranges.
    pub(super) fn has_mailboxes_in(&self, ranges: &[Range<u64>]) -> bool {
        let Some(mailboxes) = &self.mailboxes else { return false };
        let area = mailboxes.area();
        ranges.iter().any(|range| overlap(range, area.start, area.end - area.start))
    }

    /// Raise IMBL, and update the line.
    pub(super) fn raise_mailbox_in(&mut self) {
        self.change_interrupt(Causes::mailbox_in);
    }

    /// Change the interrupt register, and update the line.
    pub(super) fn change_interrupt(&mut self, change: impl FnOnce(&mut Causes)) {
        change(&mut self.causes);
        let asserted = self.function.set_line(self.causes.asserted());
        self.stats.interrupts += u64::from(asserted);
    }
}
