//! The I/O path of a batch: from the request ring to the disks, then to the completion ring. The moderator decides after each completion
//! and at the end of the batch whether to interrupt.

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::kicks::Kicks;
use super::request::{Parsed, Pending, Request, failed, map_data, parse};
use super::rings::Rings;
use super::spec::{HostStatus, Interrupts, MSG_DEV_ADDED, MSG_DEV_REMOVED, RingCmpDesc};
use crate::dma::Footprint;
use crate::hba::{BATCH, EngineOf, Hba};
use crate::kind::AdapterKind;
use crate::scsi::{Address, Status, Task, TaskEnd};
use crate::time::Time;

impl<A: GuestAddressSpace> Hba for Pvscsi<A> {
    type Memory = A;
    type Pending = Pending;
    type Queued = Request;
    type Completion = RingCmpDesc;

    const SIGNALS_FULL_QUEUE: bool = true;

    fn engine(&self) -> &EngineOf<Self> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut EngineOf<Self> {
        &mut self.engine
    }

    fn kind(&self) -> AdapterKind {
        AdapterKind::Pvscsi
    }

    fn place(&self, address: Address) -> Option<Address> {
        (address.target < self.targets).then_some(address)
    }

    fn announce(&mut self, place: Address, attached: bool) {
        self.put_message(if attached { MSG_DEV_ADDED } else { MSG_DEV_REMOVED }, place);
    }

    fn power_on(&mut self) {
        self.adapter_reset();
        self.kicks = Kicks::new();
        self.bus_posts_writes = false;
        self.function.reset();
    }

    fn can_start(&self) -> bool {
        self.rings.is_some() && self.function.bus_master()
    }

    fn can_post(&self) -> bool {
        self.function.bus_master()
    }

    /// With a single unit, a request that cannot start waits in the ring.
    #[inline]
    fn max_backlog(&self) -> usize {
        let starts = self.engine.bus.reserved() > 0 || self.engine.in_flight.free_slots() > 0;
        self.rings.as_ref().filter(|_| starts).map_or(0, Rings::request_entries)
    }

    fn take_batch(&mut self, now: Time) -> bool {
        let can_fetch = self.can_fetch();
        let Some(rings) = &mut self.rings else { return false };
        if can_fetch {
            self.kicks.before_service(rings, now);
        }
        let count = rings.waiting().min(BATCH);
        self.requests_left = count > 0 && !can_fetch;
        if count == 0 || self.requests_left {
            return false;
        }
        self.kicks.before_take(rings, count, self.engine.in_flight.count(), now);
        let mut taken = 0;
        while taken < count && self.engine.backlog.len() < self.max_backlog() {
            self.take_request(now, |_, _| None);
            taken += 1;
        }
        self.publish_taken(taken);
        // Requests that came meanwhile, perhaps without a kick.
        if self.rings.as_ref().is_some_and(|rings| rings.waiting() > 0) {
            self.requests_left = !self.can_fetch();
            self.engine.has_work |= !self.requests_left;
        }
        taken > 0
    }

    fn prepare_sleep(&mut self, now: Time) -> bool {
        let can_fetch = self.can_fetch();
        let in_flight = self.engine.in_flight.count();
        self.requests_left && can_fetch
            || self.kicks.before_sleep(self.rings.as_mut(), in_flight, can_fetch, now)
    }

    fn waiting(&self) -> u32 {
        self.waiting_at_reap
    }

    fn start_queued(&mut self, request: Request, now: Time) {
        match parse(&request, super::MAX_TARGETS) {
            Ok(parsed) => self.start(&request, &parsed, now),
            Err(host) => self.fail(&request, host, now),
        }
    }

    #[inline(always)]
    fn complete_task(&mut self, id: u32, pending: &Pending, end: &TaskEnd, now: Time) {
        self.kicks.ended(id, now);
        self.end(pending, end, now);
    }

    fn batch_reaped(&mut self, any: bool) {
        self.waiting_at_reap = if any { self.rings.as_ref().map_or(0, Rings::waiting) } else { 0 };
    }

    fn batch_posted(&mut self, _now: Time) {
        if let Some(rings) = &mut self.rings {
            rings.publish_completions();
        }
        if !self.deferred_messages.is_empty() {
            self.post_messages();
        }
    }

    #[inline(always)]
    fn try_post(&mut self, completion: &RingCmpDesc) -> bool {
        let Some(rings) = &mut self.rings else { return true };
        let free = rings.has_free_slot();
        if free {
            rings.put(*completion);
        }
        free
    }

    fn signal(&mut self) {
        if let Some(rings) = &mut self.rings {
            rings.publish_completions();
        }
        self.raise(Interrupts::CMPL_0);
    }

    fn has_deferred(&self) -> bool {
        !self.engine.deferred.is_empty() || !self.deferred_messages.is_empty()
    }

    fn next_poll(&self) -> Option<Time> {
        self.kicks.poll_at()
    }

    /// Without bus mastering there is none: the disks have completed all requests, and none is started.
    fn memory_in_use(&mut self) -> Footprint {
        if !self.function.bus_master() {
            return Footprint::NONE;
        }
        let engine = &mut self.engine;
        engine.in_flight.footprint(&mut engine.dma, |pending| pending.sense_addr)
    }
}

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Take a request from the ring. End it with the status that `ends` returns. If it returns none, start the request, or put it into the
    /// backlog.
    #[inline(always)]
    fn take_request(&mut self, now: Time, ends: impl FnOnce(&Request, &Parsed) -> Option<HostStatus>) {
        let Some(rings) = &mut self.rings else { return };
        let request = rings.take();
        let parsed = parse(&request, super::MAX_TARGETS)
            .and_then(|parsed| ends(&request, &parsed).map_or(Ok(parsed), Err));
        match parsed {
            Ok(parsed) if self.engine.admits(parsed.address) => self.start(&request, &parsed, now),
            Ok(parsed) => self.engine.backlog.push(parsed.address, request),
            Err(host) => self.fail(&request, host, now),
        }
    }

    /// `count` requests were taken: publish their slots as free.
    fn publish_taken(&mut self, count: u32) {
        self.engine.stats.requests += u64::from(count);
        self.kicks.taken(count);
        if let Some(rings) = &self.rings {
            rings.publish_taken();
        }
    }

    /// Take all requests that the driver has put in so far. Those for which `ends` returns true end with this status; the others are
    /// started, or put into the backlog. The number is read once, so a guest that keeps adding requests cannot prolong the loop.
    pub(super) fn take_all(
        &mut self,
        host: HostStatus,
        mut ends: impl FnMut(&Request, &Parsed) -> bool,
        now: Time,
    ) {
        if !self.function.bus_master() || self.rings.is_none() {
            return;
        }
        let ended = self
            .engine
            .backlog
            .take(|_, request| parse(request, super::MAX_TARGETS).is_ok_and(|parsed| ends(request, &parsed)));
        for request in &ended {
            self.fail(request, host, now);
        }
        let count = self.rings.as_ref().map_or(0, Rings::waiting);
        let mut taken = 0;
        while taken < count
            && let Some(rings) = &mut self.rings
        {
            // Not reached by a driver that has no more requests outstanding than the ring has entries, and reads its completions.
            let most = rings.request_entries();
            if self.engine.backlog.len() >= most || self.engine.deferred.len() >= most {
                break;
            }
            taken += 1;
            self.take_request(now, |request, parsed| ends(request, parsed).then_some(host));
        }
        self.publish_taken(taken);
        self.engine.bus.submit_pushed();
        // The task numbers of ended requests are free for the backlog.
        self.engine.has_work = true;
    }

    /// End a request that was not started.
    #[cold]
    fn fail(&mut self, request: &Request, host: HostStatus, now: Time) {
        self.engine.stats.errors += 1;
        self.post(failed(request.context.get(), host), now);
    }

    /// Hand a request to its unit. Always inlined, for the requests that come from the ring.
    #[inline(always)]
    fn start(&mut self, request: &Request, parsed: &Parsed, now: Time) {
        self.engine.dma.next_request();
        let mut one = IoBuf::empty();
        let bufs = match map_data(request, parsed, &mut self.engine.dma, &mut one, &mut self.bufs) {
            Ok(bufs) => bufs,
            Err(host) => return self.fail(request, host, now),
        };
        let task = Task {
            id: 0,
            address: parsed.address,
            cdb: request.cdb.get(..parsed.cdb_len).unwrap_or(&request.cdb),
            attribute: parsed.attribute,
            direction: parsed.direction,
            bufs,
            len: parsed.len,
        };
        match self.engine.submit(task, || Pending::of(request)) {
            Ok(id) => self.kicks.started(id),
            Err(end) => self.end_at_once(request, &end, now),
        }
    }

    /// Complete a request that the bus completed during `submit`.
    #[cold]
    fn end_at_once(&mut self, request: &Request, end: &TaskEnd, now: Time) {
        self.end(&Pending::of(request), end, now);
    }

    #[inline(always)]
    fn end(&mut self, pending: &Pending, end: &TaskEnd, now: Time) {
        let good = matches!(end, TaskEnd::Answered { status: Status::Good, .. });
        self.engine.stats.errors += u64::from(!good);
        let completion = pending.completion(end, &mut self.engine.dma);
        self.post(completion, now);
    }
}
