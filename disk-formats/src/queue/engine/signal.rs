//! A wake-up for the queue's thread: an eventfd that many raise and one lowers, with as few system calls as possible.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Raised until it is lowered; raising it twice is raising it once.
#[derive(Debug)]
pub(crate) struct Signal {
    fd: OwnedFd,
    raised: AtomicBool,
}

impl Signal {
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, raised: AtomicBool::new(false) })
    }

    /// What was published before this call is seen by the thread that lowers the signal afterwards.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow: it grows by one from one lowering to the next.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Look for what was published after this call, not before. The flag is cleared after the descriptor: a raise in
    /// between leaves the descriptor readable for nothing, never the other way round.
    pub(crate) fn lower(&self) {
        if self.raised.load(Ordering::Acquire) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            self.raised.swap(false, Ordering::AcqRel);
        }
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
