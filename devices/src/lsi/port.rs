//! The registers that are touched for each I/O: request FIFO, reply FIFOs, interrupt status and mask.
//!
//! They are shared between the virtual CPUs, which read and write them, and the I/O thread, which empties the request
//! FIFO and fills the reply FIFO. So an access is answered where it happens, and only what needs the controller's
//! state machine is forwarded to the I/O thread.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use crossbeam_queue::ArrayQueue;

use super::spec::{FIFO_EMPTY, REGISTER_BARS, int, reg};
use crate::{FastRegisters, FastWrite};

/// Requests that may be posted: `GlobalCredits`.
pub(super) const REQUEST_CREDITS: usize = 1024;
/// Reply frames that the free FIFO holds, and replies that the post FIFO holds: more than there are credits, so that
/// neither can overflow while the guest keeps to them.
pub(super) const REPLY_DEPTH: usize = 2048;

/// The shared registers.
#[derive(Debug)]
pub(super) struct Port {
    requests: ArrayQueue<u32>,
    reply_free: ArrayQueue<u32>,
    reply_post: ArrayQueue<u32>,
    /// Bits 3 and 0 of the interrupt status, as the guest reads them. Bit 3 follows the *signalled* replies: the
    /// moderator may hold it back although the reply FIFO has entries.
    status: AtomicU32,
    mask: AtomicU32,
    /// The I/O thread sleeps, and is to be woken for a request.
    asleep: AtomicBool,
    /// With no request in flight.
    idle: AtomicBool,
    /// The INTx line is asserted: only the I/O thread can lower it.
    line: AtomicBool,
}

impl Port {
    pub(super) fn new() -> Self {
        Self {
            requests: ArrayQueue::new(REQUEST_CREDITS),
            reply_free: ArrayQueue::new(REPLY_DEPTH),
            reply_post: ArrayQueue::new(REPLY_DEPTH),
            status: AtomicU32::new(0),
            mask: AtomicU32::new(int::REPLY | int::DOORBELL),
            asleep: AtomicBool::new(false),
            idle: AtomicBool::new(false),
            line: AtomicBool::new(false),
        }
    }

    /// The I/O thread is about to sleep, with nothing in flight or not; then it looks for requests once more.
    pub(super) fn set_asleep(&self, idle: bool) {
        self.idle.store(idle, Ordering::Relaxed);
        self.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `write`: either the request is seen here, or the flag there.
        fence(Ordering::SeqCst);
    }

    /// The I/O thread is awake.
    pub(super) fn set_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    pub(super) fn set_line(&self, asserted: bool) {
        self.line.store(asserted, Ordering::Release);
    }

    /// The guest posts a request. `false`: more requests than credits; it is lost, as in the hardware.
    pub(super) fn post_request(&self, value: u32) -> bool {
        self.requests.push(value).is_ok()
    }

    pub(super) fn next_request(&self) -> Option<u32> {
        self.requests.pop()
    }

    /// Requests posted and not taken: they are outstanding, too.
    pub(super) fn waiting(&self) -> u32 {
        self.requests.len() as u32
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The guest gives a reply frame. `false`: the FIFO is full; the frame is lost.
    pub(super) fn free_reply(&self, value: u32) -> bool {
        self.reply_free.push(value).is_ok()
    }

    pub(super) fn take_reply_frame(&self) -> Option<u32> {
        self.reply_free.pop()
    }

    pub(super) fn post_reply(&self, value: u32) -> bool {
        self.reply_post.push(value).is_ok()
    }

    pub(super) fn has_replies(&self) -> bool {
        !self.reply_post.is_empty()
    }

    /// The guest reads the reply FIFO. Bit 3 falls with the last entry.
    pub(super) fn read_reply(&self) -> u32 {
        let value = self.reply_post.pop().unwrap_or(FIFO_EMPTY);
        if self.reply_post.is_empty() {
            self.status.fetch_and(!int::REPLY, Ordering::AcqRel);
            // A reply may have been posted and signalled between the look and the clearing.
            if !self.reply_post.is_empty() {
                self.status.fetch_or(int::REPLY, Ordering::AcqRel);
            }
        }
        value
    }

    /// Set status bits. True: that asserted the interrupt, which was not asserted before.
    pub(super) fn raise(&self, bits: u32) -> bool {
        let before = self.status.fetch_or(bits, Ordering::AcqRel);
        let enabled = !self.mask() & (int::REPLY | int::DOORBELL);
        before & enabled == 0 && bits & enabled != 0
    }

    pub(super) fn lower(&self, bits: u32) {
        self.status.fetch_and(!bits, Ordering::AcqRel);
    }

    pub(super) fn status(&self) -> u32 {
        self.status.load(Ordering::Acquire)
    }

    pub(super) fn mask(&self) -> u32 {
        self.mask.load(Ordering::Acquire)
    }

    /// Set the mask. True: that asserted the interrupt, which was not asserted before.
    pub(super) fn set_mask(&self, value: u32) -> bool {
        let before = self.asserted();
        self.mask.store(value, Ordering::Release);
        !before && self.asserted()
    }

    /// Whether the interrupt is asserted.
    pub(super) fn asserted(&self) -> bool {
        self.status() & !self.mask() & (int::REPLY | int::DOORBELL) != 0
    }

    /// Message unit reset: all FIFOs empty, nothing pending, everything masked.
    pub(super) fn reset(&self) {
        for queue in [&self.requests, &self.reply_free, &self.reply_post] {
            // Bounded: another processor may go on posting.
            for _ in 0..queue.capacity() {
                let _ = queue.pop();
            }
        }
        self.status.store(0, Ordering::Release);
        let _ = self.set_mask(int::REPLY | int::DOORBELL);
    }
}

impl FastRegisters for Port {
    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        let (true, Ok(data)) = (REGISTER_BARS.contains(&bar), <&mut [u8; 4]>::try_from(data)) else {
            return false;
        };
        let value = match offset {
            // The read that empties the FIFO lowers the line.
            reg::REPLY_FIFO if self.line.load(Ordering::Acquire) && self.reply_post.len() <= 1 => {
                return false;
            }
            reg::REPLY_FIFO => self.read_reply(),
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
                fence(Ordering::SeqCst);
                let asleep =
                    self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed);
                if !asleep {
                    return FastWrite::Taken;
                }
                FastWrite::Wake { idle: self.idle.load(Ordering::Relaxed) && self.reply_post.is_empty() }
            }
            _ => FastWrite::Forward,
        }
    }
}
