//! A virtqueue: its registers, its rings, and its notification and interrupt suppression.
//!
//! `virtio_queue::Queue` holds and checks the registers. The rings are accessed here, each as one [`Span`] of guest memory that is
//! translated once a batch; `virtio_queue` would translate and check every field. Completions are put into the used ring, and the guest
//! sees them when the used index is [published](Virtqueue::publish): together at the end of a batch or before a signal, or one by one for
//! in-flight tracking (`blk/rings.rs`).

use std::ops::Range;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use virtio_queue::{Error, Queue, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::depth::Depth;
use super::descriptors::{self, DescriptorChain};
use super::signals::Signal;
use super::spec::{
    VIRTQ_AVAIL_F_NO_INTERRUPT, VIRTQ_AVAIL_IDX, VIRTQ_AVAIL_RING, VIRTQ_USED_IDX, VIRTQ_USED_RING,
};
use super::suppression::{InterruptSuppression, Requested};
use crate::dma::{Span, Spans, overlap};
use crate::kick_suppression::KickSuppression;
use crate::moderation::Coalescing;
use crate::time::Time;

/// The queue is broken: its rings or a chain cannot be processed. The device reports it by its status and processes nothing until reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl From<Error> for Broken {
    fn from(_: Error) -> Self {
        Self
    }
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
    /// For rings that were in use before: the index of the first chain to take. The first completion is posted at the used index in memory.
    pub next_avail: Option<u16>,
    /// `VIRTIO_F_EVENT_IDX` is negotiated.
    pub event_index: bool,
}

impl RingSetup {
    /// The rings, of at most `max_size` entries.
    ///
    /// # Errors
    /// [`Broken`] if the size is invalid, or the rings are not in memory or not aligned.
    pub(super) fn check<M: Spans>(&self, max_size: u16, memory: &M) -> Result<Queue, Broken> {
        let mut ring = Queue::new(max_size)?;
        ring.try_set_size(self.size)?;
        ring.try_set_desc_table_address(GuestAddress(self.descriptors))?;
        ring.try_set_avail_ring_address(GuestAddress(self.available))?;
        ring.try_set_used_ring_address(GuestAddress(self.used))?;
        ring.set_event_idx(self.event_index);
        ring.set_ready(true);
        if self.available == 0 || !ring.is_valid(memory) {
            return Err(Broken);
        }
        if let Some(next) = self.next_avail {
            let used = ring.used_idx(memory, Relaxed)?.0;
            ring.set_next_avail(next);
            ring.set_next_used(used);
        }
        Ok(ring)
    }
}

/// A virtqueue.
pub struct Virtqueue {
    ring: Queue,
    /// Used index as the guest sees it.
    published: u16,
    /// Requests taken and not completed.
    pub(super) in_flight: u32,
    /// A reset of the queue waits for requests that the disks have. Until it completes, no request is taken and no completion posted.
    pub(super) resetting: bool,
    interrupt_suppression: InterruptSuppression,
    pub(super) signal: Signal,
    depth: Depth,
    kick_suppression: KickSuppression,
    /// Available index of the request for which the guest must notify the device. `None`: the device has requested no notification since it
    /// last took requests.
    armed: Option<u16>,
    /// When `armed` was set.
    armed_at: Time,
    /// When to poll for requests with suppressed notifications.
    poll_at: Option<Time>,
    /// `poll_at` had passed when the queue was served last.
    poll_due: bool,
}

impl Virtqueue {
    /// A queue of at most this many entries. If that is no power of two, the guest sees a queue without entries.
    pub(super) fn new(max_size: u16, coalescing: Coalescing) -> Self {
        Self {
            ring: Queue::new(max_size).unwrap_or_default(),
            published: 0,
            in_flight: 0,
            resetting: false,
            interrupt_suppression: InterruptSuppression::default(),
            signal: Signal::new(coalescing),
            depth: Depth::new(max_size),
            kick_suppression: KickSuppression::new(),
            armed: None,
            armed_at: Time::default(),
            poll_at: None,
            poll_due: false,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.ring.max_size(), self.signal.options());
    }

    /// Whether the guest has enabled it.
    pub(super) fn ready(&self) -> bool {
        self.ring.ready()
    }

    /// Whether chains may be taken from it.
    pub(super) fn active(&self) -> bool {
        self.ready() && !self.resetting
    }

    /// Enable the queue.
    ///
    /// # Errors
    /// As of [`RingSetup::check`].
    pub(super) fn enable<M: Spans>(&mut self, memory: &M, setup: &RingSetup) -> Result<(), Broken> {
        self.ring = setup.check(self.ring.max_size(), memory)?;
        self.published = self.ring.next_used();
        self.decide_all();
        Ok(())
    }

    /// Whether a part of one of its rings is in a guest-physical range.
    pub(super) fn has_ring_in(&self, range: &Range<u64>) -> bool {
        let Self { ring, .. } = self;
        let size = u64::from(ring.size());
        // VIRTIO 1.2, 2.7: with the event index of either ring.
        let rings = [
            (ring.desc_table(), 16 * size),
            (ring.avail_ring(), 6 + 2 * size),
            (ring.used_ring(), 6 + 8 * size),
        ];
        self.ready() && rings.into_iter().any(|(start, len)| overlap(range, start, len))
    }

    /// Index of the next chain to be taken.
    pub(super) fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    /// Index of the next completion to be posted.
    pub(super) fn next_used(&self) -> u16 {
        self.ring.next_used()
    }

    /// Undo the take of the last chain.
    pub(super) fn put_back(&mut self) {
        self.ring.set_next_avail(self.ring.next_avail().wrapping_sub(1));
    }

    /// A chain that was taken before, by its head.
    pub(super) fn chain<'a, M: Spans>(&self, memory: &'a M, head: u16) -> DescriptorChain<'a, M> {
        DescriptorChain::new(memory, self.ring.desc_table(), self.ring.size(), head)
    }

    /// The chains that wait. Always inlined: the caller would load the returned iterator right after it was stored in smaller
    /// pieces, which stalls the processor.
    #[inline(always)]
    pub(super) fn take<'a, M: Spans>(&'a mut self, memory: &'a M) -> Result<Waiting<'a, M>, Broken> {
        if self.armed.take().is_some() {
            self.ring.disable_notification(memory)?;
        }
        let (table, available, entries) = (self.ring.desc_table(), self.ring.avail_ring(), self.ring.size());
        let len = VIRTQ_AVAIL_RING + 2 * u64::from(entries);
        let next = self.ring.next_avail();
        let ring = memory.span(available, len);
        // Acquire: what the guest stored before the index is visible after this load.
        let index = load(memory, ring, (available, VIRTQ_AVAIL_IDX), Acquire)?;
        if !self.ring.ready() || index.wrapping_sub(next) > entries {
            return Err(Broken);
        }
        let table_span = memory.span(table, descriptors::SIZE * u64::from(entries));
        Ok(Waiting { queue: self, memory, ring, available, table, table_span, entries, next, index })
    }

    /// Number of chains that wait, by the guest's index, limited to the size of the ring.
    pub(super) fn waiting<M: Spans>(&self, memory: &M) -> u32 {
        let next = self.ring.next_avail();
        let index = load_one(memory, (self.ring.avail_ring(), VIRTQ_AVAIL_IDX), Relaxed).unwrap_or(next);
        index.wrapping_sub(next).min(self.ring.size()).into()
    }

    /// Before the device sleeps, have the guest notify the device of the next chain, or of a later one; then there is a
    /// [deadline](Self::deadline). True: chains wait already, and the device must not sleep.
    pub(super) fn arm<M: Spans>(&mut self, memory: &M, now: Time) -> Result<bool, Broken> {
        let next = self.ring.next_avail();
        if !self.ring.event_idx_enabled() {
            if self.armed.is_none() && self.ring.enable_notification(memory)? {
                self.ring.disable_notification(memory)?;
                return Ok(true);
            }
            self.armed = Some(next);
            return Ok(false);
        }
        let depth = self.depth.get();
        // An average: the guest may keep a few less.
        let expected = (depth - depth / 16).saturating_sub(self.in_flight);
        let suppressed = self.kick_suppression.before_sleep(self.in_flight, expected, self.poll_due);
        let event = next.wrapping_add(suppressed.kicks as u16);
        if self.armed != Some(event) {
            let offset = VIRTQ_USED_RING + 8 * u64::from(self.ring.size());
            store(memory, (self.ring.used_ring(), offset), event, Relaxed)?;
            // The guest stores its index, then loads the event index. The device stores the event index, then loads the guest's index.
            fence(SeqCst);
            let waiting = self.waiting(memory) > 0;
            self.armed = (!waiting).then_some(event);
            self.armed_at = now;
            if waiting {
                return Ok(true);
            }
        }
        if suppressed.kicks > 0 {
            let time = now.after(suppressed.poll_after);
            self.poll_at = Some(self.poll_at.map_or(time, |other| other.min(time)));
        }
        Ok(false)
    }

    /// When the queue must be served at the latest: a signal is held back, or requests may wait whose notifications are suppressed.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.signal.deadline().into_iter().chain(self.poll_at).min()
    }

    /// Before the queue is served: pass the number of waiting requests to the kick suppression.
    pub(super) fn note_waiting<M: Spans>(&mut self, memory: &M, now: Time) {
        let poll_at = self.poll_at.take();
        self.poll_due = poll_at.is_some_and(|time| now >= time);
        let (Some(event), Some(_)) = (self.armed, poll_at) else { return };
        let suppressed = event.wrapping_sub(self.ring.next_avail());
        self.kick_suppression.polled(self.waiting(memory), suppressed.into(), now.since(self.armed_at), now);
    }

    /// Before completions are posted: count the requests that wait in the ring, for moderation.
    pub(super) fn count_waiting<M: Spans>(&mut self, memory: &M) {
        self.signal.waiting = if self.active() { self.waiting(memory) } else { 0 };
    }

    /// [Put](Self::put) a completion into the used ring. True: moderation has decided to signal it before the next completion. Always
    /// inlined: called for each request.
    #[inline(always)]
    pub(super) fn complete<M: Spans>(
        &mut self,
        memory: &M,
        answer: (u16, u32),
        now: Time,
    ) -> Result<bool, Broken> {
        self.put(memory, answer, now)?;
        if self.signal.completed(self.in_flight, now) { self.signal_at_once(memory, now) } else { Ok(false) }
    }

    #[inline(never)]
    fn signal_at_once<M: Spans>(&mut self, memory: &M, now: Time) -> Result<bool, Broken> {
        self.signal.force();
        self.end_batch(memory, now)
    }

    /// Publish the completions that were put into the used ring. True: signal them.
    pub(super) fn end_batch<M: Spans>(&mut self, memory: &M, now: Time) -> Result<bool, Broken> {
        self.publish(memory)?;
        let undecided = self.interrupt_suppression.is_undecided(self.ring.next_used());
        let requested = if undecided { self.requested_signal(memory) } else { Requested::None };
        let signal = self.signal.decide(requested, now);
        if signal {
            self.decide_all();
        }
        Ok(signal)
    }

    /// Put a completion into the used ring: the chain's head, and the number of bytes written to it.
    /// The guest sees it when it is [published](Self::publish).
    #[inline(always)]
    fn put<M: Spans>(&mut self, memory: &M, (head, len): (u16, u32), now: Time) -> Result<(), Broken> {
        self.kick_suppression.ended(head.into(), now);
        self.in_flight = self.in_flight.saturating_sub(1);
        let (used, entries, next) = (self.ring.used_ring(), self.ring.size(), self.ring.next_used());
        if head >= entries {
            return Err(Broken);
        }
        // Sizes are powers of two.
        let offset = VIRTQ_USED_RING + 8 * u64::from(next & (entries - 1));
        let element = [u32::from(head), len];
        let at = used.checked_add(offset).ok_or(Broken)?;
        let stored = memory.span(at, 8).and_then(|place| place.store_u32s(0, element));
        if stored.is_none() {
            store_slowly(memory, at, element)?;
        }
        self.ring.set_next_used(next.wrapping_add(1));
        Ok(())
    }

    /// Post the completions that were put into the used ring: store the used index.
    #[inline(always)]
    pub(super) fn publish<M: Spans>(&mut self, memory: &M) -> Result<(), Broken> {
        let used = self.ring.next_used();
        if self.published != used {
            self.published = used;
            store(memory, (self.ring.used_ring(), VIRTQ_USED_IDX), used, Release)?;
        }
        Ok(())
    }

    /// Which posted completions the guest wants a signal for. If it wants none, they are decided.
    fn requested_signal<M: Spans>(&mut self, memory: &M) -> Requested {
        let used = self.ring.next_used();
        // The guest stores its event index, then loads the used index. The device has stored the used index, and loads the event index now.
        fence(SeqCst);
        debug_assert_eq!(self.published, used, "a completion that was not posted cannot be signalled");
        let load = |offset| load_one(memory, (self.ring.avail_ring(), offset), Relaxed).ok();
        if !self.ring.event_idx_enabled() {
            let unwanted = load(0).is_some_and(|flags| flags & VIRTQ_AVAIL_F_NO_INTERRUPT != 0);
            if unwanted {
                self.decide_all();
            }
            return if unwanted { Requested::None } else { Requested::Next };
        }
        match load(VIRTQ_AVAIL_RING + 2 * u64::from(self.ring.size())) {
            Some(event) => self.interrupt_suppression.check(used, event),
            None => Requested::Next,
        }
    }

    /// All posted completions are signalled, or need no signal.
    fn decide_all(&mut self) {
        self.interrupt_suppression.decide_up_to(self.ring.next_used());
    }
}

/// An iterator over the chains that wait in a queue. It takes each chain that it yields.
pub(super) struct Waiting<'a, M> {
    queue: &'a mut Virtqueue,
    memory: &'a M,
    ring: Option<Span<'a>>,
    /// Guest-physical address of the available ring.
    available: u64,
    /// Guest-physical address of the descriptor table.
    table: u64,
    table_span: Option<Span<'a>>,
    entries: u16,
    /// Available index of the next chain.
    next: u16,
    /// The guest's available index: the end.
    index: u16,
}

impl<'a, M: Spans> Iterator for Waiting<'a, M> {
    type Item = DescriptorChain<'a, M>;

    #[inline(always)]
    fn next(&mut self) -> Option<DescriptorChain<'a, M>> {
        if self.next == self.index {
            return None;
        }
        // Sizes are powers of two.
        let offset = VIRTQ_AVAIL_RING + 2 * u64::from(self.next & (self.entries - 1));
        let head = load(self.memory, self.ring, (self.available, offset), Relaxed).ok()?;
        self.queue.depth.request(self.next, head);
        self.queue.kick_suppression.started(head.into());
        self.next = self.next.wrapping_add(1);
        self.queue.ring.set_next_avail(self.next);
        Some(DescriptorChain::within(self.memory, (self.table, self.table_span), self.entries, head))
    }
}

/// Load a word of a ring, from its span if it has one.
#[inline(always)]
fn load<M: Spans>(
    memory: &M,
    span: Option<Span<'_>>,
    (ring, offset): (u64, u64),
    ordering: Ordering,
) -> Result<u16, Broken> {
    match span.and_then(|span| span.load_u16(offset as usize, ordering)) {
        Some(word) => Ok(word),
        None => load_slowly(memory, ring.checked_add(offset).ok_or(Broken)?, ordering),
    }
}

/// Load a word at an offset of a ring.
#[inline]
fn load_one<M: Spans>(memory: &M, (ring, offset): (u64, u64), ordering: Ordering) -> Result<u16, Broken> {
    let at = ring.checked_add(offset).ok_or(Broken)?;
    load(memory, memory.span(at, 2), (at, 0), ordering)
}

/// Store a word at an offset of a ring.
#[inline]
fn store<M: Spans>(
    memory: &M,
    (ring, offset): (u64, u64),
    value: u16,
    ordering: Ordering,
) -> Result<(), Broken> {
    let at = ring.checked_add(offset).ok_or(Broken)?;
    match memory.span(at, 2).and_then(|place| place.store_u16(0, value, ordering)) {
        Some(()) => Ok(()),
        None => memory.store(value.to_le(), GuestAddress(at), ordering).map_err(|_| Broken),
    }
}

/// For a ring across regions.
#[cold]
fn load_slowly<M: Spans>(memory: &M, address: u64, ordering: Ordering) -> Result<u16, Broken> {
    memory.load(GuestAddress(address), ordering).map(u16::from_le).map_err(|_| Broken)
}

#[cold]
fn store_slowly<M: Spans>(memory: &M, address: u64, [first, second]: [u32; 2]) -> Result<(), Broken> {
    let bytes = (u64::from(first) | u64::from(second) << 32).to_le_bytes();
    memory.write_slice(&bytes, GuestAddress(address)).map_err(|_| Broken)
}
