//! The way of a batch: out of the request ring, to the disks, into the completion ring, one decision to interrupt.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::request::{Pending, failed, map_data, parse};
use super::rings::Rings;
use super::spec::{Interrupts, RingCmpDesc};
use crate::Time;
use crate::scsi::{Task, TaskEnd};

/// Requests taken before the disks are kicked.
const BATCH: u32 = 128;

/// Batches before the owner gets its thread back.
const MAX_BATCHES: usize = 16;

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Do all that there is to do: end what has ended, take what waits.
    pub(super) fn service(&mut self, now: Time) {
        self.more = false;
        self.look_for_requests(now);
        self.retry_late();
        self.complete(now);
        for _ in 0..MAX_BATCHES {
            if !self.fetch(now) {
                return;
            }
            self.complete(now);
        }
        self.more = true;
    }

    /// Take a batch of requests and hand it to the disks. False: nothing was taken.
    pub(super) fn fetch(&mut self, now: Time) -> bool {
        if !self.can_fetch() {
            return false;
        }
        let Some(rings) = &self.rings else { return false };
        let count = rings.waiting().min(self.in_flight.room() as u32).min(BATCH);
        if count == 0 {
            return false;
        }
        self.need_no_kicks();
        self.stats.requests += u64::from(count);
        for _ in 0..count {
            self.take_request(now);
        }
        if let Some(rings) = &self.rings {
            rings.show_taken();
        }
        self.bus.kick();
        true
    }

    /// Whether requests may be taken at all. Completions that wait for room bound what a guest that does not read them
    /// can make us hold.
    pub(super) fn can_fetch(&self) -> bool {
        self.late_completions.is_empty() && self.in_flight.room() > 0 && self.function.bus_master()
    }

    #[inline]
    fn take_request(&mut self, now: Time) {
        let (Some(rings), Some(id)) = (&mut self.rings, self.in_flight.number()) else { return };
        let request = rings.take();
        self.bufs.clear();
        let parsed = parse(&request, super::MAX_TARGETS).and_then(|parsed| {
            map_data(&request, &parsed, &mut self.dma, &mut self.bufs)?;
            Ok(parsed)
        });
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(host) => {
                self.in_flight.give_back(id);
                self.stats.errors += 1;
                self.show(failed(request.context.get(), host), now);
                return;
            }
        };
        let task = Task {
            id,
            address: parsed.address,
            cdb: request.cdb.get(..parsed.cdb_len).unwrap_or(&request.cdb),
            attribute: parsed.attribute,
            direction: parsed.direction,
            bufs: &self.bufs,
            len: parsed.len,
        };
        let pending = Pending::of(&request);
        match self.bus.submit(&task) {
            None => {
                self.in_flight.keep(id, pending);
                self.kicks.trust.taken(id);
            }
            Some(end) => {
                self.in_flight.give_back(id);
                self.end(&pending, &end, now);
            }
        }
    }

    /// Show the guest what has ended, and decide whether to interrupt.
    pub(super) fn complete(&mut self, now: Time) {
        if !self.function.bus_master() {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.bus.reap(&mut ended);
        self.waiting = self.rings.as_ref().filter(|_| !ended.is_empty()).map_or(0, Rings::waiting);
        for (id, end) in ended.drain(..) {
            if let Some(pending) = self.in_flight.end(id) {
                self.kicks.trust.ended(id, now);
                self.end(&pending, &end, now);
            }
        }
        self.ended = ended;
        self.end_batch(now);
    }

    #[inline]
    fn end(&mut self, pending: &Pending, end: &TaskEnd, now: Time) {
        let (completion, good) = pending.completion(end, &mut self.dma);
        self.stats.errors += u64::from(!good);
        self.show(completion, now);
    }

    /// Put a completion into the ring, or keep it until there is room.
    #[inline]
    fn show(&mut self, completion: RingCmpDesc, now: Time) {
        let Some(rings) = &mut self.rings else { return };
        if !self.late_completions.is_empty() || !rings.has_room() {
            self.late_completions.push_back(completion);
            return;
        }
        rings.put(completion);
        self.stats.completions += 1;
        let cif = self.in_flight.count() + self.waiting;
        if self.moderator.completed(cif, now) {
            rings.show_completions();
            self.raise(Interrupts::CMPL_0);
        }
    }

    fn end_batch(&mut self, now: Time) {
        if let Some(rings) = &mut self.rings {
            rings.show_completions();
        }
        if self.moderator.end_batch(now) {
            self.raise(Interrupts::CMPL_0);
        }
    }

    /// Put into the rings what found them full. The guest is told again for as long as they stay full.
    fn retry_late(&mut self) {
        if !self.late_completions.is_empty() {
            let (Some(rings), true) = (&mut self.rings, self.function.bus_master()) else { return };
            while rings.has_room() {
                let Some(completion) = self.late_completions.pop_front() else { break };
                rings.put(completion);
                self.stats.completions += 1;
            }
            rings.show_completions();
            let _ = self.moderator.flush();
            self.raise(Interrupts::CMPL_0);
        }
        if !self.late_messages.is_empty() {
            self.post_messages();
        }
    }
}
