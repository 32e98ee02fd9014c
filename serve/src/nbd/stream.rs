//! A client's socket, never blocking.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionbio, readv};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// A stream of bytes both ways.
#[derive(Debug)]
pub(super) struct Stream(OwnedFd);

impl Stream {
    /// Over a connected socket.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Errno> {
        ioctl_fionbio(&socket, true)?;
        Ok(Self(socket))
    }

    /// Receive what has come, at most as much as there is room for; 0: nothing will come any more.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nothing has come; or what the host says.
    pub(super) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| readv(&self.0, into))
    }

    /// Send as much as the host takes.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: it takes nothing now; or what the host says.
    pub(super) fn send(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut control = SendAncillaryBuffer::default();
        rustix::io::retry_on_intr(|| sendmsg(&self.0, from, &mut control, SendFlags::NOSIGNAL))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
