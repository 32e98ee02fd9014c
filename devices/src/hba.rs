//! The engine of the host bus adapters (HBAs): the I/O path between the guest's queue and a SCSI bus, and the contract with the owner.
//!
//! ```text
//!   guest's queue -- take_batch --> admits -> submit --> scsi::Bus --> complete --> post --> try_post --> guest's queue
//!                                     |         ^                                     |         ^
//!                                     +-backlog-+                                     +deferred-+
//! ```
//! [`Engine`] has the state that all adapters have. [`Hba`] is what an adapter implements: how a request is taken and parsed, how a completion
//! is posted, how the guest is signalled. An [`Hba`] is an [`IoDevice`] with [`HotPlug`]. All calls are monomorphic.
//!
//! The engine processes one batch for each call of its owner, so that a virtual CPU that accesses a register waits for one batch at most. It calls
//! the adapter in this order:
//!
//! 1. `try_post` for each deferred completion, and `signal` if one was posted (with [`Hba::SIGNALS_FULL_QUEUE`] in any case);
//! 2. `poll_reset`, `batch_reaped`; for each task that has ended `complete_task`, which calls `post`; `batch_posted`, and `signal` if it is time;
//! 3. `start_queued` for each request of the backlog that may start, then `take_batch`; both may call `post`, for requests that fail at once;
//! 4. step 2 again, for what has completed during step 3.
//!
//! `signal` may follow each `post`, if the moderation does not hold it back. So `signal` must itself publish the completions that were posted and
//! not yet published.
//!
//! Before the thread sleeps, the engine calls `prepare_sleep` and `next_poll`. It begins no batch while a completion waits for a free slot. So the
//! memory is bounded for a guest that reads no completions: besides completions of requests that were in flight, only those of one batch and of the
//! backlog can be deferred.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use vm_memory::GuestAddressSpace;

use crate::backlog::Backlog;
use crate::device::{HotPlug, IoDevice, Sleep, Stats};
use crate::dma::{Dma, Footprint};
use crate::in_flight::InFlight;
use crate::kind::AdapterKind;
use crate::moderation::{Coalescing, ModerationState, Moderator};
use crate::retry::Retry;
use crate::scsi::{Address, AttachError, Bus, LogicalUnit, Task, TaskEnd};
use crate::time::Time;

/// Maximum number of requests that are taken from a queue of the guest before the disk queues are submitted.
pub(crate) const BATCH: u32 = 128;

/// The state of an adapter that does not depend on its registers and formats. `P`, `Q`, `C`: [`Hba::Pending`], [`Hba::Queued`] and
/// [`Hba::Completion`].
pub struct Engine<A: GuestAddressSpace, P, Q, C> {
    /// First, so that it is dropped first: its drop waits for the requests in flight, while `dma` still holds their memory.
    pub(crate) bus: Bus,
    pub(crate) dma: Dma<A>,
    pub(crate) moderator: Moderator,
    /// Requests in flight, by task number.
    pub(crate) in_flight: InFlight<P>,
    /// Requests that were taken from the guest and wait for a task number.
    pub(crate) backlog: Backlog<Q>,
    /// Completions that wait for a free slot in the guest's queue, oldest first.
    pub(crate) deferred: VecDeque<C>,
    /// When to try to post them again.
    pub(crate) retry: Retry,
    /// The guest's queue is in memory that is about to be unmapped: no request is taken until it is unmapped.
    pub(crate) queue_refused: bool,
    /// Requests may start, or completions may be posted, and no event reports it.
    pub(crate) has_work: bool,
    /// The ends of a batch: reused, so that it need not be allocated.
    ended: Vec<(u32, TaskEnd)>,
    pub(crate) stats: Stats,
}

/// The engine of an adapter.
pub(crate) type EngineOf<H> =
    Engine<<H as Hba>::Memory, <H as Hba>::Pending, <H as Hba>::Queued, <H as Hba>::Completion>;

impl<A: GuestAddressSpace, P: Copy, Q, C> Engine<A, P, Q, C> {
    /// In front of `bus`, for at most `tasks` requests in flight.
    pub(crate) fn new(memory: A, bus: Bus, coalescing: Coalescing, tasks: u32) -> Self {
        let tasks = tasks.max(1);
        Self {
            bus,
            dma: Dma::new(memory),
            moderator: Moderator::new(coalescing),
            in_flight: InFlight::new(tasks),
            backlog: Backlog::new(),
            deferred: VecDeque::with_capacity(tasks as usize),
            retry: Retry::default(),
            queue_refused: false,
            has_work: false,
            ended: Vec::with_capacity(tasks as usize),
            stats: Stats::default(),
        }
    }

    /// Whether a request of this unit, which was just taken, may start. If not, the caller puts it into the backlog.
    #[inline(always)]
    pub(crate) fn admits(&self, address: Address) -> bool {
        self.backlog.admits(&self.bus, address, self.in_flight.free_slots())
    }

    /// Give a request a task number, and hand it to its unit. `Ok`: it is in flight with this number. `Err`: it has ended.
    #[inline(always)]
    pub(crate) fn submit(&mut self, task: Task<'_>, pending: impl FnOnce() -> P) -> Result<u32, TaskEnd> {
        let Some(id) = self.in_flight.allocate() else {
            debug_assert!(false, "a request was admitted without a task number");
            return Err(TaskEnd::NoTarget);
        };
        match self.bus.submit(&Task { id, ..task }) {
            None => {
                self.in_flight.store(id, pending(), self.dma.footprint());
                Ok(id)
            }
            Some(end) => {
                self.in_flight.release(id);
                Err(end)
            }
        }
    }

    /// Requests that were taken and have neither ended nor been dropped.
    #[cfg(test)]
    pub(crate) fn unanswered(&self) -> u64 {
        u64::from(self.in_flight.count()) + self.backlog.len() as u64
    }

    /// Drop the requests that have not started, and all completions and signals that were held back.
    pub(crate) fn drop_waiting(&mut self) {
        self.stats.completions += self.backlog.len() as u64;
        self.backlog.clear();
        self.deferred.clear();
        let _ = self.moderator.flush();
        self.has_work = false;
    }

    /// Drop the requests in flight without completions. False: the disks have not completed all of them, and may still access guest memory.
    pub(crate) fn drop_in_flight(&mut self) -> bool {
        self.bus.discard();
        if self.bus.in_flight() > 0 {
            return false;
        }
        self.stats.completions += u64::from(self.in_flight.count());
        self.in_flight.clear();
        self.queue_refused = false;
        self.dma.release();
        true
    }
}

/// A host bus adapter: the part that depends on its registers and formats.
pub trait Hba {
    /// Guest memory.
    type Memory: GuestAddressSpace;
    /// The fields of a request in flight that its completion needs.
    type Pending: Copy;
    /// A request of the backlog.
    type Queued;
    /// A completion or another message, as it is written to the guest's queue.
    type Completion;

    /// Its engine.
    fn engine(&self) -> &EngineOf<Self>;

    /// Its engine, mutable.
    fn engine_mut(&mut self) -> &mut EngineOf<Self>;

    /// The adapter's name.
    fn kind(&self) -> AdapterKind;

    /// The address on the bus of the unit that the owner of the device calls `address`. `None`: the adapter has no such target.
    fn place(&self, address: Address) -> Option<Address>;

    /// Report to the guest that a unit was attached or detached.
    fn announce(&mut self, _place: Address, _attached: bool) {}

    /// Set the power-on state. Waits for the disks.
    fn power_on(&mut self);

    /// Complete a reset that waits for the disks, if they have completed all requests.
    fn poll_reset(&mut self) {}

    /// Whether requests may be taken and started.
    fn can_start(&self) -> bool;

    /// Whether completions may be posted: guest memory may be written.
    fn can_post(&self) -> bool {
        true
    }

    /// Maximum number of requests in the backlog. With more, requests stay in the guest's queue.
    fn max_backlog(&self) -> usize;

    /// Whether a request may be taken from the guest's queue.
    #[inline]
    fn can_fetch(&self) -> bool {
        let engine = self.engine();
        self.can_start()
            && engine.deferred.is_empty()
            && !engine.queue_refused
            && engine.backlog.len() < self.max_backlog()
    }

    /// If [`can_fetch`](Self::can_fetch) is true, take up to [`BATCH`] requests of each queue of the guest, while the backlog has space: start
    /// each that the engine [admits](Engine::admits), and put the others into the backlog. False: none was taken.
    fn take_batch(&mut self, now: Time) -> bool;

    /// Before the thread sleeps: request the guest's notification for the requests that come meanwhile. True: the thread must not sleep, because
    /// [`take_batch`](Self::take_batch) would take a request.
    fn prepare_sleep(&mut self, now: Time) -> bool;

    /// Number of requests in the guest's queue, if it is known. Moderation counts them as in flight.
    fn waiting(&self) -> u32 {
        0
    }

    /// Start a request of the backlog.
    fn start_queued(&mut self, request: Self::Queued, now: Time);

    /// Complete the task with this number, which has ended: [`post`](Self::post) its completion.
    fn complete_task(&mut self, id: u32, pending: &Self::Pending, end: &TaskEnd, now: Time);

    /// The tasks of a batch were reaped; `any`: there are some. Their completions follow.
    fn batch_reaped(&mut self, _any: bool) {}

    /// The completions of a batch were posted: publish them.
    fn batch_posted(&mut self, _now: Time) {}

    /// Write a completion to the guest's queue. False: there is no free slot.
    fn try_post(&mut self, completion: &Self::Completion) -> bool;

    /// Store a completion until the guest's queue has a free slot.
    #[cold]
    fn defer(&mut self, completion: Self::Completion) {
        self.engine_mut().deferred.push_back(completion);
    }

    /// Whether a full queue is signalled again with each try to post deferred completions.
    const SIGNALS_FULL_QUEUE: bool = false;

    /// Signal the posted completions to the guest. Publishes those that were not published yet.
    fn signal(&mut self);

    /// Guest memory that requests use, if the device may access it.
    fn memory_in_use(&mut self) -> Footprint;

    /// Whether the completion of a request may write to a queue in one of these ranges.
    fn has_queue_in(&self, _ranges: &[Range<u64>]) -> bool {
        false
    }

    /// Signal the completions that moderation holds back.
    fn flush_signals(&mut self) {
        if self.engine_mut().moderator.flush() {
            self.signal();
        }
    }

    /// Change the moderation of all vectors. Signals that were held back are sent first.
    fn moderate(&mut self, coalescing: Coalescing) {
        if self.engine_mut().moderator.set_options(coalescing) {
            self.signal();
        }
    }

    /// The counters, without those of the disk queues.
    fn counters(&self) -> Stats {
        self.engine().stats
    }

    /// The state of the moderation of each vector.
    fn moderation_states(&self) -> Vec<ModerationState> {
        vec![self.engine().moderator.state()]
    }

    /// Whether completions or messages wait for a free slot.
    fn has_deferred(&self) -> bool {
        !self.engine().deferred.is_empty()
    }

    /// When to poll the guest's queue for requests that no event reports.
    fn next_poll(&self) -> Option<Time> {
        None
    }

    /// When the device must be called again at the latest.
    fn deadline(&mut self, now: Time) -> Option<Time> {
        let (has_deferred, next_poll) = (self.has_deferred(), self.next_poll());
        let engine = self.engine_mut();
        let deadlines = [engine.moderator.deadline(), engine.retry.deadline(has_deferred, now), next_poll];
        // While nothing can be posted, the deadlines would have no effect.
        deadlines.into_iter().flatten().min().filter(|_| self.can_post())
    }

    /// Post what was deferred, complete the tasks that have ended, and take a batch of requests.
    fn service(&mut self, now: Time) {
        let engine = self.engine_mut();
        engine.has_work = false;
        engine.retry.tried();
        if !engine.deferred.is_empty() && self.can_post() {
            self.post_deferred();
        }
        self.complete(now);
        if self.fetch(now) {
            self.complete(now);
        }
    }

    /// Start requests of the backlog, take a batch of requests, and submit both to the disks. False: no request was started or taken.
    #[inline]
    fn fetch(&mut self, now: Time) -> bool {
        let engine = self.engine();
        if engine.queue_refused || !engine.deferred.is_empty() || !self.can_start() {
            return false;
        }
        let started = !self.engine().backlog.is_empty() && self.start_backlog(now);
        let any = self.take_batch(now) || started;
        if any {
            self.engine_mut().bus.submit_pushed();
        }
        any
    }

    /// Start requests of the backlog while there are task numbers. False: none was started.
    #[cold]
    fn start_backlog(&mut self, now: Time) -> bool {
        let mut started = false;
        while self.can_start() {
            let engine = self.engine_mut();
            let Some(request) = engine.backlog.next(&engine.bus, engine.in_flight.free_slots()) else {
                break;
            };
            self.start_queued(request, now);
            started = true;
        }
        started
    }

    /// Post the completions of tasks that have ended, and decide whether to signal.
    fn complete(&mut self, now: Time) {
        self.poll_reset();
        if !self.can_post() {
            return;
        }
        let engine = self.engine_mut();
        let mut ended = std::mem::take(&mut engine.ended);
        engine.bus.reap(&mut ended);
        // Requests of the backlog may get the task numbers.
        engine.has_work |= !ended.is_empty() && !engine.backlog.is_empty();
        self.batch_reaped(!ended.is_empty());
        for &(id, ref end) in &ended {
            let Some(pending) = self.engine_mut().in_flight.complete(id) else {
                debug_assert!(false, "task {id} ended and was not in flight");
                continue;
            };
            self.complete_task(id, &pending, end, now);
        }
        ended.clear();
        self.engine_mut().ended = ended;
        self.batch_posted(now);
        if self.engine_mut().moderator.end_batch(now) {
            self.signal();
        }
    }

    /// [`complete`](Self::complete) where no [`fetch`](Self::fetch) follows: requests that wait may get the task numbers, and no event reports
    /// that.
    fn complete_without_fetch(&mut self, now: Time) {
        let before = self.engine().in_flight.count();
        self.complete(now);
        let engine = self.engine_mut();
        engine.has_work |= engine.in_flight.count() < before;
    }

    /// Post the completion of a request, or defer it until the guest's queue has a free slot.
    #[inline(always)]
    fn post(&mut self, completion: Self::Completion, now: Time) {
        if !self.engine().deferred.is_empty() || !self.try_post(&completion) {
            self.engine_mut().stats.completions += 1;
            return self.defer(completion);
        }
        self.posted(now);
    }

    /// The completion of a request was posted. The guest sees it at the end of the batch, or here before a signal.
    #[inline(always)]
    fn posted(&mut self, now: Time) {
        let waiting = self.waiting();
        let engine = self.engine_mut();
        engine.stats.completions += 1;
        let in_flight = engine.in_flight.count() + engine.backlog.len() as u32 + waiting;
        if engine.moderator.completed(in_flight, now) {
            self.signal();
        }
    }

    /// Post deferred completions while the guest's queue has free slots.
    #[cold]
    fn post_deferred(&mut self) {
        let mut posted = Self::SIGNALS_FULL_QUEUE;
        while let Some(completion) = self.engine_mut().deferred.pop_front() {
            if !self.try_post(&completion) {
                self.engine_mut().deferred.push_front(completion);
                break;
            }
            posted = true;
        }
        if posted {
            let _ = self.engine_mut().moderator.flush();
            self.signal();
        }
    }
}

impl<T: Hba + Send> IoDevice for T {
    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.engine_mut().stats.doorbells += 1;
        self.service(now);
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        self.engine().bus.events()
    }

    fn on_completions(&mut self, now: Time) {
        let completed = self.engine().stats.completions;
        self.service(now);
        if self.engine().stats.completions == completed {
            self.engine_mut().bus.clear_late_events();
        }
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if self.engine().has_work || self.prepare_sleep(now) || self.engine_mut().bus.fail_lost() {
            return Sleep::No;
        }
        self.deadline(now).map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, _now: Time) {
        self.power_on();
    }

    fn quiesce(&mut self, now: Time) {
        self.engine_mut().bus.drain();
        self.complete(now);
        // Requests that were taken from the guest's queue already complete, too.
        while self.start_backlog(now) {
            self.engine_mut().bus.drain();
            self.complete(now);
        }
        self.flush_signals();
        self.engine_mut().dma.release();
    }

    fn uses_memory(&mut self, ranges: &[Range<u64>], now: Time) -> bool {
        self.complete_without_fetch(now);
        let in_queue = self.can_post() && self.engine().in_flight.count() > 0 && self.has_queue_in(ranges);
        in_queue || self.memory_in_use().meets(self.engine().dma.users_of(ranges))
    }

    fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        let refused = self.has_queue_in(ranges);
        let engine = self.engine_mut();
        engine.dma.refuse(ranges);
        engine.queue_refused |= refused;
    }

    fn memory_replaced(&mut self, _now: Time) {
        let in_use = self.memory_in_use();
        let engine = self.engine_mut();
        engine.dma.replaced(in_use);
        engine.has_work |= std::mem::take(&mut engine.queue_refused);
    }

    fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.moderate(coalescing);
    }

    fn moderation(&self) -> Vec<ModerationState> {
        self.moderation_states()
    }

    fn hot_plug(&mut self) -> Option<&mut dyn HotPlug> {
        Some(self)
    }

    fn refresh(&mut self, _now: Time) {
        self.engine_mut().bus.refresh();
    }

    fn stats(&self) -> Stats {
        self.counters().with(&self.engine().bus.queue_stats())
    }
}

impl<T: Hba> HotPlug for T {
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        let place = self.place(address).ok_or(AttachError::Target(address))?;
        let unit = unit.named(|| self.kind().serial_of_place(address));
        self.engine_mut().bus.attach(place, unit).map_err(|error| match error {
            // The owner's address, not that on the bus.
            AttachError::Taken(_) => AttachError::Taken(address),
            other => other,
        })?;
        self.announce(place, true);
        Ok(())
    }

    fn detach(&mut self, address: Address, now: Time) -> bool {
        let Some(place) = self.place(address) else { return false };
        let engine = self.engine_mut();
        let detached = engine.bus.detach(place);
        // Requests of the backlog for the unit can be answered now.
        engine.has_work |= !engine.backlog.is_empty();
        self.complete_without_fetch(now);
        if detached {
            self.announce(place, false);
        }
        detached
    }

    fn detaching(&self, address: Address) -> bool {
        self.place(address).is_some_and(|place| self.engine().bus.detaching(place))
    }
}
