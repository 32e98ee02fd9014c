//! Notifications to the service manager that has started this process (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use sd_notify::NotifyState;

/// The service manager, if there is one. The socket is connected from the start, because a sandbox allows no new one.
pub(crate) struct Manager(Option<UnixDatagram>);

impl Manager {
    /// That of NOTIFY_SOCKET: a path, or @ and an abstract name.
    pub(crate) fn connect() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let connect = |address| {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            Ok(socket)
        };
        Self(address.and_then(connect).inspect_err(warn).ok())
    }

    /// The start is over; `status` is a line for the user.
    pub(crate) fn ready(&self, status: &str) {
        self.notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The end has begun: what follows may take long.
    pub(crate) fn stopping(&self) {
        self.notify(&[NotifyState::Stopping]);
    }

    fn notify(&self, states: &[NotifyState<'_>]) {
        let text: String = states.iter().map(|state| format!("{state}\n")).collect();
        let _ = self.0.as_ref().map(|socket| socket.send(text.as_bytes()).inspect_err(warn));
    }
}

fn warn(error: &io::Error) {
    tell!("warning: cannot notify the service manager: {error}");
}
