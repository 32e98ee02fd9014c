//! A client's socket, non-blocking, in plain text or under TLS.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionbio, readv};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::tls::Session;

/// A stream of bytes both ways.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    tls: Option<Session>,
    /// Bytes of plain text received and sent.
    moved: u64,
}

impl Stream {
    /// Over a connected socket, in plain text.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Errno> {
        ioctl_fionbio(&socket, true)?;
        Ok(Self { socket: Socket { fd: socket }, tls: None, moved: 0 })
    }

    /// Continue under TLS. The caller completes the handshake before anything else ([`is_handshaking`](Self::is_handshaking)).
    pub(super) fn start_tls(&mut self, session: Session) {
        self.tls = Some(session);
    }

    /// Whether the connection is under TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the TLS handshake goes on: [`handshake`](Self::handshake) and [`flush`](Self::flush) until it does not.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Receive what has arrived, as far as it fits. 0: the client has closed its side.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: nothing has arrived; or the host's error.
    pub(super) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let got = self.receive_into(into)?;
        self.moved += got as u64;
        Ok(got)
    }

    fn receive_into(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match &mut self.tls {
            Some(tls) => tls.receive(&mut self.socket, into),
            None => self.socket.receive(into),
        }
    }

    /// Receive the next records of the TLS handshake.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the client has sent nothing; [`Errno::PROTO`]: the handshake failed; or the host's error.
    pub(super) fn handshake(&mut self) -> Result<(), Errno> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.receive_records(&mut self.socket))
    }

    /// Send as much as the host takes. Under TLS, some of it may stay in the buffer: see [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the host takes nothing now; or the host's error.
    pub(super) fn send(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let sent = self.send_from(from)?;
        self.moved += sent as u64;
        Ok(sent)
    }

    fn send_from(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.flush()?;
        let Some(tls) = &mut self.tls else { return self.socket.send(from) };
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
    /// [`Errno::AGAIN`]: the host does not take all of it now; or the host's error.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.flush(&mut self.socket))
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
        self.socket.fd.as_fd()
    }
}

/// The socket itself.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
}

impl Socket {
    fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| readv(&self.fd, into))
    }

    fn send(&mut self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut control = SendAncillaryBuffer::default();
        rustix::io::retry_on_intr(|| sendmsg(&self.fd, from, &mut control, SendFlags::NOSIGNAL))
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.receive(&mut [IoSliceMut::new(into)])?)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(self.send(&[IoSlice::new(from)])?)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(self.send(from)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
