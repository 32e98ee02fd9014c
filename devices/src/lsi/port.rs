//! The registers that each I/O uses: request FIFO, reply FIFOs, interrupt status and mask.

use std::collections::VecDeque;

use super::spec::{FIFO_EMPTY, int};

/// Maximum number of requests that may be posted (limit of `GlobalCredits`).
pub(super) const REQUEST_CREDITS: usize = 1024;
/// Capacity of the reply free FIFO and of the reply post FIFO: more than there are credits, so neither overflows while the guest respects its
/// credits.
pub(super) const REPLY_DEPTH: usize = 2048;

/// A bounded FIFO of 32-bit words.
struct Fifo {
    words: VecDeque<u32>,
    capacity: usize,
}

impl Fifo {
    fn new(capacity: usize) -> Self {
        Self { words: VecDeque::with_capacity(capacity), capacity }
    }

    /// False: it is full, and the word is lost.
    #[inline]
    fn push(&mut self, word: u32) -> bool {
        let free = self.words.len() < self.capacity;
        if free {
            self.words.push_back(word);
        }
        free
    }
}

/// The registers.
pub(super) struct Port {
    requests: Fifo,
    reply_free: Fifo,
    reply_post: Fifo,
    /// The guest was signaled for replies and has not emptied the reply FIFO since; it reads until the FIFO is empty. This flag and entries in
    /// the FIFO make up bit 3 of the interrupt status. So the moderator can hold the bit back although there are entries.
    signalled: bool,
    /// Bit 0 of the interrupt status.
    doorbell: bool,
    mask: u32,
}

impl Port {
    pub(super) fn new() -> Self {
        Self {
            requests: Fifo::new(REQUEST_CREDITS),
            reply_free: Fifo::new(REPLY_DEPTH),
            reply_post: Fifo::new(REPLY_DEPTH),
            signalled: false,
            doorbell: false,
            mask: int::REPLY | int::DOORBELL,
        }
    }

    /// The guest posts a request. If it has posted more requests than credits, the request is lost, as on hardware.
    #[inline]
    pub(super) fn post_request(&mut self, value: u32) {
        self.requests.push(value);
    }

    #[inline]
    pub(super) fn next_request(&mut self) -> Option<u32> {
        self.requests.words.pop_front()
    }

    /// Requests that are posted and not yet taken, and so count as outstanding.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.requests.words.len() as u32
    }

    /// The guest provides a free reply frame. If the FIFO is full, the frame is lost.
    pub(super) fn free_reply(&mut self, value: u32) {
        self.reply_free.push(value);
    }

    pub(super) fn take_reply_frame(&mut self) -> Option<u32> {
        self.reply_free.words.pop_front()
    }

    /// The free reply frames.
    pub(super) fn free_frames(&self) -> impl Iterator<Item = u32> {
        self.reply_free.words.iter().copied()
    }

    /// False: the FIFO is full.
    #[inline]
    pub(super) fn post_reply(&mut self, value: u32) -> bool {
        self.reply_post.push(value)
    }

    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        !self.reply_post.words.is_empty()
    }

    /// The guest reads the reply FIFO. Bit 3 is cleared when the last entry is read.
    #[inline]
    pub(super) fn read_reply(&mut self) -> u32 {
        let reply = self.reply_post.words.pop_front();
        self.signalled &= self.has_replies();
        reply.unwrap_or(FIFO_EMPTY)
    }

    /// Signal the replies in the reply FIFO. Returns whether that asserted the interrupt for replies, which was not asserted before.
    pub(super) fn signal(&mut self) -> bool {
        !std::mem::replace(&mut self.signalled, true) && self.mask & int::REPLY == 0
    }

    /// Set or clear the doorbell interrupt. Returns whether that asserted the interrupt, which was not asserted before.
    pub(super) fn set_doorbell(&mut self, raised: bool) -> bool {
        let before = self.asserted();
        self.doorbell = raised;
        !before && self.asserted()
    }

    /// The interrupt status, bits 3 and 0.
    #[inline]
    pub(super) fn status(&self) -> u32 {
        let replies = self.signalled && self.has_replies();
        (u32::from(replies) * int::REPLY) | (u32::from(self.doorbell) * int::DOORBELL)
    }

    #[inline]
    pub(super) const fn mask(&self) -> u32 {
        self.mask
    }

    /// Set the mask. Returns whether that asserted the interrupt, which was not asserted before.
    pub(super) fn set_mask(&mut self, value: u32) -> bool {
        let before = self.asserted();
        self.mask = value;
        !before && self.asserted()
    }

    /// Whether the interrupt is asserted.
    #[inline]
    pub(super) fn asserted(&self) -> bool {
        self.status() & !self.mask & (int::REPLY | int::DOORBELL) != 0
    }

    /// Message unit reset: empty all FIFOs, clear the status, mask all interrupts.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Empty all FIFOs.
    pub(super) fn empty(&mut self) {
        for fifo in [&mut self.requests, &mut self.reply_free, &mut self.reply_post] {
            fifo.words.clear();
        }
        self.signalled = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver reads until the FIFO is empty after an interrupt: replies that are posted meanwhile need no other interrupt, and the first
    /// reply after that does.
    #[test]
    fn a_reply_is_signalled_unless_the_guest_reads_anyway() {
        let mut port = Port::new();
        assert!(!port.set_mask(int::DOORBELL));
        for round in 0..3 {
            assert!(port.post_reply(round) && port.signal(), "round {round}");
            assert_eq!(port.status(), int::REPLY);
            assert!(port.post_reply(round + 10) && !port.signal());
            assert_eq!((port.read_reply(), port.status()), (round, int::REPLY));
            assert_eq!((port.read_reply(), port.status()), (round + 10, 0));
            assert_eq!((port.read_reply(), port.asserted()), (FIFO_EMPTY, false));
        }
        // Held back: the entry is there, the status is not.
        assert!(port.post_reply(1) && port.status() == 0);
        port.reset();
        assert_eq!((port.read_reply(), port.mask()), (FIFO_EMPTY, int::REPLY | int::DOORBELL));
    }

    #[test]
    fn what_is_beyond_the_credits_is_lost() {
        let mut port = Port::new();
        (0..REQUEST_CREDITS as u32 + 5).for_each(|value| port.post_request(value));
        assert_eq!(port.waiting(), REQUEST_CREDITS as u32);
        assert!((0..REQUEST_CREDITS as u32).all(|value| port.next_request() == Some(value)));
        assert_eq!(port.next_request(), None);
        assert!((0..REPLY_DEPTH as u32).all(|value| port.post_reply(value)) && !port.post_reply(0));
    }
}
