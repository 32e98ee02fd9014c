//! Listening, and a thread for each client.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};

use super::connection::serve;
use super::export::Exports;
use super::stop::Stop;
use super::stream::Stream;

/// Clients at a time; more are hung up on.
const CONNECTIONS: usize = 64;
/// Where the host has nothing left for a client, it is asked again after so long.
const PAUSE: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Clone, Debug)]
pub enum Address {
    /// A Unix socket, for this user alone. The abandoned socket of a server that has ended is replaced.
    Unix(PathBuf),
    /// TCP. Port 0: one of the host's choice.
    Tcp(SocketAddr),
}

/// A server, listening.
#[derive(Debug)]
pub struct Server {
    stop: Arc<Stop>,
    acceptor: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
    address: Option<SocketAddr>,
}

impl Server {
    /// Listen and serve.
    ///
    /// # Errors
    /// The host's: the address is taken, or may not be used.
    pub fn start(address: &Address, exports: Exports) -> io::Result<Self> {
        let stop = Arc::new(Stop::new()?);
        let mut server = Self { stop: Arc::clone(&stop), acceptor: None, path: None, address: None };
        let listener: OwnedFd = match address {
            Address::Unix(path) => {
                let listener = listen_at(path)?;
                server.path = Some(path.clone());
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                listener.into()
            }
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                server.address = Some(listener.local_addr()?);
                listener.into()
            }
        };
        rustix::io::ioctl_fionbio(&listener, true)?;
        let accept = move || accept_all(&listener, &Arc::new(exports), &stop);
        server.acceptor = Some(thread::Builder::new().name("nbd".to_owned()).spawn(accept)?);
        Ok(server)
    }

    /// The address in use, for TCP.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Take no more clients, let requests in flight end, answer them, hang up. The disks are nobody's afterwards.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        if let Some(path) = &self.path {
            // It may be gone already.
            let _ = fs::remove_file(path);
        }
    }
}

fn listen_at(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && abandoned(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }
}

/// A socket that nobody listens at.
fn abandoned(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn accept_all(listener: &OwnedFd, exports: &Arc<Exports>, stop: &Arc<Stop>) {
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    while stop.wait(listener.as_fd(), PollFlags::IN, None).is_ok() {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            // The client has left already.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
            Err(_) => {
                let _ = stop.wait(stop.as_fd(), PollFlags::empty(), Some(Instant::now() + PAUSE));
                continue;
            }
        };
        clients.retain(|client| !client.is_finished());
        if clients.len() >= CONNECTIONS {
            continue;
        }
        // Refused by sockets that are not TCP.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let (exports, stop) = (Arc::clone(exports), Arc::clone(stop));
        let client = move || {
            if let Ok(stream) = Stream::new(socket) {
                serve(stream, &exports, &stop);
            }
        };
        // Without a thread, the socket is closed.
        clients.extend(thread::Builder::new().name("nbd-client".to_owned()).spawn(client));
    }
    for client in clients {
        let _ = client.join();
    }
}
