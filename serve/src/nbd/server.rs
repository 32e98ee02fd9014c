//! The listening socket, and a thread for each client.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{ThreadKind, spawn};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use super::connection::serve;
use super::export::Exports;
use super::slots::Slots;
use super::stop::Stop;
use super::stream::Stream;
use crate::client_socket::{ClientSocket, start_closer};
use crate::refusals::client_refused;
use crate::socket::Socket;

/// How long to wait after the host could not accept a client.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(Socket),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl From<Socket> for Listener {
    fn from(socket: Socket) -> Self {
        Self::Unix(socket)
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

/// A server, listening.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Stop>,
    acceptor: Option<JoinHandle<()>>,
    /// Dropping the socket removes its file.
    socket: Option<Socket>,
    address: Option<SocketAddr>,
}

impl Server {
    /// Clients that [`start`](Self::start) serves at a time.
    pub const CONNECTIONS: usize = 64;

    /// Serve the clients that connect, on threads of the server, until it is [stopped](Self::stop) or dropped.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn start(listener: impl Into<Listener>, exports: Exports) -> io::Result<Self> {
        Self::start_with(listener, exports, Self::CONNECTIONS, || ())
    }

    /// As [`start`](Self::start), for at most `connections` clients at a time. `on_idle` is called, on a thread of the server, whenever the
    /// last client that was served has disconnected. Clients that only negotiate do not count.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        listener: impl Into<Listener>,
        exports: Exports,
        connections: usize,
        on_idle: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        start_closer()?;
        let stop = Arc::new(Stop::new()?);
        let mut server = Self { stop: Arc::clone(&stop), acceptor: None, socket: None, address: None };
        let listener: OwnedFd = match listener.into() {
            Listener::Unix(socket) => server.socket.insert(socket).listener().as_fd().try_clone_to_owned()?,
            Listener::Tcp(listener) => {
                server.address = Some(listener.local_addr()?);
                listener.into()
            }
        };
        rustix::io::ioctl_fionbio(&listener, true)?;
        let slots = Slots::new(connections, Box::new(on_idle));
        let accept = move || accept_all(&listener, &Arc::new(exports), &slots, &stop);
        server.acceptor = Some(spawn(ThreadKind::NbdListener, "nbd", accept)?);
        Ok(server)
    }

    /// The address in use, for TCP.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Accept no more clients, complete and answer the requests in flight, and close all connections. No disk is in use afterwards.
    pub fn stop(self) {
        drop(self);
    }
}

/// Serve one client on a socket that was accepted elsewhere (by a service manager, for instance), until it disconnects.
///
/// # Errors
/// The host has no descriptors left, or the socket's options cannot be set. Nothing has been sent to the client then.
pub fn serve_client(socket: OwnedFd, exports: &Exports) -> io::Result<()> {
    let stop = Stop::new()?;
    serve(Stream::new(ClientSocket::connected(socket)?)?, exports, &stop, None);
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept_all(listener: &OwnedFd, exports: &Arc<Exports>, slots: &Arc<Slots>, stop: &Arc<Stop>) {
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    while stop.wait(listener.as_fd(), PollFlags::IN, None).is_ok() {
        let socket = match ClientSocket::accept(listener, SocketFlags::empty()) {
            Ok(socket) => socket,
            // The client has disconnected already.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
            Err(errno) => {
                client_refused(&errno);
                let _ = stop.wait(stop.as_fd(), PollFlags::empty(), Some(Instant::now() + ACCEPT_RETRY));
                continue;
            }
        };
        clients.retain(|client| !client.is_finished());
        let Some(slot) = slots.enter(&socket) else { continue };
        // Without effect on sockets that are not TCP.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let (exports, stop) = (Arc::clone(exports), Arc::clone(stop));
        let client = move || match Stream::new(socket) {
            Ok(stream) => serve(stream, &exports, &stop, Some(&slot)),
            Err(error) => client_refused(&error),
        };
        // If the host refuses the thread, the socket is closed.
        match spawn(ThreadKind::NbdClient, "nbd-client", client) {
            Ok(client) => clients.push(client),
            Err(error) => client_refused(&error),
        }
    }
    for client in clients {
        let _ = client.join();
    }
}
