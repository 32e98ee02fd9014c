//! Framing: receives messages with descriptors from a socket, and sends replies. Nothing blocks.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use zerocopy::{FromBytes, IntoBytes};

use super::spec::{self, Header};
use crate::client_socket::{ClientSocket, Received};

/// Maximum number of bytes of a message, including the header.
pub(super) const LONGEST: usize = 16 << 10;
/// Maximum number of descriptors of a message.
pub(super) const MOST_FDS: usize = 64;
/// Larger than the longest message, so that one system call receives many short ones.
const BUFFER: usize = 2 * LONGEST;
const HEADER: usize = size_of::<Header>();

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The client closed it.
    #[error("the client closed the connection")]
    Closed,
    /// The client closed it inside a message.
    #[error("the client closed the connection inside a message")]
    Truncated,
    /// The size in a header is invalid.
    #[error("a message of {0} bytes: expected 16 to 16384")]
    Size(u32),
    /// A message has too many descriptors.
    #[error("a message with more than 64 file descriptors, or more than this process may have")]
    Descriptors,
    /// No session is possible with the first message.
    #[error("no session: {0}")]
    Refused(&'static str),
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(Errno),
    /// The host has no descriptors or memory left.
    #[error("the server cannot wait for the client: {0}")]
    Host(Errno),
}

/// A message with its descriptors.
#[derive(Default)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    pub(super) fds: Vec<Received>,
}

impl Message {
    /// The structure at the start of the payload, and the remaining bytes.
    pub(super) fn body<T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned>(
        &self,
    ) -> Result<(&T, &[u8]), Errno> {
        T::ref_from_prefix(&self.payload).map_err(|_| Errno::INVAL)
    }
}

/// A connection.
pub(super) struct Channel {
    stream: ClientSocket,
    inbox: Box<[u8]>,
    /// Start of the received bytes in the inbox that have not been taken.
    start: usize,
    end: usize,
    /// Number of bytes received: the position of `end` in the stream.
    received: u64,
    /// Descriptors, each with the position in the stream at which the read that returned it ended. A read continues
    /// over data without descriptors, and ends after the first data with descriptors. So a descriptor belongs to the
    /// message in which its read ended.
    fds: VecDeque<(u64, Received)>,
    outbox: Vec<u8>,
    sent: usize,
    outbox_fds: Vec<Arc<OwnedFd>>,
}

impl Channel {
    pub(super) fn new(stream: ClientSocket) -> Self {
        Self {
            stream,
            inbox: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            received: 0,
            fds: VecDeque::new(),
            outbox: Vec::new(),
            sent: 0,
            outbox_fds: Vec::new(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether a part of the last reply is unsent, because the client does not read. Until it is sent, nothing is
    /// received.
    pub(super) fn blocked(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Receive available bytes by one system call, unless a message is already waiting.
    pub(super) fn receive(&mut self) -> Result<(), Ended> {
        if self.waiting()?.is_some() {
            return Ok(());
        }
        self.inbox.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let free = self.inbox.get_mut(self.end..).unwrap_or_default();
        let mut passed = Vec::new();
        let read = self.stream.receive_with(&mut [IoSliceMut::new(free)], &mut passed, RecvFlags::DONTWAIT);
        let (bytes, lost) = match read {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(Errno::CONNRESET) => return Err(Ended::Closed),
            Err(errno) => return Err(Ended::Socket(errno)),
        };
        self.received += bytes as u64;
        self.end += bytes;
        self.fds.extend(passed.into_iter().map(|fd| (self.received, fd)));
        if lost || self.fds.len() > MOST_FDS {
            return Err(Ended::Descriptors);
        }
        match (bytes, self.start == self.end) {
            (0, true) => Err(Ended::Closed),
            (0, false) => Err(Ended::Truncated),
            _ => Ok(()),
        }
    }

    /// The header of a complete message that waits. Fails for an invalid header.
    fn waiting(&self) -> Result<Option<Header>, Ended> {
        let bytes = self.inbox.get(self.start..self.end).unwrap_or_default();
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Ok(None) };
        let size = header.size.get();
        if !(HEADER..=LONGEST).contains(&(size as usize)) {
            return Err(Ended::Size(size));
        }
        Ok((bytes.len() >= size as usize).then_some(header))
    }

    /// Take the next message. False: there is no complete one.
    pub(super) fn next(&mut self, message: &mut Message) -> Result<bool, Ended> {
        let Some(header) = self.waiting()? else { return Ok(false) };
        let end = self.start + header.size.get() as usize;
        message.header = header;
        message.payload.clear();
        message.payload.extend_from_slice(self.inbox.get(self.start + HEADER..end).unwrap_or_default());
        self.start = end;
        let place = self.received - (self.end - end) as u64;
        message.fds.clear();
        while self.fds.front().is_some_and(|(at, _)| *at <= place) {
            message.fds.extend(self.fds.pop_front().map(|(_, fd)| fd));
        }
        Ok(true)
    }

    /// Reply to a command, with descriptors.
    pub(super) fn reply(
        &mut self,
        command: &Header,
        result: Result<&[u8], Errno>,
        fds: Vec<Arc<OwnedFd>>,
    ) -> Result<(), Ended> {
        let (payload, flags, error) = match result {
            Ok(payload) => (payload, spec::TYPE_REPLY, 0),
            Err(errno) => (&[][..], spec::TYPE_REPLY | spec::ERROR, errno.raw_os_error() as u32),
        };
        let size = HEADER + payload.len();
        let header =
            Header { size: (size as u32).into(), flags: flags.into(), error: error.into(), ..*command };
        self.outbox.extend_from_slice(header.as_bytes());
        self.outbox.extend_from_slice(payload);
        self.outbox_fds = fds;
        self.flush()
    }

    /// Send as much as the socket accepts.
    pub(super) fn flush(&mut self) -> Result<(), Ended> {
        while let Some(rest @ [_, ..]) = self.outbox.get(self.sent..) {
            let fds: Vec<_> = self.outbox_fds.iter().map(|fd| fd.as_fd()).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(Ended::Descriptors);
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, &[IoSlice::new(rest)], &mut ancillary, flags) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Ended::Closed),
                Err(errno) => return Err(Ended::Socket(errno)),
            }
            self.outbox_fds.clear();
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }
}
