//! The end of a server, told to all its threads at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Not raised, then raised for ever: its descriptor is readable (level) from then on.
#[derive(Debug)]
pub(super) struct Stop(OwnedFd);

impl Stop {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(super) fn raise(&self) {
        // Only a full counter refuses, and that is raised.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
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
            let mut fds = [PollFd::from_borrowed_fd(fd, flags), PollFd::new(&self.0, PollFlags::IN)];
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
        self.0.as_fd()
    }
}
