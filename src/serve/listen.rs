//! Where a server listens: at a path, or at a socket that it was started with.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

use paradisk_serve::{Permissions, Socket};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType, getpeername};

use paradisk_disk_formats::escaped;

use crate::failure::Failure;
use crate::inherited;
use crate::units::{group, mode};

/// The Unix socket of a server.
#[derive(clap::Args)]
pub(super) struct Listen {
    /// Where clients connect: a path (the file is made, and removed at the end), or fd=N, a listening socket that is open already.
    /// Default: the socket that a service manager passes (LISTEN_FDS)
    #[arg(long, value_name = "PATH|fd=N", alias = "socket-path")]
    socket: Option<Place>,
    /// Permissions of the socket's file, in octal; to connect, a process needs the permission to write
    #[arg(long, value_name = "MODE", value_parser = mode, default_value = "600", requires = "socket")]
    socket_mode: u32,
    /// Group of the socket's file: its number, or its name in /etc/group
    #[arg(long, value_name = "GROUP", value_parser = group, requires = "socket")]
    socket_group: Option<u32>,
}

/// The value of `--socket`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Path(PathBuf),
    Descriptor(RawFd),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("fd=") {
            None => Ok(Self::Path(text.into())),
            Some(number) => number
                .parse()
                .map(Self::Descriptor)
                .map_err(|_| format!("`{number}` is no number of a descriptor")),
        }
    }
}

impl Listen {
    /// The path of a socket whose file is this server's.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match &self.socket {
            Some(Place::Path(path)) => Some(path.clone()),
            _ => None,
        }
    }

    /// The socket, and its name for messages. The disks have been opened, so that each descriptor that is left is a socket.
    pub(super) fn open(&self) -> Result<(Socket, String), Failure> {
        match &self.socket {
            Some(Place::Path(path)) => {
                refuse_unused()?;
                let permissions = Permissions { mode: self.socket_mode, group: self.socket_group };
                let socket = Socket::listen_for(path, permissions);
                let socket = socket.map_err(|error| Failure::on(path, "listen", error))?;
                Ok((socket, escaped(path).to_string()))
            }
            Some(Place::Descriptor(number)) => {
                let taken = given(*number)?;
                refuse_unused()?;
                Ok(taken)
            }
            None => match &passed()?[..] {
                [number] => given(*number),
                [] => Err(Failure::Usage(
                    "--socket: expected a path or fd=N, as no service manager passes a socket".to_owned(),
                )),
                several => {
                    let count = several.len();
                    Err(Failure::Usage(format!("LISTEN_FDS: {count} sockets are passed, and one is needed")))
                }
            },
        }
    }
}

/// The descriptors that a service manager passes (sd_listen_fds(3)) and that no option has taken.
fn passed() -> Result<Vec<RawFd>, Failure> {
    let numbers = sd_notify::listen_fds().map_err(|error| Failure::Usage(format!("LISTEN_FDS: {error}")))?;
    Ok(numbers.filter(|number| inherited::is_unclaimed(*number)).collect())
}

/// Refuse a passed socket if another one is served: clients that connect to it would wait forever.
pub(super) fn refuse_unused() -> Result<(), Failure> {
    match passed()?.first() {
        None => Ok(()),
        Some(number) => Err(Failure::Usage(format!(
            "LISTEN_FDS: fd={number} is passed, and no option uses it; to serve it, leave out --socket, --listen and --fd"
        ))),
    }
}

/// The listening Unix socket with this number.
fn given(number: RawFd) -> Result<(Socket, String), Failure> {
    let descriptor = inherited::take(number).map_err(|error| Failure::Usage(format!("--socket: {error}")))?;
    if !is_stream_socket(&descriptor) || !is_listening(&descriptor) {
        return Err(Failure::Usage(format!("--socket: fd={number} is not a listening Unix stream socket")));
    }
    Ok((Socket::given(UnixListener::from(descriptor)), format!("fd={number}")))
}

/// Where the clients of a server come from.
pub(super) enum Clients {
    /// They connect, one after the other.
    Listening(Socket),
    /// There is one, which is connected.
    Connected(UnixStream),
}

/// The Unix socket of `--fd`: it listens, or it is connected to a client. And its name for messages.
pub(super) fn descriptor(number: RawFd) -> Result<(Clients, String), Failure> {
    let descriptor = inherited::take(number).map_err(|error| Failure::Usage(format!("--fd: {error}")))?;
    let clients = match (is_stream_socket(&descriptor), is_listening(&descriptor)) {
        (true, true) => Clients::Listening(Socket::given(UnixListener::from(descriptor))),
        (true, false) if getpeername(&descriptor).is_ok() => Clients::Connected(UnixStream::from(descriptor)),
        _ => {
            let text = format!("--fd: {number} is not a Unix stream socket that listens or is connected");
            return Err(Failure::Usage(text));
        }
    };
    refuse_unused()?;
    Ok((clients, format!("fd={number}")))
}

fn is_stream_socket(descriptor: &OwnedFd) -> bool {
    let descriptor = descriptor.as_fd();
    socket_domain(descriptor) == Ok(AddressFamily::UNIX) && socket_type(descriptor) == Ok(SocketType::STREAM)
}

fn is_listening(descriptor: &OwnedFd) -> bool {
    socket_acceptconn(descriptor.as_fd()) == Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_path_or_a_descriptor() {
        assert_eq!("a/b".parse(), Ok(Place::Path("a/b".into())));
        assert_eq!("fd=7".parse(), Ok(Place::Descriptor(7)));
        assert_eq!("./fd=7".parse(), Ok(Place::Path("./fd=7".into())));
        assert!("fd=x".parse::<Place>().is_err());
        assert_eq!(mode("660"), Ok(0o660));
        for wrong in ["8", "1000", "", "-1"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
