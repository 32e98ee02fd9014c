//! Messages from the server to the client, on the socket that the client passes in `VHOST_USER_SET_BACKEND_REQ_FD`.

use std::io::IoSlice;
#[expect(clippy::disallowed_types, reason = "messages are no requests")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::client_socket::Received;

/// The message `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`: request, flags (version 1), number of bytes that follow.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

/// The client's socket, while there is a client that has given one. A send with `MSG_DONTWAIT` never sleeps: it is a Unix socket.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "messages are no requests")]
pub(super) struct Backchannel(Mutex<Option<Received>>);

impl Backchannel {
    fn socket(&self) -> MutexGuard<'_, Option<Received>> {
        // The value is replaced by one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, socket: Option<Received>) {
        *self.socket() = socket;
    }

    /// Send the client a configuration change. The message is lost if the socket's buffer is full.
    pub(super) fn config_changed(&self) {
        let socket = self.socket();
        if let Some(socket) = socket.as_ref().and_then(Received::as_fd) {
            let message = CONFIG_CHANGE.map(u32::to_le_bytes).concat();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = sendmsg(socket, &[IoSlice::new(&message)], &mut SendAncillaryBuffer::default(), flags);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_change_is_sent_where_there_is_a_socket() {
        let (way, mut back) = UnixStream::pair().unwrap();
        let backchannel = Backchannel::default();
        backchannel.config_changed();
        backchannel.set(Some(Received::new(way.into())));
        backchannel.config_changed();
        backchannel.set(None);
        let mut told = Vec::new();
        back.read_to_end(&mut told).unwrap();
        assert_eq!(told, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "once");
    }

    /// A client that does not read blocks nobody.
    #[test]
    fn a_full_socket_is_told_nothing() {
        let (way, _back) = UnixStream::pair().unwrap();
        let backchannel = Backchannel::default();
        backchannel.set(Some(Received::new(way.into())));
        for _ in 0..100_000 {
            backchannel.config_changed();
        }
    }
}
