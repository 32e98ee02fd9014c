//! Messages between the client's socket and the `vhost` crate.
//!
//! The crate closes descriptors that it does not expect on the session's thread, which must not sleep. So the crate has a socket of its
//! own, which gets whole messages, and descriptors whose close does not sleep: eventfds and memory. One other kind is expected, the socket
//! of `VHOST_USER_SET_BACKEND_REQ_FD`, which the crate keeps to itself and has no message for a configuration change: the crate gets a
//! substitute.
//!
//! ```text
//! client -> forward: whole messages, descriptors checked -> vhost crate -> Session
//! client <- return_replies                               <- vhost crate
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg, sockopt,
};

use crate::client_socket::{ClientSocket, Received};
use crate::memory_sources::{MemorySources, Unexpected};

/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// Request, flags, number of bytes that follow: each of four bytes.
const HEADER: usize = 12;
/// Maximum number of bytes after the header that the crate accepts.
const LONGEST: usize = 0x1000;
/// Maximum number of descriptors that the crate receives with a message.
const MOST_FDS: usize = 32;

/// Why a message is not forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// The client has disconnected, perhaps inside a message.
    #[error("the client has disconnected")]
    Closed,
    /// The client has passed too many descriptors, or this process has too many.
    #[error("a message with more than {MOST_FDS} file descriptors, or more than this process may have")]
    Descriptors,
    /// Not one descriptor with the request for it.
    #[error("SET_BACKEND_REQ_FD with {0} file descriptors: expected 1")]
    Backchannels(usize),
    /// Not a socket to which the server sends without waiting.
    #[error("SET_BACKEND_REQ_FD: expected a Unix stream socket")]
    Backchannel,
    /// A descriptor of a kind that is not expected.
    #[error(transparent)]
    Unexpected(#[from] Unexpected),
    /// A socket failed.
    #[error("socket: {0}")]
    Socket(#[from] Errno),
}

/// The client's socket, and this end of the crate's.
pub(super) struct Relay<'a> {
    client: &'a ClientSocket,
    inner: UnixStream,
}

impl<'a> Relay<'a> {
    /// Also returns the crate's socket.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub(super) fn new(client: &'a ClientSocket) -> io::Result<(Self, UnixStream)> {
        let (inner, outer) = UnixStream::pair()?;
        Ok((Self { client, inner }, outer))
    }

    /// Wait for the next message, and forward it. Returns the client's socket, if it is that of `VHOST_USER_SET_BACKEND_REQ_FD`.
    pub(super) fn forward(&self, memory: &MemorySources) -> Result<Option<Received>, Refused> {
        let mut message = [0; HEADER + LONGEST];
        let mut passed = Vec::new();
        self.receive(&mut message, 0..HEADER, &mut passed)?;
        let word = |at: usize| {
            let bytes = message.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let (request, size) = (word(0), word(8) as usize);
        // The crate refuses a longer message for its header.
        let end = HEADER + if size > LONGEST { 0 } else { size };
        self.receive(&mut message, HEADER..end, &mut passed)?;
        let message = message.get(..end).unwrap_or_default();
        if passed.len() > MOST_FDS {
            return Err(Refused::Descriptors);
        }
        if request == SET_BACKEND_REQ_FD {
            let (1, Some(socket)) = (passed.len(), passed.pop()) else {
                return Err(Refused::Backchannels(passed.len()));
            };
            if !socket.as_fd().is_some_and(is_unix_stream) {
                return Err(Refused::Backchannel);
            }
            self.send(message, &[self.inner.as_fd()])?;
            return Ok(Some(socket));
        }
        let checked = passed.into_iter().map(|fd| fd.checked(|fd| memory.check(fd)));
        let checked = checked.collect::<Result<Vec<OwnedFd>, _>>()?;
        let fds: Vec<_> = checked.iter().map(AsFd::as_fd).collect();
        self.send(message, &fds)?;
        Ok(None)
    }

    /// Fill a range of `message`.
    fn receive(
        &self,
        message: &mut [u8],
        range: std::ops::Range<usize>,
        passed: &mut Vec<Received>,
    ) -> Result<(), Refused> {
        let mut rest = message.get_mut(range).unwrap_or_default();
        while !rest.is_empty() {
            let receive =
                || self.client.receive_with(&mut [IoSliceMut::new(rest)], passed, RecvFlags::empty());
            match retry_on_intr(receive) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(Refused::Closed),
                Ok((_, true)) => return Err(Refused::Descriptors),
                Ok((got, false)) => rest = rest.get_mut(got..).unwrap_or_default(),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// The message fits into the socket's buffer, which is empty: the crate has received all messages before.
    fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        send_all(self.inner.as_fd(), message, fds, SendFlags::DONTWAIT)
    }

    /// Send the client what the crate has replied.
    pub(super) fn return_replies(&self) -> Result<(), Errno> {
        let mut reply = [0; HEADER + LONGEST];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.inner, &mut [IoSliceMut::new(&mut reply)], &mut ancillary, flags);
            let got = match received {
                Ok(received) if received.bytes > 0 => received.bytes,
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let mut own: Vec<OwnedFd> = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    own.extend(fds);
                }
            }
            let fds: Vec<_> = own.iter().map(AsFd::as_fd).collect();
            let reply = reply.get(..got).unwrap_or_default();
            send_all(self.client.as_fd(), reply, &fds, SendFlags::empty())?;
        }
    }
}

/// Whether `MSG_DONTWAIT` keeps every send on this descriptor from sleeping. The client shares it, and a send on a TCP socket, for one,
/// waits as long as another process is in a call that locks the socket.
fn is_unix_stream(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}

/// Send all bytes; the descriptors with the first.
fn send_all(
    to: BorrowedFd<'_>,
    mut bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    while !bytes.is_empty() {
        let send = || sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL);
        let sent = retry_on_intr(send)?;
        bytes = bytes.get(sent..).unwrap_or_default();
        ancillary.clear();
    }
    Ok(())
}
