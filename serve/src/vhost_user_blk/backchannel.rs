//! Messages from the server to the client, on the socket that the client passes in `VHOST_USER_SET_BACKEND_REQ_FD`.
//!
//! The `vhost` crate keeps that socket to itself and has no message for a configuration change. So the socket is received a second
//! time here, by peeking at the message before the crate reads it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
#[expect(clippy::disallowed_types, reason = "messages are no requests")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};

/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// The message `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`: request, flags (version 1), number of bytes that follow.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

/// The client's socket, while there is a client that has given one.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "messages are no requests")]
pub(super) struct Backchannel(Mutex<Option<OwnedFd>>);

impl Backchannel {
    fn socket(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        // The value is replaced by one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, socket: Option<OwnedFd>) {
        *self.socket() = socket;
    }

    /// Send the client a configuration change. The message is lost if the socket's buffer is full.
    pub(super) fn config_changed(&self) {
        if let Some(socket) = &*self.socket() {
            let message = CONFIG_CHANGE.map(u32::to_le_bytes).concat();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = sendmsg(socket, &[IoSlice::new(&message)], &mut SendAncillaryBuffer::default(), flags);
        }
    }
}

/// Wait for a message without consuming it; the socket that it carries, if it is `VHOST_USER_SET_BACKEND_REQ_FD`.
pub(super) fn peek_socket(stream: &UnixStream) -> Option<OwnedFd> {
    let mut request = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    // An invalid message is reported when it is received.
    let read = recvmsg(stream, &mut [IoSliceMut::new(&mut request)], &mut ancillary, flags).ok()?;
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let first = fds.last();
    first.filter(|_| read.bytes == request.len() && u32::from_le_bytes(request) == SET_BACKEND_REQ_FD)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use rustix::net::SendAncillaryMessage;

    use super::*;

    #[test]
    fn the_socket_is_taken_and_the_message_is_left() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (way, mut back) = UnixStream::pair().unwrap();
        for (request, found) in [(SET_BACKEND_REQ_FD, true), (5, false)] {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let fds = [way.as_fd()];
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            let message = [request, 1, 0].map(u32::to_le_bytes).concat();
            sendmsg(&theirs, &[IoSlice::new(&message)], &mut ancillary, SendFlags::empty()).unwrap();
            let socket = peek_socket(&ours);
            assert_eq!(socket.is_some(), found);
            let mut left = [0; 12];
            (&ours).read_exact(&mut left).unwrap();
            assert_eq!(left, message[..]);
            let backchannel = Backchannel::default();
            backchannel.config_changed();
            backchannel.set(socket);
            backchannel.config_changed();
        }
        drop(way);
        let mut told = Vec::new();
        back.read_to_end(&mut told).unwrap();
        assert_eq!(told, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "once");
        // Less than a request, then the end.
        theirs.write_all(&[21]).unwrap();
        assert!(peek_socket(&ours).is_none());
        drop(theirs);
        assert!(peek_socket(&ours).is_none());
    }

    /// A client that does not read blocks nobody.
    #[test]
    fn a_full_socket_is_told_nothing() {
        let (way, _back) = UnixStream::pair().unwrap();
        let backchannel = Backchannel::default();
        backchannel.set(Some(way.into()));
        for _ in 0..100_000 {
            backchannel.config_changed();
        }
    }
}
