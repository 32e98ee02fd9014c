//! A client's socket, and descriptors that a client passes.
//!
//! The last close of a descriptor may sleep for as long as a client wants: a TCP socket with SO_LINGER and unsent data, a file of FUSE
//! whose daemon does not answer, a Unix socket whose queue has such a descriptor. So no thread that serves closes one:
//!
//! - What arrives with a message is received as [`Received`], also where no descriptor is expected: without space for descriptors the
//!   kernel closes them on the thread that receives. A `Received` is closed by a thread that nobody waits for, unless its kind has been
//!   determined, and is one whose close never sleeps.
//! - Before a [`ClientSocket`] is closed, its queue is emptied: the kernel closes descriptors in the queue together with the socket.
//!
//! The end of the process closes what is left. Sockets do not linger then (`PF_EXITING`).

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
#[expect(clippy::disallowed_types, reason = "closing is no request")]
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use paradisk_disk_formats::{ThreadKind, spawn};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendFlags, Shutdown, SocketFlags, acceptfrom_with, recvmsg, sendmsg, shutdown, sockopt,
};

/// Maximum number of descriptors that Linux passes with a message (`SCM_MAX_FD`).
const MAX_FDS: usize = 253;
/// Maximum number of closes at a time. While so many sleep, other descriptors of clients stay open.
const MAX_CLOSING: usize = 128;
/// Pause after the host has refused a thread.
const SPAWN_PAUSE: Duration = Duration::from_millis(100);

/// A connected socket of a client.
#[derive(Debug)]
pub struct ClientSocket {
    fd: OwnedFd,
    /// A socket of this family may have descriptors in its queue.
    unix: bool,
}

impl ClientSocket {
    /// Accept a client.
    ///
    /// # Errors
    /// Those of `accept4`.
    pub fn accept(listener: impl AsFd, flags: SocketFlags) -> Result<Self, Errno> {
        let (fd, peer) = acceptfrom_with(listener, flags | SocketFlags::CLOEXEC)?;
        let inet = [AddressFamily::INET, AddressFamily::INET6];
        let unix = !peer.is_some_and(|peer| inet.contains(&peer.address_family()));
        Ok(Self { fd, unix })
    }

    /// A socket that was accepted elsewhere.
    ///
    /// # Errors
    /// It is not a socket.
    pub fn connected(fd: OwnedFd) -> Result<Self, Errno> {
        let unix = sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        Ok(Self { fd, unix })
    }

    /// Receive from a client that may pass no descriptors. 0: the client has closed its side.
    ///
    /// # Errors
    /// [`Errno::PROTO`]: the client has passed descriptors. And those of `recvmsg`.
    pub fn receive(&self, into: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let mut passed = Vec::new();
        let (got, _) = self.receive_with(into, &mut passed, RecvFlags::empty())?;
        if passed.is_empty() {
            return Ok(got);
        }
        passed.into_iter().for_each(Received::close_apart);
        Err(Errno::PROTO)
    }

    /// Receive, with the descriptors that the client passes. True: some of them could not be received.
    ///
    /// # Errors
    /// Those of `recvmsg`.
    pub(crate) fn receive_with(
        &self,
        into: &mut [IoSliceMut<'_>],
        passed: &mut Vec<Received>,
        flags: RecvFlags,
    ) -> Result<(usize, bool), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let read = recvmsg(&self.fd, into, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                passed.extend(fds.map(Received::new));
            }
        }
        Ok((read.bytes, read.flags.contains(ReturnFlags::CTRUNC)))
    }

    /// Send without descriptors.
    ///
    /// # Errors
    /// Those of `sendmsg`; [`Errno::PIPE`] without a signal.
    pub fn send(&self, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
        sendmsg(&self.fd, from, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
    }

    /// End the connection. A thread that sleeps in [`receive`](Self::receive) or [`send`](Self::send) is woken.
    pub fn shut_down(&self) {
        // Fails if the client has disconnected.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

impl From<UnixStream> for ClientSocket {
    fn from(stream: UnixStream) -> Self {
        Self { fd: stream.into(), unix: true }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Read for &ClientSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| self.receive(&mut [IoSliceMut::new(into)]))?)
    }
}

impl Write for &ClientSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, from, SendFlags::NOSIGNAL))?)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| self.send(from))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if !self.unix {
            return;
        }
        // Nothing enters the queue after the shutdown, so the loop is bounded by the queue's length.
        self.shut_down();
        let mut bytes = [0; 4096];
        loop {
            let mut passed = Vec::new();
            let into = &mut [IoSliceMut::new(&mut bytes)];
            let received = self.receive_with(into, &mut passed, RecvFlags::DONTWAIT);
            passed.into_iter().for_each(Received::close_apart);
            match received {
                Ok((1.., _)) | Err(Errno::INTR) => {}
                Ok((0, _)) | Err(_) => return,
            }
        }
    }
}

/// Refuse new clients of a Unix listener, and disconnect those that wait to be accepted: what they have sent may have descriptors, which
/// the kernel would close together with the listener.
pub(crate) fn refuse_clients(listener: &UnixListener) {
    if shutdown(listener, Shutdown::Read).is_ok() {
        // Does not wait, after the shutdown.
        while ClientSocket::accept(listener, SocketFlags::empty()).is_ok() {}
    }
}

/// A descriptor that a client has passed. Dropping it never sleeps.
#[derive(Debug)]
pub(crate) struct Received(Option<OwnedFd>);

impl Received {
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }

    /// Have it closed by another thread, whatever it is.
    fn close_apart(mut self) {
        self.0.take().into_iter().for_each(|fd| CLOSER.push(fd));
    }

    /// The descriptor, as long as this is not dropped.
    #[cfg(feature = "vhost-user-blk")]
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// The descriptor, if it is of a kind whose close never sleeps, as `check` determines without sleeping.
    #[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
    pub(crate) fn checked<E>(
        mut self,
        check: impl FnOnce(BorrowedFd<'_>) -> Result<(), E>,
    ) -> Result<OwnedFd, E>
    where
        E: From<Errno>,
    {
        let fd = self.0.take().ok_or(Errno::BADF)?;
        match check(fd.as_fd()) {
            Ok(()) => Ok(fd),
            Err(error) => {
                self.0 = Some(fd);
                Err(error)
            }
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else { return };
        // Memory and eventfds are closed here: that does not sleep.
        #[cfg(any(feature = "vfio-user", feature = "vhost-user-blk"))]
        if crate::memory_sources::MemorySources::default().check(fd.as_fd()).is_ok() {
            return;
        }
        CLOSER.push(fd);
    }
}

/// Descriptors of clients that are to be closed. One thread waits for them, and starts a thread for each close.
struct Closer {
    #[expect(clippy::disallowed_types, reason = "closing is no request")]
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The thread that waits.
    started: bool,
    queue: VecDeque<OwnedFd>,
    /// Threads that close a descriptor, or are about to.
    closing: usize,
    /// Those of them that have not taken their descriptor from the queue.
    starting: usize,
}

#[expect(clippy::disallowed_types, reason = "closing is no request")]
static CLOSER: Closer = Closer {
    state: Mutex::new(State { started: false, queue: VecDeque::new(), closing: 0, starting: 0 }),
    changed: Condvar::new(),
};

/// Start the thread that has descriptors of clients closed, unless it runs. A server does so before it accepts clients.
///
/// # Errors
/// The host refuses the thread.
pub fn start_closer() -> io::Result<()> {
    CLOSER.start(&mut CLOSER.state())
}

impl Closer {
    fn state(&self) -> MutexGuard<'_, State> {
        // No invariant spans several changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&'static self, state: &mut State) -> io::Result<()> {
        if !state.started {
            spawn(ThreadKind::Closer, "closer", || self.run())?;
            state.started = true;
        }
        Ok(())
    }

    fn push(&'static self, fd: OwnedFd) {
        let mut state = self.state();
        state.queue.push_back(fd);
        // The descriptor stays open if the host refuses the thread.
        let _ = self.start(&mut state);
        self.changed.notify_one();
    }

    fn run(&'static self) -> ! {
        let mut state = self.state();
        loop {
            if state.queue.len() <= state.starting || state.closing >= MAX_CLOSING {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.closing += 1;
            state.starting += 1;
            if spawn(ThreadKind::Close, "close", || self.close_next()).is_err() {
                state.closing -= 1;
                state.starting -= 1;
                drop(state);
                thread::sleep(SPAWN_PAUSE);
                state = self.state();
            }
        }
    }

    fn close_next(&self) {
        let mut state = self.state();
        state.starting -= 1;
        let fd = state.queue.pop_front();
        drop(state);
        if let Some(fd) = fd {
            // Fails if it is not a socket.
            let _ = sockopt::set_socket_linger(&fd, None);
            drop(fd);
        }
        self.state().closing -= 1;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    use rustix::net::SendAncillaryMessage;

    use super::*;

    /// A TCP socket with unsent data, whose last close sleeps for an hour; and its other end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
        socket.set_nonblocking(true).unwrap();
        while (&socket).write(&[0; 1 << 16]).is_ok() {}
        (socket, other)
    }

    fn pass(stream: &UnixStream, fd: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(stream, &[IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
    }

    /// A Unix socket whose queue has a lingering socket: its close sleeps, and no option of it prevents that.
    fn nested() -> (UnixStream, (UnixStream, TcpStream)) {
        let (outer, inner) = UnixStream::pair().unwrap();
        let (socket, other) = lingering();
        pass(&inner, socket.as_fd());
        (outer, (inner, other))
    }

    /// Run on a thread of its own, and fail if that does not end.
    fn in_time(run: impl FnOnce() + Send + 'static) {
        let (ended, wait) = mpsc::channel();
        thread::spawn(move || {
            run();
            ended.send(()).unwrap();
        });
        wait.recv_timeout(Duration::from_secs(60)).expect("the thread sleeps, or has failed");
    }

    /// Linux closes what a message has brought when the thread that received it returns from the kernel.
    #[test]
    fn descriptors_are_received_where_none_are_expected() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (socket, _other) = lingering();
        pass(&theirs, socket.as_fd());
        drop(socket);
        in_time(move || {
            let client = ClientSocket::from(ours);
            let got = client.receive(&mut [IoSliceMut::new(&mut [0; 8])]);
            assert_eq!(got, Err(Errno::PROTO));
        });
    }

    #[test]
    fn descriptors_that_were_not_received_do_not_delay_the_close() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (socket, _other) = lingering();
        (&theirs).write_all(&[0; 10_000]).unwrap();
        pass(&theirs, socket.as_fd());
        (&theirs).write_all(&[0; 10_000]).unwrap();
        pass(&theirs, socket.as_fd());
        drop(socket);
        in_time(move || drop(ClientSocket::from(ours)));
    }

    #[test]
    fn clients_that_were_not_accepted_do_not_delay_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let client = UnixStream::connect(folder.path().join("socket")).unwrap();
        let (socket, _other) = lingering();
        pass(&client, socket.as_fd());
        drop(socket);
        in_time(move || {
            refuse_clients(&listener);
            drop(listener);
        });
        UnixStream::connect(folder.path().join("socket")).unwrap_err();
    }

    /// However many closes sleep, the next descriptor is closed.
    #[test]
    fn closes_that_sleep_do_not_delay_others() {
        let (outers, _others): (Vec<_>, Vec<_>) = (0..8).map(|_| nested()).unzip();
        in_time(move || {
            outers.into_iter().for_each(|outer| drop(Received::new(outer.into())));
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            drop(Received::new(ours.into()));
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "closed");
        });
    }
}
