//! The I/O path of a batch: from the request ring to the disks, then to the completion ring. The moderator decides after each completion
//! and at the end of the batch whether to interrupt.

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::request::{Parsed, Pending, Request, failed, good, map_data, parse};
use super::rings::Rings;
use super::spec::{HostStatus, RingCmpDesc};
use crate::bus_adapter::work;
use crate::dma::Footprint;
use crate::scsi::{Status, Task, TaskEnd};
use crate::time::Time;

/// Requests taken before the disks are kicked.
const BATCH: u32 = 128;

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Complete requests that have ended, and take requests that wait.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        self.note_waiting(now);
        self.retry_late();
        let more = work(self, |adapter| adapter.fetch(now), |adapter| adapter.complete(now));
        self.more |= more;
    }

    /// Start requests of the backlog, take a batch from the ring, and submit both to the disks. False: there were none.
    pub(super) fn fetch(&mut self, now: Time) -> bool {
        if !self.can_fetch() {
            return false;
        }
        let started = !self.backlog.is_empty() && self.start_backlog(now);
        let Some(rings) = &self.rings else { return false };
        let count = rings.waiting().min(BATCH);
        let mut taken = 0;
        if count > 0 {
            self.disable_kicks(count);
            // Number of task numbers that are not reserved: a request of any unit may take one.
            let free = self.in_flight.free_slots().saturating_sub(self.bus.reserved());
            let free = if self.backlog.is_empty() { count.min(free as u32) } else { 0 };
            for _ in 0..free {
                self.take_request(now);
            }
            taken = if free < count { free + self.take_scarce(count - free, now) } else { free };
            self.taken(taken);
        }
        if taken > 0 || started {
            self.bus.kick();
        }
        taken > 0 || started
    }

    /// `count` requests were taken: publish their slots as free.
    fn taken(&mut self, count: u32) {
        self.stats.requests += u64::from(count);
        self.kicks.batches.taken(count);
        self.kicks.polling.taken(count);
        if let Some(rings) = &self.rings {
            rings.publish_taken();
        }
    }

    /// Whether requests may be taken at all. No request is taken while a completion waits for a free slot: this bounds the memory for a
    /// guest that reads no completions.
    pub(super) fn can_fetch(&self) -> bool {
        self.late_completions.is_empty() && !self.stuck && self.function.bus_master()
    }

    /// Take up to `count` requests while task numbers are short. Returns their number.
    #[cold]
    fn take_scarce(&mut self, count: u32, now: Time) -> u32 {
        for taken in 0..count {
            let Some(rings) = &mut self.rings else { return taken };
            // With a single unit, a request that cannot start waits in the ring.
            let free = match self.bus.reserved() {
                0 => self.in_flight.free_slots() > 0,
                _ => self.backlog.len() < rings.request_entries(),
            };
            if !free {
                self.stuck = true;
                return taken;
            }
            let request = rings.take();
            self.start_or_queue(&request, now);
        }
        count
    }

    /// Start a request. If its unit is not granted a task number yet, put the request into the backlog.
    #[cold]
    fn start_or_queue(&mut self, request: &Request, now: Time) {
        let parsed = match parse(request, super::MAX_TARGETS) {
            Ok(parsed) => parsed,
            Err(host) => return self.fail(request, host, now),
        };
        let free = self.in_flight.free_slots();
        if self.backlog.admits(&self.bus, parsed.address, free)
            && let Some(id) = self.in_flight.allocate()
        {
            self.start_out_of_line(id, request, &parsed, now);
        } else {
            self.backlog.push(parsed.address, *request);
        }
    }

    /// Start requests of the backlog while there are task numbers. False: nothing was started, perhaps because requests may not start now.
    #[cold]
    pub(super) fn start_backlog(&mut self, now: Time) -> bool {
        let mut started = false;
        while self.rings.is_some()
            && self.function.bus_master()
            && let Some((id, request)) = self.backlog.next_task(&self.bus, &mut self.in_flight)
        {
            started = true;
            match parse(&request, super::MAX_TARGETS) {
                Ok(parsed) => self.start_out_of_line(id, &request, &parsed, now),
                Err(host) => {
                    self.in_flight.release(id);
                    self.fail(&request, host, now);
                }
            }
        }
        started
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
            if self.backlog.len() >= most || self.late_completions.len() >= most {
                break;
            }
            let request = rings.take();
            taken += 1;
            match parse(&request, super::MAX_TARGETS) {
                Ok(parsed) if ends(&request, &parsed) => self.fail(&request, host, now),
                _ => self.start_or_queue(&request, now),
            }
        }
        self.taken(taken);
        self.bus.kick();
        self.stuck = false;
        // The task numbers of ended requests are free for the backlog.
        self.more = true;
    }

    /// End a request that was not started.
    #[cold]
    fn fail(&mut self, request: &Request, host: HostStatus, now: Time) {
        self.stats.errors += 1;
        self.put_completion(failed(request.context.get(), host), now);
    }

    #[inline]
    fn take_request(&mut self, now: Time) {
        let (Some(rings), Some(id)) = (&mut self.rings, self.in_flight.allocate()) else { return };
        let request = rings.take();
        match parse(&request, super::MAX_TARGETS) {
            Ok(parsed) => self.start(id, &request, &parsed, now),
            Err(host) => {
                self.in_flight.release(id);
                self.fail(&request, host, now);
            }
        }
    }

    /// [`start`](Self::start), not inlined, for requests that had to wait.
    #[cold]
    fn start_out_of_line(&mut self, id: u32, request: &Request, parsed: &Parsed, now: Time) {
        self.start(id, request, parsed, now);
    }

    /// Hand a request to its unit. Always inlined, for the requests that come from the ring while there are enough task numbers.
    #[inline(always)]
    fn start(&mut self, id: u32, request: &Request, parsed: &Parsed, now: Time) {
        self.dma.begin();
        let mut one = IoBuf::empty();
        let bufs = match map_data(request, parsed, &mut self.dma, &mut one, &mut self.bufs) {
            Ok(bufs) => bufs,
            Err(host) => {
                self.in_flight.release(id);
                return self.fail(request, host, now);
            }
        };
        let task = Task {
            id,
            address: parsed.address,
            cdb: request.cdb.get(..parsed.cdb_len).unwrap_or(&request.cdb),
            attribute: parsed.attribute,
            direction: parsed.direction,
            bufs,
            len: parsed.len,
        };
        match self.bus.submit(&task) {
            None => {
                self.in_flight.store(id, Pending::of(request), self.dma.footprint());
                self.kicks.batches.suppression.taken(id);
            }
            Some(end) => {
                self.in_flight.release(id);
                self.end_at_once(request, &end, now);
            }
        }
    }

    /// Complete a request that was not successful.
    #[cold]
    fn end_badly(&mut self, id: u32, end: &TaskEnd, now: Time) {
        let Some(pending) = self.in_flight.end(id) else { return };
        self.stats.errors += 1;
        let completion = pending.completion(end, &mut self.dma);
        self.put_completion(completion, now);
    }

    /// Complete a request that the bus completed during `submit`.
    #[cold]
    fn end_at_once(&mut self, request: &Request, end: &TaskEnd, now: Time) {
        let good = matches!(end, TaskEnd::Answered { status: Status::Good, .. });
        self.stats.errors += u64::from(!good);
        let completion = Pending::of(request).completion(end, &mut self.dma);
        self.put_completion(completion, now);
    }

    /// Post the completions of requests that have ended, and interrupt unless the moderator holds the signal back.
    pub(super) fn complete(&mut self, now: Time) {
        if !self.function.bus_master() {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.bus.reap(&mut ended);
        self.waiting = 0;
        if !ended.is_empty() {
            self.stuck = false;
            self.waiting = self.rings.as_ref().map_or(0, Rings::waiting) + self.backlog.len() as u32;
        }
        for &(id, ref end) in &ended {
            self.kicks.batches.suppression.ended(id, now);
            if let TaskEnd::Answered { status: Status::Good, transferred, .. } = end
                && let Some(context) = self.in_flight.complete_with(id, |pending| pending.context)
            {
                self.put_completion(good(context, *transferred), now);
            } else {
                self.end_badly(id, end, now);
            }
        }
        ended.clear();
        self.ended = ended;
        self.end_batch(now);
    }

    /// Put a completion into the ring, or queue it until a slot is free. The guest sees it when the ring's index is published: at the end
    /// of the batch, or here before a signal. Always inlined: called for each request.
    #[inline(always)]
    fn put_completion(&mut self, completion: RingCmpDesc, now: Time) {
        let Some(rings) = &mut self.rings else { return };
        if !self.late_completions.is_empty() || !rings.has_free_slot() {
            return self.post_late(completion);
        }
        rings.put(completion);
        self.stats.completions += 1;
        let cif = self.in_flight.count() + self.waiting;
        if self.moderator.completed(cif, now) {
            rings.post_completions();
            self.raise_completions();
        }
    }

    #[cold]
    fn post_late(&mut self, completion: RingCmpDesc) {
        self.late_completions.push_back(completion);
    }

    fn end_batch(&mut self, now: Time) {
        if let Some(rings) = &mut self.rings {
            rings.post_completions();
        }
        if self.moderator.end_batch(now) {
            self.raise_completions();
        }
    }

    /// Put completions and messages that wait for free slots into the rings. While the completion ring stays full, each try
    /// interrupts the guest again.
    fn retry_late(&mut self) {
        self.retry.tried();
        if !self.late_completions.is_empty() {
            let (Some(rings), true) = (&mut self.rings, self.function.bus_master()) else { return };
            while rings.has_free_slot() {
                let Some(completion) = self.late_completions.pop_front() else { break };
                rings.put(completion);
                self.stats.completions += 1;
            }
            rings.post_completions();
            let _ = self.moderator.flush();
            self.raise_completions();
        }
        if !self.late_messages.is_empty() {
            self.post_messages();
        }
    }

    /// Requests that were taken from the request ring and have no completion in the completion ring yet.
    pub(super) fn unanswered(&self) -> u64 {
        u64::from(self.in_flight.count()) + (self.backlog.len() + self.late_completions.len()) as u64
    }

    /// Guest memory that requests use. Without bus mastering there is none: the disks have completed all requests, and none is started.
    pub(super) fn memory_in_use(&mut self) -> Footprint {
        if !self.function.bus_master() {
            return Footprint::NONE;
        }
        self.in_flight.footprint(&mut self.dma, |pending| pending.sense_addr)
    }
}
