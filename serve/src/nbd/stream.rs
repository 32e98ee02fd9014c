//! A client's socket, non-blocking, in plain text or under TLS.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, ioctl_fionbio, retry_on_intr};

use super::tls::Session;
use crate::client_socket::ClientSocket;

/// A stream of bytes both ways.
#[derive(Debug)]
pub(super) struct Stream {
    socket: ClientSocket,
    tls: Option<Session>,
    /// Bytes of plain text received and sent.
    moved: u64,
}

impl Stream {
    /// Over a connected socket, in plain text.
    pub(super) fn new(socket: ClientSocket) -> Result<Self, Errno> {
        ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, tls: None, moved: 0 })
    }

    /// Continue under TLS. The caller completes the handshake before anything else ([`is_handshaking`](Self::is_handshaking)).
    pub(super) fn start_tls(&mut self, session: Session) {
        self.tls = Some(session);
    }

    /// Whether the connection is under TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the TLS handshake is incomplete: the caller alternates [`handshake`](Self::handshake) and [`flush`](Self::flush).
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Receive what has arrived, as far as it fits. 0: the client has closed its side.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nothing has arrived; [`Errno::PROTO`]: the client has passed descriptors; or an error of the host.
    pub(super) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let got = self.receive_into(into)?;
        self.moved += got as u64;
        Ok(got)
    }

    fn receive_into(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match &mut self.tls {
            Some(tls) => tls.receive(&mut &self.socket, into),
            None => retry_on_intr(|| self.socket.receive(into)),
        }
    }

    /// Under TLS, whether the end of what the client sends has been received: the next [`receive`](Self::receive) returns it, though the
    /// socket may never be readable again.
    pub(super) fn has_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_ended())
    }

    /// Receive the next records of the TLS handshake.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the client has sent nothing; [`Errno::PROTO`]: the handshake failed; or an error of the host.
    pub(super) fn handshake(&mut self) -> Result<(), Errno> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.receive_records(&mut &self.socket))
    }

    /// Send as much as the host accepts. Under TLS, some of it may stay in the buffer: see [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the host accepts nothing now; or an error of the host.
    pub(super) fn send(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let sent = self.send_from(from)?;
        self.moved += sent as u64;
        Ok(sent)
    }

    fn send_from(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.flush()?;
        let Some(tls) = &mut self.tls else {
            return retry_on_intr(|| self.socket.send(from));
        };
        let sent = tls.encrypt(from)?;
        match self.flush() {
            Ok(()) | Err(Errno::AGAIN) => Ok(sent),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the buffer holds something to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Send what is in the buffer.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the host does not accept all of it now; or an error of the host.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.flush(&mut &self.socket))
    }

    /// Bytes of plain text received and sent so far, what is in the TLS buffer (up to 64 KiB) included.
    pub(super) const fn moved(&self) -> u64 {
        self.moved
    }

    /// Under TLS, send close_notify, as far as the host takes it now.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close();
            let _ = self.flush();
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
