//! The I/O path of a batch: from the outgoing mailboxes to the disks, then into the incoming mailboxes, with one decision to interrupt.
//!
//! The bus-master bit of the command register does not gate accesses to memory: Linux's driver never sets it (it does not call
//! `pci_set_master`), and works with the board even if firmware has not set it.

use std::ops::Range;

use vm_memory::GuestAddressSpace;

use super::ccb::{Parsed, Pending, Request};
use super::command::Protocol;
use super::interrupts::Causes;
use super::mailbox::{Incoming, Outgoing};
use super::spec::{Ccb, action, adapter_status, completion};
use super::{BusLogic, has_target};
use crate::dma::{Footprint, overlap};
use crate::hba::{BATCH, EngineOf, Hba};
use crate::kind::AdapterKind;
use crate::scsi::{Address, Task, TaskEnd};
use crate::time::Time;

/// Parallel SCSI has no event for hot-plug, and drivers scan the bus only once: the guest's user has to rescan.
impl<A: GuestAddressSpace> Hba for BusLogic<A> {
    type Memory = A;
    type Pending = Pending;
    type Queued = Request;
    type Completion = Incoming;

    fn engine(&self) -> &EngineOf<Self> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut EngineOf<Self> {
        &mut self.engine
    }

    fn kind(&self) -> AdapterKind {
        AdapterKind::BusLogic
    }

    fn place(&self, address: Address) -> Option<Address> {
        has_target(address.target).then_some(address)
    }

    fn power_on(&mut self) {
        self.reset_adapter();
        self.protocol = Protocol::new();
        self.function.reset();
    }

    fn can_start(&self) -> bool {
        self.mailboxes.is_some()
    }

    /// A request that waits for a task number does not stop the others, so that an abort behind it is found.
    fn max_backlog(&self) -> usize {
        self.mailboxes.as_ref().map_or(0, |mailboxes| mailboxes.count() as usize)
    }

    fn take_batch(&mut self, now: Time) -> bool {
        let mut taken = false;
        for _ in 0..BATCH {
            if !self.loaded || !self.can_fetch() {
                break;
            }
            let Self { mailboxes: Some(mailboxes), engine, strict, .. } = self else { break };
            let Some(outgoing) = mailboxes.take(&mut engine.dma, *strict) else {
                // The driver rings again for mailboxes that it loads after this.
                self.loaded = false;
                break;
            };
            taken = true;
            self.take(outgoing, now);
        }
        taken
    }

    fn prepare_sleep(&mut self, _now: Time) -> bool {
        self.loaded && self.can_fetch()
    }

    fn start_queued(&mut self, request: Request, now: Time) {
        self.start(&request, now);
    }

    #[inline(always)]
    fn complete_task(&mut self, _id: u32, pending: &Pending, end: &TaskEnd, now: Time) {
        self.end(pending, end, now);
    }

    fn batch_posted(&mut self, now: Time) {
        if !self.resets.is_empty() {
            self.complete_target_resets(now);
        }
    }

    #[inline(always)]
    fn try_post(&mut self, incoming: &Incoming) -> bool {
        let Self { mailboxes: Some(mailboxes), engine, .. } = self else { return true };
        let free = mailboxes.has_free_slot(&mut engine.dma);
        if free {
            mailboxes.post(&mut engine.dma, *incoming);
        }
        free
    }

    /// Queue a completion, and interrupt: the guest frees no mailbox before an interrupt.
    #[cold]
    fn defer(&mut self, incoming: Incoming) {
        self.engine.deferred.push_back(incoming);
        let _ = self.engine.moderator.flush();
        self.signal();
    }

    /// Raise IMBL, and update the line.
    fn signal(&mut self) {
        self.change_interrupt(Causes::mailbox_in);
    }

    /// Data, CCBs and sense data.
    fn memory_in_use(&mut self) -> Footprint {
        let engine = &mut self.engine;
        let mut used = engine.in_flight.footprint(&mut engine.dma, |pending| pending.sense_address.into())
            | engine.in_flight.footprint(&mut engine.dma, |pending| pending.ccb.into());
        for (_, pending) in &self.resets {
            used |= engine.dma.region_of(pending.ccb.into());
        }
        used
    }

    fn has_queue_in(&self, ranges: &[Range<u64>]) -> bool {
        let Some(mailboxes) = &self.mailboxes else { return false };
        let area = mailboxes.area();
        ranges.iter().any(|range| overlap(range, area.start, area.end - area.start))
    }
}

impl<A: GuestAddressSpace> BusLogic<A> {
    #[inline]
    fn take(&mut self, outgoing: Outgoing, now: Time) {
        if outgoing.action == action::ABORT {
            return self.abort(outgoing.ccb, now);
        }
        self.engine.stats.requests += 1;
        match outgoing.action {
            action::START => self.take_ccb(outgoing.ccb, now),
            _ => self.refuse(outgoing.ccb, completion::ERROR, adapter_status::INVALID_ACTION, now),
        }
    }

    #[inline]
    fn take_ccb(&mut self, address: u32, now: Time) {
        // One copy: the guest can change its memory at any time.
        let Ok(ccb) = self.engine.dma.read::<Ccb>(address.into()) else {
            return self.refuse(address, completion::INVALID_CCB, adapter_status::SOFTWARE_ERROR, now);
        };
        match Parsed::of(address, &ccb, self.extended) {
            Ok(Parsed::Command(request)) if self.engine.admits(request.address) => self.start(&request, now),
            Ok(Parsed::Command(request)) => self.engine.backlog.push(request.address, request),
            Ok(Parsed::ResetTarget(target, pending)) => self.reset_target(target, pending, now),
            Err((status, pending)) => self.fail(&pending, status, now),
        }
    }

    /// Hand a request to its unit.
    #[inline]
    fn start(&mut self, request: &Request, now: Time) {
        self.bufs.clear();
        self.engine.dma.next_request();
        let len = match request.map_data(&mut self.engine.dma, &mut self.bufs) {
            Ok(len) => len,
            Err(status) => return self.fail(&request.pending, status, now),
        };
        let pending = request.pending.with_data(len);
        let task = Task {
            id: 0,
            address: request.address,
            cdb: request.cdb(),
            attribute: request.attribute,
            direction: request.direction,
            bufs: &self.bufs,
            len: len.into(),
        };
        if let Err(end) = self.engine.submit(task, || pending) {
            self.end(&pending, &end, now);
        }
    }

    #[inline]
    pub(super) fn end(&mut self, pending: &Pending, end: &TaskEnd, now: Time) {
        let incoming = pending.ended(end, &mut self.engine.dma);
        self.post_incoming(incoming, now);
    }

    /// Complete a CCB with an adapter status.
    #[cold]
    pub(super) fn fail(&mut self, pending: &Pending, status: u8, now: Time) {
        let incoming = pending.failed(status, &mut self.engine.dma);
        self.post_incoming(incoming, now);
    }

    /// Post an error for an address without a usable CCB: only the mailbox is written.
    #[cold]
    pub(super) fn refuse(&mut self, ccb: u32, code: u8, adapter_status: u8, now: Time) {
        self.post_incoming(Incoming { ccb, adapter_status, target_status: 0, code }, now);
    }

    /// Load the next incoming mailbox, or queue the completion until that mailbox is free.
    #[inline]
    pub(super) fn post_incoming(&mut self, incoming: Incoming, now: Time) {
        self.engine.stats.errors += u64::from(incoming.code != completion::GOOD);
        self.post(incoming, now);
    }

    /// Change the interrupt register, and update the line.
    pub(super) fn change_interrupt(&mut self, change: impl FnOnce(&mut Causes)) {
        change(&mut self.causes);
        let asserted = self.function.set_line(self.causes.asserted());
        self.engine.stats.interrupts += u64::from(asserted);
    }
}
