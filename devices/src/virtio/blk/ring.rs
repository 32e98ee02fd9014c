//! One queue of the block device without the PCI function, its interrupts and its registers. `ThreadedBlk` serves each of its queues by a
//! [`Ring`], and so do other transports such as vhost-user.

use std::os::fd::BorrowedFd;

use paradisk_disk_formats::{DiskInfo, DiskQueue, QueueStats};
use vm_memory::GuestAddressSpace;

use super::super::queue::{Addresses, Armed, Broken, Virtqueue};
use super::super::signals::Signal;
use super::requests::Requests;
use super::spec::{Status, VIRTIO_BLK_ID_BYTES};
use crate::device::{Sleep, Stats};
use crate::dma::{Dma, Spans};
use crate::moderation::{Coalescing, ModerationState};
use crate::time::Time;

/// Maximum number of requests taken before completions are posted.
const BATCH: usize = 128;

/// Maximum number of batches in one call.
const MAX_ROUNDS: usize = 16;

/// Configuration of a queue.
#[derive(Clone, Copy, Debug)]
pub struct RingConfig {
    /// Maximum number of entries of its rings: a power of two. The disk's queue must have at least this depth.
    pub max_size: u16,
    /// Serial number ([`serial`](super::serial)).
    pub serial: [u8; VIRTIO_BLK_ID_BYTES],
    /// Interrupt moderation, in addition to the guest's own suppression.
    pub coalescing: Coalescing,
}

/// Rings in guest memory, as a transport has received them.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Entries: a power of two.
    pub size: u16,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the available ring.
    pub available: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
    /// Index of the first chain to take.
    pub next_avail: u16,
    /// `VIRTIO_F_EVENT_IDX` is negotiated.
    pub event_index: bool,
}

/// Records which requests are in flight, so that a later server can [resume](Ring::resume) them. The ring calls it at each step of a
/// request.
pub trait Track {
    /// The chain of this head is taken.
    fn taken(&mut self, head: u16);
    /// The completion of this chain is about to be posted.
    fn posting(&mut self, head: u16);
    /// The completion is posted: the used index is `used` now.
    fn posted(&mut self, head: u16, used: u16);
}

/// Records nothing.
impl Track for () {
    #[inline]
    fn taken(&mut self, _: u16) {}
    #[inline]
    fn posting(&mut self, _: u16) {}
    #[inline]
    fn posted(&mut self, _: u16, _: u16) {}
}

/// One queue of a block device. One thread at a time uses it.
///
/// ```text
/// start -> { service -> before_sleep -> sleep on notification and event } ... -> stop
/// ```
pub struct Ring<A: GuestAddressSpace> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` keeps their memory.
    requests: Requests,
    dma: Dma<A>,
    queue: Virtqueue,
    /// The queue's moderation.
    signal: Signal,
    write_through: bool,
    /// When to poll for requests with suppressed notifications.
    poll_at: Option<Time>,
    /// `poll_at` had passed when the queue was served last.
    late: bool,
    /// After the queue broke: the available index of the first chain that was not processed.
    broken_at: Option<u16>,
    stats: Stats,
}

impl<A: GuestAddressSpace> Ring<A> {
    /// A virtqueue in front of `queue`, a queue of the disk that `info` describes.
    pub fn new(memory: A, queue: Box<dyn DiskQueue>, info: DiskInfo, config: RingConfig) -> Self {
        Self {
            requests: Requests::new(queue, info, config.serial, config.max_size.into()),
            dma: Dma::new(memory),
            queue: Virtqueue::new(config.max_size),
            signal: Signal::new(config.coalescing),
            poll_at: None,
            late: false,
            broken_at: None,
            stats: Stats::default(),
            // The mode for a driver that has accepted no feature.
            write_through: true,
        }
    }

    /// Whether writes must be on stable storage before they are completed
    /// ([`Configuration::write_through`](super::Configuration::write_through)).
    pub const fn set_write_through(&mut self, write_through: bool) {
        self.write_through = write_through;
    }

    /// Set the capacity of the disk in bytes.
    pub const fn set_capacity(&mut self, bytes: u64) {
        self.requests.set_capacity(bytes);
    }

    /// Change the interrupt moderation. If a signal is held back, the next [`service`](Self::service) sends it, if the guest wants it.
    pub fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.signal.set_options(coalescing);
    }

    /// Change the guest memory. Stops the queue as [`stop`](Self::stop) does, but posts no completions: the old memory may be
    /// unmapped.
    pub fn set_memory(&mut self, memory: A) {
        self.abandon();
        self.dma = Dma::new(memory);
    }

    /// Start to use rings. The first completion is posted at the used index in memory.
    ///
    /// # Errors
    /// [`Broken`] if the size is invalid, or the rings are not in memory or not aligned.
    pub fn start(&mut self, setup: &RingSetup) -> Result<(), Broken> {
        self.abandon();
        self.queue.set_size(setup.size);
        if self.queue.size() != setup.size {
            return Err(Broken);
        }
        self.queue.addresses =
            Addresses { desc: setup.descriptors, driver: setup.available, device: setup.used };
        let memory = self.dma.view();
        self.queue.enable(&memory, setup.event_index)?;
        self.queue.continue_at(&memory, setup.next_avail).inspect_err(|_| self.queue.reset())
    }

    /// Whether rings are in use.
    pub fn running(&self) -> bool {
        self.queue.ready()
    }

    /// Index of the next completion in the used ring.
    pub fn used_index(&self) -> u16 {
        self.queue.next_used()
    }

    /// Start requests that an earlier server had taken but not completed. To be called before [`service`](Self::service).
    ///
    /// # Errors
    /// [`Broken`] if a chain cannot be processed or has no status byte.
    pub fn resume(&mut self, heads: &[u16]) -> Result<(), Broken> {
        let memory = self.dma.view();
        for &head in heads.iter().take(self.requests.free_slots()) {
            let chain = self.queue.chain(&memory, head);
            self.requests.start(0, chain, self.write_through, &mut self.dma)?;
            self.queue.in_flight += 1;
            self.signal.in_flight += 1;
            self.stats.requests += 1;
        }
        self.requests.submit();
        Ok(())
    }

    /// Post completions and take waiting requests. `call` signals the guest.
    ///
    /// # Errors
    /// [`Broken`]: the rings or a chain cannot be processed. The queue is stopped then; its requests in flight have completed,
    /// and their completions are posted as far as the used ring is in memory.
    pub fn service(
        &mut self,
        now: Time,
        track: &mut impl Track,
        mut call: impl FnMut(),
    ) -> Result<(), Broken> {
        if !self.running() {
            // Nothing is in flight. But the disk's event may have become readable since, and stays so until the disk's queue is reaped.
            self.requests.reap();
            return Ok(());
        }
        let memory = self.dma.view();
        self.late = self.poll_at.take().is_some_and(|time| now >= time);
        self.queue.note_waiting(&memory, now);
        let served = self.rounds(&memory, track, now, &mut call);
        if served.is_err() {
            self.break_off(&memory, track);
            return Err(Broken);
        }
        if self.decide(&memory, now) {
            call();
        }
        Ok(())
    }

    fn rounds<M: Spans>(
        &mut self,
        memory: &M,
        track: &mut impl Track,
        now: Time,
        call: &mut impl FnMut(),
    ) -> Result<(), Broken> {
        self.complete(memory, track, now, call)?;
        for _ in 0..MAX_ROUNDS {
            if self.fetch(memory, track)? == 0 {
                break;
            }
            self.requests.submit();
            self.complete(memory, track, now, call)?;
        }
        Ok(())
    }

    /// Complete the requests in flight of a broken queue, and stop it. Its available index is stored for [`stop`](Self::stop).
    fn break_off<M: Spans>(&mut self, memory: &M, track: &mut impl Track) {
        self.requests.drain();
        // Each call takes at least one completed request, even if its completion cannot be posted.
        while self.complete(memory, track, Time::default(), &mut || ()).is_err() {}
        let next = self.queue.next_avail();
        self.abandon();
        self.broken_at = Some(next);
    }

    /// Take a batch of requests, and return their number.
    fn fetch<M: Spans>(&mut self, memory: &M, track: &mut impl Track) -> Result<u32, Broken> {
        let free = self.requests.free_slots().min(BATCH) as u32;
        let mut count = 0;
        if free == 0 {
            return Ok(0);
        }
        let mut chains = self.queue.take(memory)?;
        let mut started = Ok(());
        while count < free
            && let Some(chain) = chains.next()
        {
            let head = chain.head_index();
            started = self.requests.start(0, chain, self.write_through, &mut self.dma);
            if started.is_err() {
                break;
            }
            // Recorded before `submit`. After a kill, a recorded request is started again; an unrecorded one is still in the ring.
            track.taken(head);
            count += 1;
        }
        self.queue.in_flight += count;
        self.signal.in_flight += count;
        self.stats.requests += u64::from(count);
        started.inspect_err(|_| self.queue.put_back()).map(|()| count)
    }

    /// Post completions.
    fn complete<M: Spans>(
        &mut self,
        memory: &M,
        track: &mut impl Track,
        now: Time,
        call: &mut impl FnMut(),
    ) -> Result<(), Broken> {
        self.requests.reap();
        if self.requests.has_ended() {
            self.signal.waiting = self.queue.waiting(memory);
        }
        while let Some(ended) = self.requests.next_ended() {
            self.dma.write_byte(ended.status_at, ended.status as u8).map_err(|_| Broken)?;
            track.posting(ended.head);
            self.queue.put(memory, (ended.head, ended.written), now)?;
            // Published one by one: if the server is killed before `posted`, only one posted completion is not recorded.
            self.queue.publish(memory)?;
            track.posted(ended.head, self.queue.next_used());
            self.stats.completions += 1;
            self.stats.errors += u64::from(ended.status != Status::Ok);
            if self.signal.completed(now) {
                self.signal.force();
                if self.decide(memory, now) {
                    call();
                }
            }
        }
        Ok(())
    }

    /// Whether to signal the posted completions, by the rules of [`virtio`](crate::virtio).
    fn decide<M: Spans>(&mut self, memory: &M, now: Time) -> bool {
        if self.queue.has_undecided() {
            self.signal.note(self.queue.requested_signal(memory));
        }
        let signal = self.signal.decide(now);
        if signal {
            self.queue.decide_all();
        }
        signal
    }

    /// To be called before the thread sleeps: enables notifications, then checks for requests that came before the guest saw that.
    /// A notification or the disk's event ends the sleep. It has a deadline while notifications are suppressed or a signal is held back.
    ///
    /// # Errors
    /// [`Broken`] if the rings are no longer in memory. The queue is stopped then.
    pub fn before_sleep(&mut self, now: Time, track: &mut impl Track) -> Result<Sleep, Broken> {
        if !self.running() {
            return Ok(Sleep::Forever);
        }
        if self.requests.fail_lost() {
            return Ok(Sleep::No);
        }
        if self.requests.free_slots() > 0 {
            let memory = self.dma.view();
            match self.queue.arm(&memory, self.late, now) {
                Ok(Armed::ChainsWait) => return Ok(Sleep::No),
                Ok(Armed::Notifies) => {}
                Ok(Armed::PollAfter(wait)) => self.poll_at = Some(now.after(wait)),
                Err(Broken) => {
                    self.break_off(&memory, track);
                    return Err(Broken);
                }
            }
        }
        let until = self.signal.deadline().into_iter().chain(self.poll_at).min();
        Ok(until.map_or(Sleep::Forever, Sleep::Until))
    }

    /// Wait for requests in flight, post their completions, then stop using the rings. Returns the index of the first chain that was not
    /// processed, and whether the guest wants a signal. `None`: no rings were in use. After a queue has broken, the first call returns the
    /// index at which it stopped.
    pub fn stop(&mut self, track: &mut impl Track) -> Option<(u16, bool)> {
        if !self.running() {
            return self.broken_at.take().map(|next| (next, false));
        }
        self.requests.drain();
        let memory = self.dma.view();
        // If the rings are broken, no signal is sent: the driver can read no completion.
        let posted = self.complete(&memory, track, Time::default(), &mut || ()).is_ok();
        // No signal stays held back.
        self.signal.force();
        let signal = posted && self.decide(&memory, Time::default());
        let next = self.queue.next_avail();
        self.abandon();
        Some((next, signal))
    }

    /// Wait for requests in flight, and post nothing. The next [`service`](Self::service) posts their completions.
    pub fn drain(&mut self) {
        self.requests.drain();
    }

    /// Release guest memory that the owner has removed. Only without requests in flight.
    pub fn release_memory(&mut self) {
        self.dma.release();
    }

    /// Wait for requests in flight, post nothing, and stop using the rings.
    pub fn abandon(&mut self) {
        self.requests.drain();
        self.requests.forget(None);
        // The requests that are dropped have ended.
        self.stats.completions = self.stats.requests;
        self.queue.reset();
        self.signal.reset();
        (self.poll_at, self.late, self.broken_at) = (None, false, None);
    }

    /// Readable (level-triggered) while requests may have completed.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.requests.disk().event()
    }

    /// The state of the moderation.
    pub const fn moderation(&self) -> ModerationState {
        self.signal.moderation()
    }

    /// Statistics of the disk's queue.
    pub fn queue_stats(&self) -> QueueStats {
        self.requests.disk().stats()
    }

    /// Counters since the creation: requests taken, requests ended (posted or dropped), errors, and those of the disk's queue.
    pub fn stats(&self) -> Stats {
        self.stats.with(&self.queue_stats())
    }
}
