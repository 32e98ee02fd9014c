//! The virtqueues that one thread serves: requests are taken from the rings and started, completions are posted, signals decided.
//! A [`VirtioDevice`](super::device::VirtioDevice) has one such set for each of its threads, or one set on the thread that calls it; vhost-user
//! has one for each virtqueue. What is behind the queues is [`Requests`]: of virtio-blk a queue of the disk, of virtio-scsi a SCSI bus.
//!
//! ```text
//! guest: rings -> fetch -> Requests::start -> disks -> Requests::next_ended -> post -> used ring, Front::signal
//! ```

use std::ops::Range;
use std::os::fd::BorrowedFd;

use paradisk_disk_formats::QueueStats;
use vm_memory::GuestAddressSpace;

use super::descriptors::DescriptorChain;
use super::queue::{Broken, RingSetup, Virtqueue};
use crate::device::{Sleep, Stats};
use crate::dma::{Dma, Footprint, Spans, View};
use crate::moderation::{Coalescing, ModerationState};
use crate::time::Time;

/// Maximum number of requests taken from a queue before the next queue is served.
const BATCH: usize = 128;

/// Maximum number of rounds over all queues in one call.
const MAX_ROUNDS: usize = 16;

/// What the rings report to. Queues have the numbers that they have in their [`Rings`].
pub trait Front: Send {
    /// Completions are posted one by one, so that a later server can [resume](Rings::resume) the requests in flight; and a broken queue is
    /// reported when its requests in flight have ended.
    const TRACKS: bool = false;

    /// Signal the guest for posted completions.
    fn signal(&mut self, queue: usize);
    /// The rings or a chain cannot be processed. No further request of any queue is taken; requests in flight complete.
    fn broken(&mut self, queue: usize);
    /// A reset that waited for the disk has ended.
    fn reset_ended(&mut self) {}
    /// The chain of this head is taken.
    fn taken(&mut self, _head: u16) {}
    /// The completion of this chain is about to be posted.
    fn posting(&mut self, _head: u16) {}
    /// The completion is posted: the used index is `used` now.
    fn posted(&mut self, _head: u16, _used: u16) {}
}

/// A chain that is answered: its response is written to guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub(super) queue: usize,
    pub(super) head: u16,
    /// Bytes written from the start of the writable part, at least. `None`: the response's address is not in memory.
    pub(super) written: Option<u32>,
    /// The request succeeded.
    pub(super) good: bool,
}

/// The requests behind the queues of one set of [`Rings`]. All calls are monomorphic.
pub trait Requests: Send {
    /// The queues below this number carry no requests: [`serve_others`](Self::serve_others) takes their chains.
    const OTHER_QUEUES: usize = 0;

    /// Number of requests that can be started.
    fn free_slots(&self) -> usize;

    /// Whether a further chain of a queue could be taken. If not, the next completion makes the rings fetch.
    fn wants(&self, _queue: usize) -> bool {
        self.free_slots() > 0
    }

    /// Start the request of a chain. Only with [free slots](Self::free_slots).
    ///
    /// # Errors
    /// [`Broken`] if the chain cannot be processed or has no place for a response.
    fn start<A: GuestAddressSpace, M: Spans>(
        &mut self,
        queue: usize,
        descriptors: DescriptorChain<'_, M>,
        dma: &mut Dma<A>,
    ) -> Result<(), Broken>;

    /// Start requests that were taken but had to wait and, if `take` is set, take chains of the other queues. True: serve all queues again.
    ///
    /// # Errors
    /// [`Broken`] as of [`start`](Self::start).
    #[inline(always)]
    fn serve_others<A: GuestAddressSpace, M: Spans>(
        &mut self,
        _queues: &mut [Virtqueue],
        _take: bool,
        _dma: &mut Dma<A>,
        _memory: &M,
    ) -> Result<bool, Broken> {
        Ok(false)
    }

    /// Submit the started requests to the disks.
    fn submit(&mut self);

    /// Reap completions of the disks.
    fn reap(&mut self);

    /// Whether there is a chain to answer.
    fn has_ended(&self) -> bool;

    /// Write the response of the next chain that is to be answered.
    fn next_ended<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Ended>;

    /// A queue (`None`: the device) is reset. Its requests start no further steps, and their completions are not posted. Never waits.
    fn disown(&mut self, queue: Option<usize>);

    /// Forget the requests of a queue that have ended. True: the disks have no more of them.
    fn forget(&mut self, queue: usize) -> bool;

    /// Wait until no request is in flight.
    fn drain(&mut self);

    /// Fail requests that a disk's queue has lost ([`fault`](crate::fault)). True: there were some. To be called after `submit` and `reap`.
    fn fail_lost(&mut self) -> bool;

    /// A disk's event has woken the thread, and nothing had completed.
    fn woken_in_vain(&mut self) {}

    /// Check whether disks have another capacity. True: there is something to report in a queue.
    fn refresh(&mut self) -> bool {
        false
    }

    /// Guest memory that requests use.
    fn footprint<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Footprint;

    /// Readable (level-triggered) while requests may have completed.
    fn events(&self) -> Vec<BorrowedFd<'_>>;

    /// Counters of the disks' queues.
    fn queue_stats(&self) -> QueueStats;
}

/// The virtqueues that one thread serves. One thread at a time uses them.
///
/// ```text
/// start -> { service -> before_sleep -> sleep on notifications and events } ... -> stop
/// ```
pub struct Rings<A: GuestAddressSpace, F, R> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` keeps their memory.
    pub(super) requests: R,
    dma: Dma<A>,
    queues: Box<[Virtqueue]>,
    front: F,
    /// The queue that is served first, counted from the first queue that carries requests.
    first: usize,
    /// The device must not access memory, except for the requests in flight.
    paused: bool,
    /// Requests may be taken.
    taking: bool,
    /// Rings are in memory that is about to be unmapped: no request is taken until it is unmapped.
    refused: bool,
    /// There may be work that no event announces.
    pub(super) has_work: bool,
    /// A queue that is broken, until that is reported.
    broken: Option<usize>,
    /// The time of the last call.
    now: Time,
    pub(super) stats: Stats,
}

impl<A: GuestAddressSpace, F: Front, R: Requests> Rings<A, F, R> {
    /// Queues in front of `requests`: at least one that carries requests, and those that carry none. Each has at most `queue_size` entries.
    pub(super) fn over(
        requests: R,
        memory: A,
        queues: u16,
        queue_size: u16,
        coalescing: Coalescing,
        front: F,
    ) -> Self {
        let queues = usize::from(queues).max(R::OTHER_QUEUES + 1);
        Self {
            requests,
            dma: Dma::new(memory),
            queues: (0..queues).map(|_| Virtqueue::new(queue_size, coalescing)).collect(),
            front,
            first: 0,
            paused: false,
            taking: false,
            refused: false,
            has_work: false,
            broken: None,
            now: Time::default(),
            stats: Stats::default(),
        }
    }

    /// What the rings report to.
    pub const fn front(&mut self) -> &mut F {
        &mut self.front
    }

    /// Change the interrupt moderation. Signals that are held back are sent, if the guest wants them.
    pub fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.queues.iter_mut().for_each(|queue| queue.signal.set_options(coalescing));
        self.complete(&self.dma.view());
        // Requests may start in place of those that were completed.
        self.has_work = true;
    }

    /// Change the guest memory. Waits for the requests in flight, and stops all queues without posting completions: the old memory may be
    /// unmapped.
    pub fn set_memory(&mut self, memory: A) {
        (0..self.queues.len()).for_each(|queue| self.abandon(queue));
        self.dma = Dma::new(memory);
    }

    /// Start to use a queue's rings.
    ///
    /// # Errors
    /// [`Broken`] if the size is invalid, or the rings are not in memory or not aligned.
    pub fn start(&mut self, queue: usize, setup: &RingSetup) -> Result<(), Broken> {
        self.abandon(queue);
        self.queues.get_mut(queue).ok_or(Broken)?.enable(&self.dma.view(), setup)?;
        (self.taking, self.has_work, self.broken) = (true, true, None);
        Ok(())
    }

    /// Index of the next completion in a queue's used ring.
    pub fn used_index(&self, queue: usize) -> u16 {
        self.queues.get(queue).map_or(0, Virtqueue::next_used)
    }

    /// Start requests that an earlier server had taken but not completed. To be called before [`service`](Self::service).
    ///
    /// # Errors
    /// [`Broken`] if a chain cannot be processed or has no status byte.
    pub fn resume(&mut self, queue: usize, heads: &[u16]) -> Result<(), Broken> {
        let memory = self.dma.view();
        let virtqueue = self.queues.get_mut(queue).ok_or(Broken)?;
        for &head in heads.iter().take(self.requests.free_slots()) {
            let chain = virtqueue.chain(&memory, head);
            self.requests.start(queue, chain, &mut self.dma)?;
            virtqueue.in_flight += 1;
            self.stats.requests += 1;
        }
        self.requests.submit();
        Ok(())
    }

    /// Post completions and take waiting requests.
    pub fn service(&mut self, now: Time) {
        self.now = now;
        self.end_resets();
        self.has_work = false;
        let memory = self.dma.view();
        if !self.paused {
            self.queues.iter_mut().for_each(|queue| queue.note_waiting(&memory, now));
        }
        // Also while nothing is in flight: the disk's event may have become readable since, and stays so until its queue is reaped.
        self.complete(&memory);
        for _ in 0..MAX_ROUNDS {
            let fetched = self.fetch(&memory);
            if !self.serve_others(!self.refused, &memory) && !fetched {
                return self.report_broken();
            }
            self.requests.submit();
            self.complete(&memory);
        }
        self.has_work = true;
        self.report_broken();
    }

    /// A queue cannot be processed.
    #[cold]
    fn fail(&mut self, queue: usize) {
        self.taking = false;
        self.broken = Some(queue);
        // It is reported by the next `service`, whatever call has found it.
        self.has_work = true;
    }

    /// Report a broken queue, after the completions before it were posted.
    fn report_broken(&mut self) {
        let Some(queue) = self.broken else { return };
        if !F::TRACKS || self.queues.get(queue).is_none_or(|queue| queue.in_flight == 0) {
            self.broken = None;
            self.front.broken(queue);
        }
    }

    /// Take a batch from each queue that carries requests. False: nothing was taken.
    fn fetch(&mut self, memory: &View<A::T>) -> bool {
        let (first, count) = (self.first, self.queues.len() - R::OTHER_QUEUES);
        // Round robin: the free slots may not suffice for all queues.
        self.first = (first + 1) % count;
        let mut any = false;
        for n in 0..count {
            any |= self.fetch_queue(R::OTHER_QUEUES + (first + n) % count, memory);
        }
        any
    }

    fn fetch_queue(&mut self, index: usize, memory: &View<A::T>) -> bool {
        let free = self.requests.free_slots().min(BATCH) as u32;
        if free == 0 || !self.taking || self.paused || self.refused {
            return false;
        }
        let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.active()) else { return false };
        let mut count = 0;
        let mut started = Ok(());
        let taken = queue.take(memory).map(|mut chains| {
            while count < free
                && let Some(chain) = chains.next()
            {
                let head = chain.head_index();
                started = self.requests.start(index, chain, &mut self.dma);
                if started.is_err() {
                    break;
                }
                // Recorded before `submit`. After a kill, a recorded request is started again; an unrecorded one is still in the ring.
                self.front.taken(head);
                count += 1;
            }
        });
        queue.in_flight += count;
        self.stats.requests += u64::from(count);
        if started.is_err() {
            queue.put_back();
        }
        if taken.and(started).is_err() {
            self.fail(index);
        }
        count > 0
    }

    /// [`Requests::serve_others`]. Also while memory is [refused](Self::refuse_memory): requests that were taken keep it in use.
    #[inline(always)]
    fn serve_others(&mut self, take: bool, memory: &View<A::T>) -> bool {
        if !self.taking || self.paused {
            return false;
        }
        let served = self.requests.serve_others(&mut self.queues, take, &mut self.dma, memory);
        served.unwrap_or_else(|Broken| {
            self.fail(0);
            // What was started before must be submitted and waited for.
            true
        })
    }

    /// Post the completions of requests that have ended, and decide for each queue whether to signal.
    fn complete(&mut self, memory: &View<A::T>) {
        self.requests.reap();
        if self.paused {
            return;
        }
        if self.requests.has_ended() {
            self.queues.iter_mut().skip(R::OTHER_QUEUES).for_each(|queue| queue.count_waiting(memory));
            while let Some(ended) = self.requests.next_ended(&mut self.dma) {
                self.post(&ended, memory);
            }
        }
        // A function's response follows the completions of the requests that it ended.
        for index in (R::OTHER_QUEUES..self.queues.len()).chain(0..R::OTHER_QUEUES) {
            match self.queues[index].end_batch(memory, self.now) {
                Ok(false) => {}
                Ok(true) => self.front.signal(index),
                Err(Broken) => self.fail(index),
            }
        }
    }

    #[inline(always)]
    fn post(&mut self, ended: &Ended, memory: &View<A::T>) {
        let Ended { queue: index, head, written, good } = *ended;
        let Some(queue) = self.queues.get_mut(index) else { return };
        if index >= R::OTHER_QUEUES {
            self.stats.completions += 1;
            self.stats.errors += u64::from(!good);
        } else {
            // Control responses and events are rare, and the driver waits for them.
            queue.signal.force();
        }
        let Some(written) = written else {
            queue.in_flight = queue.in_flight.saturating_sub(1);
            return self.fail(index);
        };
        if F::TRACKS {
            self.front.posting(head);
        }
        let mut signal = queue.complete(memory, (head, written), self.now);
        if F::TRACKS {
            // Published one by one: if the server is killed before `posted`, only one posted completion is not recorded.
            signal = signal.and_then(|signal| queue.publish(memory).map(|()| signal));
            if signal.is_ok() {
                self.front.posted(head, queue.next_used());
            }
        }
        match signal {
            Ok(false) => {}
            Ok(true) => self.front.signal(index),
            Err(Broken) => self.fail(index),
        }
    }

    /// To be called before the thread sleeps: enables notifications, then checks for requests that came before the guest saw that.
    /// A notification or the disk's event ends the sleep. It has a deadline while notifications are suppressed or a signal is held back.
    pub fn before_sleep(&mut self, now: Time) -> Sleep {
        self.now = now;
        if self.has_work || self.requests.fail_lost() {
            return Sleep::No;
        }
        if self.paused {
            return Sleep::Forever;
        }
        if self.taking && !self.refused {
            let memory = self.dma.view();
            for index in 0..self.queues.len() {
                let queue = &mut self.queues[index];
                let arm = queue.active() && self.requests.wants(index);
                match if arm { queue.arm(&memory, now) } else { Ok(false) } {
                    Ok(false) => {}
                    Ok(true) => {
                        self.has_work = true;
                        return Sleep::No;
                    }
                    Err(Broken) => self.fail(index),
                }
            }
            self.report_broken();
        }
        let deadline = self.queues.iter().filter_map(Virtqueue::deadline).min();
        deadline.map_or(Sleep::Forever, Sleep::Until)
    }

    /// Wait for requests in flight, post completions, then stop using a queue's rings. Returns the index of the first chain that was not
    /// processed. `None`: no rings were in use.
    pub fn stop(&mut self, queue: usize) -> Option<u16> {
        let virtqueue = self.queues.get_mut(queue).filter(|queue| queue.ready())?;
        // No signal stays held back.
        virtqueue.signal.force();
        self.requests.drain();
        self.complete(&self.dma.view());
        let next = self.queues.get(queue).map(Virtqueue::next_avail);
        self.abandon(queue);
        next
    }

    /// Wait for requests in flight, post nothing, and stop using a queue's rings.
    pub fn abandon(&mut self, queue: usize) {
        if self.queues.get(queue).is_some_and(Virtqueue::ready) {
            self.begin_reset(Some(queue));
            self.drain();
        }
    }

    /// Begin a reset of a queue (`None`: of all). Requests in flight start no further steps, and their completions are not posted. Does not
    /// wait.
    pub(super) fn begin_reset(&mut self, queue: Option<usize>) {
        for (index, virtqueue) in self.queues.iter_mut().enumerate() {
            if virtqueue.ready() && queue.is_none_or(|queue| queue == index) {
                virtqueue.resetting = true;
                virtqueue.signal.reset();
            }
        }
        self.requests.disown(queue);
        self.end_resets();
    }

    /// The queues whose reset waits for the disk.
    pub(super) fn resetting(&mut self) -> Vec<usize> {
        self.end_resets();
        (0..self.queues.len()).filter(|queue| self.queues[*queue].resetting).collect()
    }

    /// Complete the resets whose requests the disk has completed.
    fn end_resets(&mut self) {
        if !self.queues.iter().any(|queue| queue.resetting) {
            return;
        }
        self.requests.reap();
        for (index, queue) in self.queues.iter_mut().enumerate().filter(|(_, queue)| queue.resetting) {
            if self.requests.forget(index) {
                // The requests that the reset has dropped are over, too.
                self.stats.completions += u64::from(queue.in_flight) * u64::from(index >= R::OTHER_QUEUES);
                queue.reset();
                self.front.reset_ended();
                // Requests of other queues may wait for the free slots.
                self.has_work = true;
            }
        }
        if !self.queues.iter().any(Virtqueue::ready) {
            self.dma.release();
            (self.refused, self.broken) = (false, None);
        }
        self.has_work |= self.requests.has_ended();
    }

    /// Wait for requests in flight, and post nothing.
    pub(super) fn drain(&mut self) {
        self.requests.drain();
        self.end_resets();
    }

    /// Stop accessing memory, except for the requests in flight; or resume.
    pub(super) const fn pause(&mut self, paused: bool) {
        self.paused = paused;
        self.has_work |= !paused;
    }

    /// Whether requests may be taken.
    pub(super) const fn set_taking(&mut self, taking: bool) {
        self.taking = taking;
        self.has_work |= taking;
    }

    /// Wait for requests in flight, post completions and send the signals that are held back, unless paused; then release guest memory that
    /// the owner has removed. `pause`: from now on.
    pub(super) fn quiesce(&mut self, pause: bool) {
        loop {
            self.drain();
            self.queues.iter_mut().for_each(|queue| queue.signal.force());
            self.complete(&self.dma.view());
            // Requests that were taken from the rings complete, too.
            if !self.serve_others(false, &self.dma.view()) {
                break;
            }
        }
        self.dma.release();
        self.has_work = true;
        self.paused |= pause;
    }

    /// [`uses_memory`](crate::IoDevice::uses_memory).
    pub(super) fn uses_memory(&mut self, ranges: &[Range<u64>]) -> bool {
        self.end_resets();
        let before = self.stats.completions;
        self.complete(&self.dma.view());
        // Requests that waited for the completed ones can start, and no further event will announce that.
        self.has_work |= self.stats.completions != before;
        // The completion of a request writes to its ring. After a broken ring the requests that were taken do not all complete.
        let posts = |queue: &Virtqueue| queue.active() && queue.in_flight > 0;
        let in_rings = self.taking && !self.paused && self.has_rings_in(ranges, posts);
        in_rings || self.memory_in_use().meets(self.dma.users_of(ranges))
    }

    /// [`refuse_memory`](crate::IoDevice::refuse_memory).
    pub(super) fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        self.dma.refuse(ranges);
        // Further requests would keep the rings in use.
        self.refused |= self.has_rings_in(ranges, |_| true);
    }

    /// [`memory_replaced`](crate::IoDevice::memory_replaced).
    pub(super) fn memory_replaced(&mut self) {
        let in_use = self.memory_in_use();
        self.dma.replaced(in_use);
        self.has_work |= std::mem::take(&mut self.refused);
    }

    fn has_rings_in(&self, ranges: &[Range<u64>], wanted: impl Fn(&Virtqueue) -> bool) -> bool {
        let mut queues = self.queues.iter().filter(|queue| wanted(queue));
        queues.any(|queue| ranges.iter().any(|range| queue.has_ring_in(range)))
    }

    /// Guest memory that requests use. While paused there is none: the disk has completed all requests, and only their completions are not
    /// posted yet.
    fn memory_in_use(&mut self) -> Footprint {
        if self.paused { Footprint::NONE } else { self.requests.footprint(&mut self.dma) }
    }

    /// Readable (level-triggered) while requests may have completed.
    pub fn events(&self) -> Vec<BorrowedFd<'_>> {
        self.requests.events()
    }

    /// [`service`](Self::service) after one of the [`events`](Self::events).
    pub(super) fn on_completions(&mut self, now: Time) {
        let completed = self.stats.completions;
        self.service(now);
        if self.stats.completions == completed {
            self.requests.woken_in_vain();
        }
    }

    /// [`Requests::refresh`].
    pub(super) fn refresh(&mut self) {
        self.has_work |= self.requests.refresh();
    }

    /// The state of each queue's moderation.
    pub fn moderation(&self) -> Vec<ModerationState> {
        self.queues.iter().map(|queue| queue.signal.moderation()).collect()
    }

    /// Counters since the creation: requests taken, requests ended (posted or dropped), errors, and those of the disk's queue.
    pub fn stats(&self) -> Stats {
        self.stats.with(&self.requests.queue_stats())
    }
}
