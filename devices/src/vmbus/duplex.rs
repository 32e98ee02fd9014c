//! An open channel's rings: packets in, answers out, and when each side signals the other.
//!
//! Interrupt moderation may hold a signal to the guest back. Later completions find a ring that is not empty, for which the ring protocol
//! requires no signal. So the pending signal is stored ([`Outgoing::owed`]) until the moderator releases it, its deadline has passed, or
//! the guest has read the ring for another reason.
//!
//! The guest signals when it puts a packet into an empty ring whose mask is clear. With many requests in flight the mask stays set while
//! the thread sleeps: the thread polls the ring with each completion, and a deadline bounds the wait.

use std::collections::VecDeque;

use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U64;

use super::packet::Packet;
use super::ring::{self, Broken, Incoming, Outgoing, PacketBuffer};
use super::storvsc::spec::HostPacket;
use super::synic::Synic;
use crate::dma::Dma;
use crate::kick_suppression::KickSuppression;
use crate::moderation::{Coalescing, ModerationState, Moderator};
use crate::retry::Retry;
use crate::time::Time;

/// Bytes of the ring that a request with one page of data occupies.
const REQUEST_BYTES: u32 = 112;

/// The sink of the channels' signals, and their number.
pub(super) struct Signals {
    pub(super) synic: Box<dyn Synic>,
    pub(super) sent: u64,
}

/// The rings of an open channel.
pub(super) struct Duplex<M> {
    incoming: Incoming<M>,
    outgoing: Outgoing<M>,
    /// The channel's number, which is also its event flag.
    flag: u16,
    /// Virtual processor that is signalled.
    vp: u32,
    moderator: Moderator,
    /// Packets that found the ring full, oldest first.
    deferred: VecDeque<HostPacket>,
    /// When to try to put these packets in again, for guests that do not signal free space.
    retry: Retry,
    /// Estimate of the requests in the ring when completions were last posted: they count as outstanding, too.
    waiting: u32,
    suppression: KickSuppression,
    suppressed: Option<Suppressed>,
    /// The time of the poll had come when packets were last taken.
    poll_due: bool,
}

/// The guest's signals are suppressed while the thread sleeps.
#[derive(Clone, Copy)]
struct Suppressed {
    since: Time,
    poll: Time,
}

impl<M> Duplex<M> {
    /// Rings in these pages. `None`: the pages make no valid rings.
    pub(super) fn new<A: GuestAddressSpace<T = M>>(
        dma: &mut Dma<A>,
        (pages, split): (&[u64], u32),
        (flag, vp): (u16, u32),
        coalescing: Coalescing,
    ) -> Option<Self> {
        let (incoming, outgoing) = ring::pair(dma, pages, split)?;
        Some(Self {
            incoming,
            outgoing,
            flag,
            vp,
            moderator: Moderator::new(coalescing),
            deferred: VecDeque::new(),
            retry: Retry::default(),
            waiting: 0,
            suppression: KickSuppression::new(),
            suppressed: None,
            poll_due: false,
        })
    }

    /// Signal this virtual processor from here on.
    pub(super) const fn move_to(&mut self, vp: u32) {
        self.vp = vp;
    }

    /// Whether packets may be taken. While an answer waits for space in the other ring, none is: this bounds the memory for a guest that
    /// reads no answers.
    #[inline]
    pub(super) fn can_take(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Before packets are taken, with `in_flight` requests in flight.
    pub(super) fn before_take(&mut self, in_flight: u32, now: Time) {
        if let Some(suppressed) = self.suppressed.take() {
            self.poll_due = now >= suppressed.poll;
            if self.incoming.waiting() > 0 {
                self.suppression.found_masked(now.since(suppressed.since), now);
            }
        }
        if in_flight > 0 {
            self.incoming.mask();
        }
    }

    /// The next packet. `None`: there is none.
    #[inline]
    pub(super) fn take<'a>(&mut self, buffer: &'a mut PacketBuffer) -> Result<Option<Packet<'a>>, Broken> {
        self.incoming.take(buffer)
    }

    /// The request of the packet that was taken has this task number.
    #[inline]
    pub(super) fn started(&mut self, number: u32) {
        self.suppression.started(number);
    }

    /// A request has completed.
    #[inline]
    pub(super) fn ended(&mut self, number: u32, now: Time) {
        self.suppression.ended(number, now);
    }

    /// `count` packets were taken: free their space in the ring.
    pub(super) fn end_take(&mut self, count: u32, signals: &mut Signals) {
        if count > 1 {
            self.incoming.mask();
        }
        if self.incoming.publish() {
            self.signal(signals);
        }
    }

    /// Before completions are posted.
    pub(super) fn batch_reaped(&mut self) {
        self.waiting = self.incoming.waiting() / REQUEST_BYTES;
    }

    /// Put a completion into the ring, or queue it until it fits; `in_flight` requests remain.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        packet: &HostPacket,
        in_flight: u32,
        now: Time,
        signals: &mut Signals,
    ) -> Result<(), Broken> {
        if !self.deferred.is_empty() || !self.outgoing.put(words(packet))? {
            self.defer(packet);
            return Ok(());
        }
        if self.moderator.completed(in_flight + self.waiting, now) {
            self.deliver(signals);
        }
        Ok(())
    }

    #[cold]
    fn defer(&mut self, packet: &HostPacket) {
        self.deferred.push_back(*packet);
    }

    /// All completions of a batch were posted.
    #[inline]
    pub(super) fn batch_posted(&mut self, now: Time, signals: &mut Signals) -> Result<(), Broken> {
        self.outgoing.publish();
        if self.moderator.end_batch(now) {
            self.deliver(signals);
        }
        if self.deferred.is_empty() { Ok(()) } else { self.post_deferred(signals) }
    }

    /// Send an unsolicited packet, unless one with the same operation waits already.
    pub(super) fn send(&mut self, packet: &HostPacket, signals: &mut Signals) -> Result<(), Broken> {
        let same = |deferred: &HostPacket| deferred.payload.operation == packet.payload.operation;
        if !self.deferred.iter().any(same) {
            self.deferred.push_back(*packet);
        }
        self.post_deferred(signals)
    }

    /// Put the packets that wait for space into the ring.
    #[cold]
    pub(super) fn post_deferred(&mut self, signals: &mut Signals) -> Result<(), Broken> {
        self.retry.tried();
        while let Some(packet) = self.deferred.front() {
            let (packet, outgoing) = (words(packet), &mut self.outgoing);
            let put = outgoing.put(packet)? || outgoing.await_space(packet)? && outgoing.put(packet)?;
            if !put {
                break;
            }
            self.deferred.pop_front();
        }
        if self.deferred.is_empty() {
            self.outgoing.forget_space();
        }
        let _ = self.moderator.flush();
        self.deliver(signals);
        Ok(())
    }

    /// Send a signal that was held back.
    pub(super) fn flush(&mut self, signals: &mut Signals) {
        let _ = self.moderator.flush();
        self.deliver(signals);
    }

    /// The state of the moderation.
    pub(super) const fn moderation(&self) -> ModerationState {
        self.moderator.state()
    }

    /// Change the moderation.
    pub(super) fn set_coalescing(&mut self, coalescing: Coalescing, signals: &mut Signals) {
        if self.moderator.set_options(coalescing) {
            self.deliver(signals);
        }
    }

    /// Before the thread sleeps with `in_flight` requests in flight; `blocked`: no packets can be taken. True: packets wait.
    pub(super) fn before_sleep(&mut self, in_flight: u32, blocked: bool, now: Time) -> Result<bool, Broken> {
        if blocked || !self.deferred.is_empty() {
            self.incoming.mask();
            self.suppressed = None;
            return Ok(false);
        }
        // If the ring was not served since the last sleep, the last decision stands: other events do not delay the poll.
        let suppressed = self.suppressed.take().or_else(|| self.suppress(in_flight, now));
        if suppressed.is_some() {
            self.incoming.mask();
        } else {
            self.incoming.unmask();
        }
        // The guest may have put a packet in without a signal, before it saw the mask clear.
        let waits = self.incoming.waits()?;
        self.suppressed = suppressed.filter(|_| !waits);
        Ok(waits)
    }

    /// Whether to suppress the guest's signals while the thread sleeps. With few requests in flight they are not: the guest cannot be told
    /// to signal the last request of several.
    fn suppress(&mut self, in_flight: u32, now: Time) -> Option<Suppressed> {
        let due = std::mem::take(&mut self.poll_due);
        let suppressed = self.suppression.before_sleep(in_flight, 0, due);
        (suppressed.kicks > 0).then(|| Suppressed { since: now, poll: now.after(suppressed.poll_after) })
    }

    /// When the device must be called again at the latest.
    pub(super) fn deadline(&mut self, now: Time) -> Option<Time> {
        let owed = self.moderator.deadline().filter(|_| self.outgoing.signal_owed());
        let full = self.retry.deadline(!self.deferred.is_empty(), now);
        [owed, full, self.suppressed.map(|suppressed| suppressed.poll)].into_iter().flatten().min()
    }

    /// Publish the packets that were put in, and signal if a signal is owed.
    fn deliver(&mut self, signals: &mut Signals) {
        self.outgoing.publish();
        if self.outgoing.take_signal() {
            self.signal(signals);
        }
    }

    fn signal(&self, signals: &mut Signals) {
        signals.sent += 1;
        signals.synic.signal_event(self.vp, self.flag);
    }
}

/// A packet as words.
#[inline]
fn words(packet: &HostPacket) -> &[U64; size_of::<HostPacket>() / 8] {
    zerocopy::transmute_ref!(packet)
}
