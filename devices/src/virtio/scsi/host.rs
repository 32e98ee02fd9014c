//! The back-end of the SCSI host device: the SCSI bus, and the requests in flight.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{IoBuf, QueueStats};
use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use super::super::chain::Chain;
use super::super::descriptors::DescriptorChain;
use super::super::pci::Transport;
use super::super::queue::Broken;
use super::answer::{Answer, Answered, Remainder, Reply};
use super::config::{Config, MAX_TARGETS};
use super::functions::Control;
use super::late_events::Events;
use super::lun::{self, Place};
use super::request::{Outcome, Space, parse};
use super::spec::*;
use crate::backlog::Backlog;
use crate::dma::{Dma, Footprint, Spans};
use crate::in_flight::InFlight;
use crate::scsi::{Address, Bus, Task, TaskEnd};

/// Largest logical unit number (flat space addressing, SAM-5, 4.7.7.3).
const MAX_LUN: u32 = 0x3fff;

/// Maximum number of sectors of a request: just below the largest transfer of the target.
const MAX_SECTORS: u32 = 0xffff;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) queue: usize,
    head: u16,
    answer: Answer,
    /// Bytes of data.
    len: u64,
    /// Bytes of the guest's buffer for sense data.
    sense_size: u32,
    /// Identifier for task management.
    pub(super) id: u64,
    /// `None`: the REPORT LUNS well known logical unit, or an invalid request.
    pub(super) address: Option<Address>,
    /// Its queue was reset: its completion is not posted.
    disowned: bool,
}

/// How a request without a task number ended.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The target never received it.
    Refused(Response),
    /// The target ended it.
    Ended(TaskEnd),
}

/// The back-end of the SCSI host device.
pub(super) struct Host {
    pub(super) bus: Bus,
    pub(super) targets: u16,
    config: ScsiConfig,
    /// The features that the driver has accepted.
    pub(super) features: ScsiFeatures,
    pub(super) in_flight: InFlight<Pending>,
    /// Requests that have ended.
    ended: Vec<(u32, TaskEnd)>,
    /// Number of requests in `ended` that are answered.
    answered: usize,
    /// Requests that have ended without a task number.
    pub(super) failed: VecDeque<(Pending, Verdict)>,
    /// Requests that were taken from the rings and have no task number yet. Never more than the rings hold.
    pub(super) backlog: Backlog<Pending>,
    /// Entries of all request queues.
    entries: usize,
    /// Responses of the control queue and events that are to be posted.
    pub(super) replies: VecDeque<Reply>,
    pub(super) control: Control,
    pub(super) events: Events,
    pub(super) chain: Chain,
    bufs: Vec<IoBuf>,
}

impl Host {
    pub(super) fn new(bus: Bus, config: Config) -> Self {
        let tasks = config.tasks.max(1);
        let targets = config.targets.clamp(1, MAX_TARGETS);
        Self {
            bus,
            targets,
            config: ScsiConfig {
                num_queues: u32::from(config.queues).into(),
                // A request also has a descriptor for its header and one for its response.
                seg_max: (u32::from(config.queue_size) - 2).into(),
                max_sectors: MAX_SECTORS.into(),
                cmd_per_lun: tasks.into(),
                event_info_size: (size_of::<EventInfo>() as u32).into(),
                sense_size: VIRTIO_SCSI_SENSE_DEFAULT_SIZE.into(),
                cdb_size: VIRTIO_SCSI_CDB_DEFAULT_SIZE.into(),
                max_channel: 0.into(),
                max_target: (targets - 1).into(),
                max_lun: MAX_LUN.into(),
            },
            features: ScsiFeatures::empty(),
            in_flight: InFlight::new(tasks),
            ended: Vec::with_capacity(tasks as usize),
            answered: 0,
            failed: VecDeque::new(),
            backlog: Backlog::new(),
            entries: usize::from(config.queues) * usize::from(config.queue_size),
            replies: VecDeque::new(),
            control: Control::new(config.queues),
            events: Events::default(),
            chain: Chain::default(),
            bufs: Vec::new(),
        }
    }

    /// Whether the backlog is full, so that no request can be taken.
    pub(super) fn full(&self) -> bool {
        self.backlog.len() >= self.entries
    }

    /// A request has ended: free its slot, and return the result of `read`.
    #[inline]
    fn end<T>(&mut self, id: u32, read: impl FnOnce(&Pending) -> T) -> Option<T> {
        let result = self.in_flight.complete_with(id, read)?;
        self.control.task_ended(id, &mut self.replies);
        Some(result)
    }

    fn take_short_answer(&self) -> Option<Answer> {
        Some(Answer::take(&self.chain.writable, size_of::<ResponseHeader>() as u64)?.0)
    }

    /// Forget all requests if the disks have completed them. False: they have not.
    fn forget_all(&mut self) -> bool {
        // `ended` stays bounded: by the number of requests in flight.
        self.bus.reap(&mut self.ended);
        if self.bus.in_flight() > 0 {
            return false;
        }
        self.ended.clear();
        self.answered = 0;
        self.in_flight.clear();
        self.control.reset();
        self.events = Events::default();
        self.features = ScsiFeatures::empty();
        self.config.sense_size = VIRTIO_SCSI_SENSE_DEFAULT_SIZE.into();
        self.config.cdb_size = VIRTIO_SCSI_CDB_DEFAULT_SIZE.into();
        true
    }

    /// Completions of requests in flight are not posted.
    fn disown_all(&mut self) {
        self.bus.reset_all();
        self.backlog.clear();
        self.failed.clear();
        self.replies.clear();
        self.in_flight.iter_mut().for_each(|pending| pending.disowned = true);
    }

    /// Abort a queue's requests in flight. Their completions are not posted.
    fn disown(&mut self, queue: usize) {
        for pending in self.in_flight.iter_mut().filter(|pending| pending.queue == queue) {
            pending.disowned = true;
        }
        let ids: Vec<u32> =
            self.in_flight.iter().filter(|(_, pending)| pending.queue == queue).map(|(id, _)| id).collect();
        for id in ids {
            self.bus.abort(id);
        }
        self.backlog.take(|_, pending| pending.queue == queue);
        self.failed.retain(|(pending, _)| pending.queue != queue);
        if queue == CONTROL_QUEUE {
            self.control.reset();
        }
        let before = self.replies.len();
        self.replies.retain(|reply| reply.queue != queue);
        if queue == EVENT_QUEUE && self.replies.len() < before {
            self.events.set_missed();
        }
    }

    /// Whether the disks have completed all requests of a queue.
    fn forget(&mut self, queue: usize) -> bool {
        self.bus.reap(&mut self.ended);
        self.ended.drain(..std::mem::take(&mut self.answered));
        for (id, end) in std::mem::take(&mut self.ended) {
            if self.in_flight.get(id).is_some_and(|pending| pending.queue == queue) {
                self.end(id, |_| ());
            } else {
                self.ended.push((id, end));
            }
        }
        !self.in_flight.iter().any(|(_, pending)| pending.queue == queue)
    }

    /// Start a request of the backlog.
    #[cold]
    fn begin_from_backlog<A: GuestAddressSpace, M: Spans>(
        &mut self,
        pending: &Pending,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        self.begin(pending.queue, descriptors, pending.address, dma)
    }

    /// Start the request of a chain, or put it into the backlog until its unit may have a task number. `backlogged`: the unit of a request
    /// from the backlog. Always inlined for requests from a ring.
    #[inline(always)]
    fn begin<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<'_, M>,
        backlogged: Option<Address>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        let head = descriptors.head_index();
        self.chain.collect(descriptors)?;
        let sense_size = self.config.sense_size.get();
        let whole = size_of::<ResponseHeader>() as u64 + u64::from(sense_size);
        let (answer, data_in) = match Answer::take(&self.chain.writable, whole) {
            Some((answer, rest)) => (answer, Some(rest)),
            // Too short for sense data, but long enough for an error.
            None => (self.take_short_answer().ok_or(Broken)?, None),
        };
        dma.begin();
        let mut space = Space::new();
        let cdb_size = self.config.cdb_size.get() as usize;
        let request = match data_in {
            Some(rest) if !self.chain.malformed => {
                parse(&mut self.chain, rest, cdb_size, self.targets, dma, &mut space, &mut self.bufs)
            }
            _ => Err(Response::Failure),
        };
        let request = match request {
            Ok(request) => request,
            Err(response) => {
                let left = |rest: Remainder| -> u64 {
                    rest.of(&self.chain.writable).map(|segment| segment.len).sum()
                };
                let out: u64 = self.chain.readable().iter().map(|segment| segment.len).sum();
                let len = out + data_in.map_or(0, left);
                let pending = Pending::new(queue, head, answer, sense_size, (len, 0, None));
                self.failed.push_back((pending, Verdict::Refused(response)));
                return Ok(());
            }
        };
        let task = |id, address| Task {
            id,
            address,
            cdb: request.cdb,
            attribute: request.attribute,
            direction: request.direction,
            bufs: request.bufs,
            len: request.len,
        };
        let address = match request.place {
            Place::Unit(address) => address,
            Place::ReportLuns => {
                let nowhere = Address { target: 0, lun: 0 };
                let task = task(0, nowhere);
                let end = self.bus.report_luns_unit(&task, lun::REPORT_LUNS, lun::lun);
                let about = (request.len, request.id, None);
                let pending = Pending::new(queue, head, answer, sense_size, about);
                self.failed.push_back((pending, Verdict::Ended(end)));
                return Ok(());
            }
        };
        let about = (request.len, request.id, Some(address));
        match backlogged {
            None if !self.backlog.admits(&self.bus, address, self.in_flight.free_slots()) => {
                self.backlog.push(address, Pending::new(queue, head, answer, sense_size, about));
                return Ok(());
            }
            // The guest has changed the address since.
            Some(unit) if unit != address => {
                let pending = Pending::new(queue, head, answer, sense_size, about);
                self.failed.push_back((pending, Verdict::Refused(Response::Failure)));
                return Ok(());
            }
            _ => {}
        }
        let id = self.in_flight.allocate().ok_or(Broken)?;
        let end = self.bus.submit(&task(id, address));
        if let Some(end) = end {
            self.ended.push((id, end));
        }
        let pending = Pending::new(queue, head, answer, sense_size, about);
        self.in_flight.store(id, pending, dma.footprint());
        Ok(())
    }
}

impl Host {
    /// Start requests of the backlog, and serve the control and the event queue.
    #[cold]
    fn serve_others<A: GuestAddressSpace, M: Spans>(
        &mut self,
        transport: &mut Transport,
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        let started = self.start_backlog(transport, dma, memory)?;
        let controlled = self.serve_control(transport, dma, memory)?;
        Ok(self.serve_events(transport, memory)? || controlled || started)
    }

    /// Answer requests that ended without a task number, then post responses and events of the other queues.
    fn answer_others<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered> {
        self.ended.clear();
        self.answered = 0;
        if let Some((pending, verdict)) = self.failed.pop_front() {
            let outcome = match verdict {
                Verdict::Refused(response) => Outcome::nothing(response, pending.len),
                Verdict::Ended(end) => Outcome::of(&end, pending.len, pending.sense_size),
            };
            return Some(pending.respond(&outcome, dma));
        }
        // Responses to functions follow the requests that they ended.
        self.replies.pop_front().map(|reply| reply.write(dma))
    }
}

impl Pending {
    /// `(len, id, address)` as in [`Pending`]. Always inlined, so that it is built in its slot: a copy would load it right after it
    /// was stored, which stalls the processor.
    #[inline(always)]
    fn new(
        queue: usize,
        head: u16,
        answer: Answer,
        sense_size: u32,
        (len, id, address): (u64, u64, Option<Address>),
    ) -> Self {
        Self { queue, head, answer, len, sense_size, id, address, disowned: false }
    }

    /// Write the response to guest memory.
    #[inline(always)]
    fn respond<A: GuestAddressSpace>(&self, outcome: &Outcome, dma: &mut Dma<A>) -> Answered {
        let written = outcome.write(&self.answer, dma);
        Answered { queue: self.queue, head: self.head, written, good: outcome.good }
    }
}

impl Host {
    /// The device-specific configuration as the guest reads it.
    pub(super) fn config(&self) -> &[u8] {
        self.config.as_bytes()
    }

    /// The guest writes to the device-specific configuration.
    /// Sizes above the limits are ignored.
    pub(super) fn write_config(&mut self, offset: u64, value: u64, len: usize) {
        let value = value as u32;
        match (offset, len) {
            (SENSE_SIZE, 4) if value <= MAX_SENSE_SIZE => self.config.sense_size = value.into(),
            (CDB_SIZE, 4) if value <= MAX_CDB_SIZE => self.config.cdb_size = value.into(),
            _ => {}
        }
    }

    /// The driver has accepted these features.
    pub(super) fn accept(&mut self, features: u64) {
        self.features = ScsiFeatures::from_bits_truncate(features);
    }

    /// A reset of the device (`None`) or of a queue begins. Its requests in flight are not answered. Never waits.
    pub(super) fn begin_reset(&mut self, queue: Option<usize>) {
        match queue {
            None => self.disown_all(),
            Some(queue) => self.disown(queue),
        }
    }

    /// Whether the disks have completed every request that the reset covers. True: they have, and the requests are forgotten.
    pub(super) fn finish_reset(&mut self, queue: Option<usize>) -> bool {
        match queue {
            None => self.forget_all(),
            Some(queue) => self.forget(queue),
        }
    }

    /// Guest memory that requests in flight use.
    pub(super) fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint {
        self.in_flight.footprint(dma, |pending| pending.answer.address())
    }

    /// Requests that can be started.
    /// If a function of the control queue waits for requests, or several units share the task numbers, requests that cannot start are
    /// taken to the backlog. Otherwise they wait in the rings.
    #[inline]
    pub(super) fn free_slots(&self) -> usize {
        let reserved = self.bus.reserved();
        let free = self.in_flight.free_slots();
        if free > reserved && self.backlog.is_empty() {
            free - reserved
        } else if reserved > 0 || self.control.waits() {
            self.entries.saturating_sub(self.backlog.len())
        } else {
            free
        }
    }

    /// Start the request of a chain from a request queue. Only with [free slots](Self::free_slots).
    ///
    /// # Errors
    /// [`Broken`] if the chain has no place for a response.
    #[inline(always)]
    pub(super) fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        self.control.taken(queue);
        self.begin(queue, descriptors, None, dma)
    }

    /// Start chains that were taken but had to wait, as far as possible. True: one was started.
    ///
    /// # Errors
    /// [`Broken`] if the chain has no place for a response.
    pub(super) fn start_backlog<A: GuestAddressSpace, M: Spans>(
        &mut self,
        transport: &mut Transport,
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        let mut started = false;
        while let Some(pending) = self.backlog.next(&self.bus, self.in_flight.free_slots()) {
            let queue = transport.queues().get_mut(pending.queue).ok_or(Broken)?;
            let chain = queue.chain(memory, pending.head);
            self.begin_from_backlog(&pending, chain, dma)?;
            started = true;
        }
        Ok(started)
    }

    /// Serve the other queues, after all request queues were served. True: serve all queues again.
    /// Called after each batch of requests. The backlog, functions and events are rare, so only the check for them is inlined.
    #[inline(always)]
    pub(super) fn serve<A: GuestAddressSpace, M: Spans>(
        &mut self,
        transport: &mut Transport,
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        let queue = transport.queues().get_mut(CONTROL_QUEUE).filter(|queue| queue.active());
        let functions = queue.map_or(0, |queue| queue.waiting(memory));
        if functions == 0 && self.backlog.is_empty() && !self.events.wants() {
            self.control.blocked = false;
            return Ok(false);
        }
        self.serve_others(transport, dma, memory)
    }

    /// Whether a chain of one of the other queues could be taken at once.
    pub(super) fn wants(&self, queue: usize) -> bool {
        match queue {
            CONTROL_QUEUE => self.control.wants(),
            _ => self.events.wants(),
        }
    }

    /// Submit the started requests to the disks.
    pub(super) fn submit(&mut self) {
        self.bus.kick();
    }

    /// Reap completions of the disks. True: there are requests to answer.
    pub(super) fn reap(&mut self) -> bool {
        self.bus.reap(&mut self.ended);
        !(self.ended.is_empty() && self.failed.is_empty() && self.replies.is_empty())
    }

    /// After a wake-up that brought no completion: [`Bus::clear_late_events`], as `reap` leaves out disks without requests.
    pub(super) fn clear_late_events(&mut self) {
        self.bus.clear_late_events();
    }

    /// Fail requests that a disk's queue has lost ([`fault`](crate::fault)). True: there were some.
    pub(super) fn fail_lost(&mut self) -> bool {
        self.bus.fail_lost()
    }

    /// Write the response of the next completed request.
    #[inline(always)]
    pub(super) fn answer<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Answered> {
        let Self { ended, answered, in_flight, control, replies, .. } = self;
        while let Some((id, end)) = ended.get(*answered) {
            *answered += 1;
            let answer = in_flight.complete_with(*id, |pending| {
                let outcome = Outcome::of(end, pending.len, pending.sense_size);
                (!pending.disowned).then(|| pending.respond(&outcome, dma))
            });
            if answer.is_some() {
                control.task_ended(*id, replies);
            }
            if let Some(Some(answer)) = answer {
                return Some(answer);
            }
        }
        self.answer_others(dma)
    }

    /// Wait until nothing is in flight.
    pub(super) fn drain(&mut self) {
        self.bus.drain();
    }

    /// Descriptors that are readable while there may be something to reap.
    pub(super) fn events(&self) -> Vec<BorrowedFd<'_>> {
        self.bus.events()
    }

    /// Statistics of the disks' queues.
    pub(super) fn queue_stats(&self) -> QueueStats {
        self.bus.queue_stats()
    }
}
