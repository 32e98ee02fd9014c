//! The registers that each I/O uses: request FIFO, reply FIFOs, interrupt status and mask.
//!
//! The virtual CPUs read and write the registers. The I/O thread empties the request FIFO and fills the reply FIFO. So
//! accesses are handled on the virtual CPU's thread; only those that need the controller's state machine are forwarded
//! to the I/O thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use super::fifo::{Inbound, Outbound};
use super::line::Line;
use super::spec::{FIFO_EMPTY, REGISTER_BARS, int, reg};
use crate::asleep::Asleep;
use crate::device::{FastRegisters, FastWrite};
use crate::interrupt::InterruptLine;
use crate::pci::Function;

/// Maximum number of requests that may be posted (limit of `GlobalCredits`).
pub(super) const REQUEST_CREDITS: usize = 1024;
/// Capacity of the reply free FIFO and of the reply post FIFO: more than there are credits, so neither overflows while
/// the guest respects its credits.
pub(super) const REPLY_DEPTH: usize = 2048;

/// The shared registers.
pub(super) struct Port {
    requests: Inbound,
    reply_free: Inbound,
    reply_post: Outbound,
    /// The guest was signaled for replies and has not emptied the reply FIFO since; it reads until the FIFO is empty.
    /// This flag and entries in the FIFO make up bit 3 of the interrupt status. So the moderator can hold the bit back
    /// although there are entries.
    signalled: AtomicBool,
    /// Bit 0 of the interrupt status.
    doorbell: AtomicBool,
    mask: AtomicU32,
    pub(super) asleep: Asleep,
    line: Line,
}

impl Port {
    /// `line` is the INTx line, if virtual CPUs may deassert it.
    pub(super) fn new(line: Option<Arc<dyn InterruptLine>>) -> Self {
        Self {
            requests: Inbound::new(REQUEST_CREDITS),
            reply_free: Inbound::new(REPLY_DEPTH),
            reply_post: Outbound::new(REPLY_DEPTH),
            signalled: AtomicBool::new(false),
            doorbell: AtomicBool::new(false),
            mask: AtomicU32::new(int::REPLY | int::DOORBELL),
            asleep: Asleep::default(),
            line: Line::new(line),
        }
    }

    /// The guest posts a request. `false`: it has posted more requests than credits, and the request is lost, as on
    /// hardware.
    #[inline]
    pub(super) fn post_request(&self, value: u32) -> bool {
        self.requests.push(value)
    }

    #[inline]
    pub(super) fn next_request(&self) -> Option<u32> {
        self.requests.pop()
    }

    /// Requests that are posted and not yet taken, and so count as outstanding.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.requests.len() as u32
    }

    #[inline]
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The guest provides a free reply frame. `false`: the FIFO is full, and the frame is lost.
    pub(super) fn free_reply(&self, value: u32) -> bool {
        self.reply_free.push(value)
    }

    pub(super) fn take_reply_frame(&self) -> Option<u32> {
        self.reply_free.pop()
    }

    /// Whether `wanted` is true for a free reply frame. Only the thread that takes frames may call this: it takes each
    /// frame and returns it.
    pub(super) fn any_free_frame(&self, wanted: impl Fn(u32) -> bool) -> bool {
        let mut any = false;
        for _ in 0..self.reply_free.len() {
            let Some(frame) = self.reply_free.pop() else { break };
            any |= wanted(frame);
            // The FIFO can only be full if the guest has provided more frames than there are credits. Then a frame is
            // lost, as always.
            let _ = self.reply_free.push(frame);
        }
        any
    }

    #[inline]
    pub(super) fn post_reply(&self, value: u32) -> bool {
        self.reply_post.push(value)
    }

    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        !self.reply_post.is_empty()
    }

    /// The guest reads the reply FIFO. Bit 3 is cleared when the last entry is read.
    #[inline]
    pub(super) fn read_reply(&self) -> u32 {
        if let Some(value) = self.reply_post.pop() {
            if self.reply_post.is_empty() {
                self.rearm();
            }
            return value;
        }
        // This read is about to report an empty FIFO, and the guest will wait for an interrupt. A thread that posts a
        // reply from now on sees that it must signal. A reply that was posted before is found by the pop below.
        self.signalled.store(false, Ordering::Relaxed);
        // Pairs with the fence in `signal`.
        fence(Ordering::SeqCst);
        // Set `signalled` again only if this read returns a reply: then the guest reads on. Another processor may have
        // popped the last reply.
        let Some(value) = self.reply_post.pop() else { return FIFO_EMPTY };
        if !self.reply_post.is_empty() {
            self.signalled.store(true, Ordering::Relaxed);
        }
        value
    }

    fn rearm(&self) {
        self.signalled.store(false, Ordering::Relaxed);
        // Pairs with the fence in `signal`.
        fence(Ordering::SeqCst);
        if !self.reply_post.is_empty() {
            // A reply was posted in the meantime. The guest reads on, or polls the status.
            self.signalled.store(true, Ordering::Relaxed);
        }
    }

    /// Signal the replies in the reply FIFO. Returns whether that asserted the interrupt for replies, which was not
    /// asserted before.
    pub(super) fn signal(&self) -> bool {
        fence(Ordering::SeqCst);
        let signalled = self.signalled.swap(true, Ordering::Relaxed);
        !signalled && self.mask() & int::REPLY == 0
    }

    /// Set or clear the doorbell interrupt. Returns whether that asserted the interrupt, which was not asserted before.
    pub(super) fn set_doorbell(&self, raised: bool) -> bool {
        let before = self.asserted();
        self.doorbell.store(raised, Ordering::Release);
        !before && self.asserted()
    }

    /// The interrupt status, bits 3 and 0.
    #[inline]
    pub(super) fn status(&self) -> u32 {
        self.status_with(self.signalled.load(Ordering::Relaxed) && self.has_replies())
    }

    #[inline]
    fn status_with(&self, replies: bool) -> u32 {
        let doorbell = self.doorbell.load(Ordering::Acquire);
        (u32::from(replies) * int::REPLY) | (u32::from(doorbell) * int::DOORBELL)
    }

    #[inline]
    pub(super) fn mask(&self) -> u32 {
        self.mask.load(Ordering::Acquire)
    }

    /// Set the mask. Returns whether that asserted the interrupt, which was not asserted before.
    pub(super) fn set_mask(&self, value: u32) -> bool {
        let before = self.asserted();
        self.mask.store(value, Ordering::Release);
        !before && self.asserted()
    }

    /// Called on the device's thread: set the INTx line to the interrupt status. Returns whether that asserted the
    /// line.
    pub(super) fn update_line(&self, function: &mut Function) -> bool {
        self.line.update(function, || self.asserted(), || self.pending())
    }

    /// Whether the interrupt is asserted.
    #[inline]
    pub(super) fn asserted(&self) -> bool {
        self.status() & !self.mask() & (int::REPLY | int::DOORBELL) != 0
    }

    /// Whether there is a reason to interrupt, even while a read of the reply FIFO is between its two checks (`rearm`).
    /// An asserted line stays asserted until there is no reason.
    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.status_with(self.has_replies()) & !self.mask() != 0
    }

    /// Message unit reset: empty all FIFOs, clear the status, mask all interrupts.
    pub(super) fn reset(&self) {
        self.empty();
        self.doorbell.store(false, Ordering::Release);
        let _ = self.set_mask(int::REPLY | int::DOORBELL);
    }

    /// Empty all FIFOs.
    pub(super) fn empty(&self) {
        self.requests.empty();
        self.reply_free.empty();
        // Bounded, because another processor may be reading at the same time.
        for _ in 0..self.reply_post.capacity() {
            let _ = self.reply_post.pop();
        }
        self.signalled.store(false, Ordering::Relaxed);
    }
}

impl FastRegisters for Port {
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        let (true, Ok(data)) = (REGISTER_BARS.contains(&bar), <&mut [u8; 4]>::try_from(data)) else {
            return false;
        };
        let value = match offset {
            // Only the device's thread can deassert the line, and the read that empties the FIFO has to.
            reg::REPLY_FIFO if self.line.needs_owner() && self.reply_post.len() <= 1 => return false,
            reg::REPLY_FIFO => {
                let value = self.read_reply();
                self.line.lower_if_idle(|| self.pending());
                value
            }
            reg::INT_STATUS => self.status(),
            reg::INT_MASK => self.mask(),
            _ => return false,
        };
        *data = value.to_le_bytes();
        true
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) -> FastWrite {
        let (true, Ok(&data)) = (REGISTER_BARS.contains(&bar), <&[u8; 4]>::try_from(data)) else {
            return FastWrite::Forward;
        };
        let value = u32::from_le_bytes(data);
        match offset {
            reg::REPLY_FIFO => {
                self.free_reply(value);
                FastWrite::Taken
            }
            reg::REQUEST_FIFO => {
                self.post_request(value);
                self.asleep.take().map_or(FastWrite::Taken, |idle| FastWrite::Wake {
                    idle: idle && self.reply_post.is_empty(),
                })
            }
            _ => FastWrite::Forward,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::lsi::Personality;
    use crate::testing::{Counts, Sink};

    /// A driver thread sleeps until an interrupt, then reads until the FIFO is empty. A device thread posts replies,
    /// and interrupts if required. No reply is left without an interrupt.
    #[test]
    fn every_reply_is_told_or_read() {
        const REPLIES: u32 = 200_000;
        let port = Arc::new(Port::new(None));
        let _ = port.set_mask(int::DOORBELL);
        let interrupts = Arc::new(AtomicU64::new(0));
        let driver = thread::spawn({
            let (port, interrupts) = (Arc::clone(&port), Arc::clone(&interrupts));
            move || {
                let (mut seen, mut read) = (0, 0);
                while read < REPLIES {
                    let start = Instant::now();
                    while interrupts.load(Ordering::Acquire) == seen {
                        let waited = start.elapsed();
                        assert!(
                            waited < Duration::from_secs(60),
                            "stranded after {read}: {:#x}",
                            port.status()
                        );
                        thread::yield_now();
                    }
                    seen = interrupts.load(Ordering::Acquire);
                    while port.read_reply() != FIFO_EMPTY {
                        read += 1;
                    }
                }
                seen
            }
        });
        for reply in 0..REPLIES {
            // Wait for a free slot.
            while !port.post_reply(reply) {
                assert!(!driver.is_finished(), "the driver has failed");
                thread::yield_now();
            }
            for _ in 0..reply % 64 {
                std::hint::spin_loop();
            }
            if port.signal() {
                interrupts.fetch_add(1, Ordering::Release);
            }
        }
        assert!(driver.join().is_ok());
        let sent = interrupts.load(Ordering::Relaxed);
        assert!(sent > 0 && sent <= u64::from(REPLIES), "{sent}");
        assert_eq!(port.status(), 0);
    }

    /// A driver thread reads until the FIFO is empty whenever the line is asserted, and deasserts it that way. A device
    /// thread asserts it. The line is never left deasserted with unread replies, nor asserted without replies.
    #[test]
    fn the_line_follows_the_replies() {
        const REPLIES: u32 = 100_000;
        let counts = Arc::new(Counts::default());
        let identity = Personality::Spi1030.identity();
        let mut function = Function::new(&identity, Box::new(Sink(Arc::clone(&counts)))).with_intx(1);
        let port = Arc::new(Port::new(function.shared_line()));
        let _ = port.set_mask(int::DOORBELL);
        let driver = thread::spawn({
            let (port, counts) = (Arc::clone(&port), Arc::clone(&counts));
            move || {
                let mut read = 0;
                while read < REPLIES {
                    let start = Instant::now();
                    while !counts.line() {
                        assert!(start.elapsed() < Duration::from_secs(60), "stranded after {read}");
                        thread::yield_now();
                    }
                    let mut data = [0; 4];
                    while port.read(1, reg::REPLY_FIFO, &mut data) && u32::from_le_bytes(data) != FIFO_EMPTY {
                        read += 1;
                    }
                }
            }
        });
        for reply in 0..REPLIES {
            while !port.post_reply(reply) {
                assert!(!driver.is_finished(), "the driver has failed");
                thread::yield_now();
            }
            for _ in 0..reply % 64 {
                std::hint::spin_loop();
            }
            port.signal();
            port.update_line(&mut function);
        }
        assert!(driver.join().is_ok());
        assert!(!counts.line());
    }
}
