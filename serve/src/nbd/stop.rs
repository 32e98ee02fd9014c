//! The signal that stops all threads of a server.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Not raised, then raised for ever: its descriptor is readable (level) from then on.
#[derive(Debug)]
pub(super) struct Stop {
    event: OwnedFd,
    /// The same, readable without a system call.
    raised: AtomicBool,
}

impl Stop {
    pub(super) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, raised: AtomicBool::new(false) })
    }

    pub(super) fn raise(&self) {
        // Before the event: a thread that it wakes finds the flag set.
        self.raised.store(true, Ordering::Release);
        // Fails only for a full counter, which is readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(super) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// Sleep until `fd` is ready for `flags`, or in error.
    ///
    /// # Errors
    /// [`Errno::CANCELED`]: raised; [`Errno::TIMEDOUT`]: the deadline has passed.
    pub(super) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        deadline: Option<Instant>,
    ) -> Result<(), Errno> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Errno::TIMEDOUT);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::from_borrowed_fd(fd, flags), PollFd::new(&self.event, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            let [ready, stopped] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                return Err(Errno::CANCELED);
            }
            if ready {
                return Ok(());
            }
        }
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
