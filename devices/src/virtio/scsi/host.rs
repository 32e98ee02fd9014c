//! The back-end of the SCSI host device: the SCSI bus, and the requests in flight.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{IoBuf, QueueStats};
use vm_memory::GuestAddressSpace;

use super::super::chain::Chain;
use super::super::descriptors::DescriptorChain;
use super::super::queue::{Broken, Virtqueue};
use super::super::rings::{Ended, Requests};
use super::answer::{Answer, Remainder, Reply};
use super::config::{Config, ScsiHost};
use super::event_backlog::EventBacklog;
use super::functions::Control;
use super::lun::{self, Place};
use super::request::{Outcome, Space, parse};
use super::spec::*;
use crate::backlog::Backlog;
use crate::dma::{Dma, Footprint, Spans};
use crate::in_flight::InFlight;
use crate::scsi::{Address, Bus, Task, TaskEnd};

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
pub struct Host {
    pub(super) bus: Bus,
    pub(super) targets: u16,
    /// What the driver has negotiated and configured.
    pub(super) own: ScsiHost,
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
    pub(super) events: EventBacklog,
    pub(super) chain: Chain,
    bufs: Vec<IoBuf>,
}

impl Host {
    /// For a device whose queues have the size and number in `config`.
    pub(super) fn new(bus: Bus, config: &Config, own: ScsiHost) -> Self {
        let tasks = config.tasks.max(1);
        Self {
            bus,
            targets: config.targets,
            own,
            in_flight: InFlight::new(tasks),
            ended: Vec::with_capacity(tasks as usize),
            answered: 0,
            failed: VecDeque::new(),
            backlog: Backlog::new(),
            entries: usize::from(config.queues) * usize::from(config.queue_size),
            replies: VecDeque::new(),
            control: Control::new(config.queues),
            events: EventBacklog::default(),
            chain: Chain::default(),
            bufs: Vec::new(),
        }
    }

    /// Whether the backlog is full, so that no request can be taken.
    pub(super) fn full(&self) -> bool {
        self.backlog.len() >= self.entries
    }

    fn take_short_answer(&self) -> Option<Answer> {
        Some(Answer::take(&self.chain.writable, size_of::<ResponseHeader>() as u64)?.0)
    }

    /// Start a request of the backlog.
    #[cold]
    fn begin_from_backlog<A: GuestAddressSpace, M: Spans>(
        &mut self,
        pending: &Pending,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        self.start_or_queue(pending.queue, descriptors, pending.address, dma)
    }

    /// Start the request of a chain, or put it into the backlog until its unit may have a task number. `backlogged`: the unit of a request
    /// from the backlog. Always inlined for requests from a ring.
    #[inline(always)]
    fn start_or_queue<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<'_, M>,
        backlogged: Option<Address>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        let head = descriptors.head_index();
        self.chain.collect(descriptors)?;
        let ScsiConfig { sense_size, cdb_size, .. } = self.own.config;
        let (sense_size, cdb_size) = (sense_size.get(), cdb_size.get() as usize);
        let whole = size_of::<ResponseHeader>() as u64 + u64::from(sense_size);
        let (answer, data_in) = match Answer::take(&self.chain.writable, whole) {
            Some((answer, rest)) => (answer, Some(rest)),
            // Too short for sense data, but long enough for an error.
            None => (self.take_short_answer().ok_or(Broken)?, None),
        };
        dma.next_request();
        let mut space = Space::new();
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
    /// Start requests of the backlog, as far as possible. True: one was started.
    fn start_backlog<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queues: &[Virtqueue],
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        let mut started = false;
        while let Some(pending) = self.backlog.next(&self.bus, self.in_flight.free_slots()) {
            let queue = queues.get(pending.queue).ok_or(Broken)?;
            let chain = queue.chain(memory, pending.head);
            self.begin_from_backlog(&pending, chain, dma)?;
            started = true;
        }
        Ok(started)
    }

    /// Start requests of the backlog and, if `take` is set, serve the control and the event queue.
    #[cold]
    fn serve<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queues: &mut [Virtqueue],
        take: bool,
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        let started = self.start_backlog(queues, dma, memory)?;
        if !take {
            return Ok(started);
        }
        let controlled = self.serve_control(queues, dma, memory)?;
        Ok(self.serve_events(queues, memory)? || controlled || started)
    }

    /// Answer requests that ended without a task number, then post responses and events of the other queues.
    fn answer_others<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Ended> {
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
    fn respond<A: GuestAddressSpace>(&self, outcome: &Outcome, dma: &mut Dma<A>) -> Ended {
        let written = outcome.write(&self.answer, dma);
        Ended { queue: self.queue, head: self.head, written, good: outcome.good }
    }
}

impl Requests for Host {
    const OTHER_QUEUES: usize = REQUEST_QUEUES;

    /// If a function of the control queue waits for requests, or several units share the task numbers, requests that cannot start are
    /// taken to the backlog. Otherwise they wait in the rings.
    #[inline]
    fn free_slots(&self) -> usize {
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

    fn wants(&self, queue: usize) -> bool {
        match queue {
            CONTROL_QUEUE => self.control.wants(),
            EVENT_QUEUE => self.events.wants(),
            _ => self.free_slots() > 0,
        }
    }

    #[inline(always)]
    fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken> {
        self.control.taken(queue);
        self.start_or_queue(queue, descriptors, None, dma)
    }

    /// Called after each batch of requests. The backlog, functions and events are rare, so only the check for them is inlined.
    #[inline(always)]
    fn serve_others<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queues: &mut [Virtqueue],
        take: bool,
        dma: &mut Dma<A>,
        memory: &M,
    ) -> Result<bool, Broken> {
        let queue = queues.get(CONTROL_QUEUE).filter(|queue| queue.active());
        let functions = queue.map_or(0, |queue| queue.waiting(memory));
        if functions == 0 && self.backlog.is_empty() && !self.events.wants() {
            self.control.blocked = false;
            return Ok(false);
        }
        self.serve(queues, take, dma, memory)
    }

    fn submit(&mut self) {
        self.bus.submit_pushed();
    }

    fn reap(&mut self) {
        self.bus.reap(&mut self.ended);
    }

    fn has_ended(&self) -> bool {
        !(self.ended.is_empty() && self.failed.is_empty() && self.replies.is_empty())
    }

    #[inline(always)]
    fn next_ended<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Ended> {
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

    /// Requests in flight are aborted; a reset of the device also resets the units.
    fn disown(&mut self, queue: Option<usize>) {
        let covers = |other| queue.is_none_or(|queue| queue == other);
        let requests = self.in_flight.iter_mut().filter(|pending| covers(pending.queue));
        requests.for_each(|pending| pending.disowned = true);
        let before = self.replies.len();
        self.backlog.take(|_, pending| covers(pending.queue));
        self.failed.retain(|(pending, _)| !covers(pending.queue));
        self.replies.retain(|reply| !covers(reply.queue));
        if covers(CONTROL_QUEUE) {
            self.control.reset();
        }
        if queue.is_none() {
            self.bus.reset_all();
            self.events = EventBacklog::default();
            return;
        }
        if queue == Some(EVENT_QUEUE) && self.replies.len() < before {
            self.events.set_missed();
        }
        let requests = self.in_flight.iter().filter(|(_, pending)| covers(pending.queue));
        let ids: Vec<u32> = requests.map(|(id, _)| id).collect();
        for id in ids {
            self.bus.abort(id);
        }
    }

    fn forget(&mut self, queue: usize) -> bool {
        debug_assert_eq!(self.answered, 0, "all that had ended was answered");
        let Self { ended, in_flight, control, replies, .. } = self;
        ended.retain(|(id, _)| {
            let other = in_flight.get(*id).is_none_or(|pending| pending.queue != queue);
            if !other {
                in_flight.complete(*id);
                control.task_ended(*id, replies);
            }
            other
        });
        !in_flight.iter().any(|(_, pending)| pending.queue == queue)
    }

    fn drain(&mut self) {
        self.bus.drain();
    }

    fn fail_lost(&mut self) -> bool {
        self.bus.fail_lost()
    }

    /// [`reap`](Self::reap) leaves out disks without requests.
    fn woken_in_vain(&mut self) {
        self.bus.clear_late_events();
    }

    fn refresh(&mut self) -> bool {
        self.check_capacities()
    }

    fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint {
        self.in_flight.footprint(dma, |pending| pending.answer.address())
    }

    fn events(&self) -> Vec<BorrowedFd<'_>> {
        self.bus.events()
    }

    fn queue_stats(&self) -> QueueStats {
        self.bus.queue_stats()
    }
}
