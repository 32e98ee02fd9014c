//! A wake-up for the queue's thread: an eventfd with a flag that avoids redundant system calls. Many threads raise it,
//! one lowers it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A level: it stays raised until it is lowered. Raising it again has no effect.
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

    /// The thread that lowers the signal afterwards sees everything that was published before this call.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow: it grows by at most one between two calls of `lower`.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Call this before looking for published results, not after. The descriptor is read before the flag is cleared: if
    /// another thread raises the signal in between, the descriptor may stay readable without need, but no wake-up is
    /// lost.
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
