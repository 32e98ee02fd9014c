//! The server of metrics. However many clients request the text, it is made at most every 50 ms, because making it interrupts the threads
//! of adapters.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paradisk_serve::Socket;

use super::Snapshot;
use super::listen::Listener;
use super::open_metrics::{self, CONTENT_TYPE};
use crate::failure::Failure;
use crate::http::{self, Page};

/// The path of the page.
const PATH: &str = "/metrics";
/// The age up to which a text is sent again.
const FRESH: Duration = Duration::from_millis(50);

/// The server. Dropping it removes the file of its socket.
pub(crate) struct Server {
    _socket: Option<Socket>,
}

impl Server {
    /// Serve what `snapshot` returns, if there is a socket for it. `snapshot` returns `None` if there are no statistics any more, or none
    /// in time.
    pub(crate) fn start(
        listener: Option<Listener>,
        snapshot: impl Fn() -> Option<Snapshot> + Send + 'static,
    ) -> Result<Option<Self>, Failure> {
        let Some(listener) = listener else { return Ok(None) };
        let failed = |error: io::Error| Failure::Failed(format!("--metrics: {error}"));
        let text = move || snapshot().map(open_metrics::encode);
        let (server, address) = Self::serve(listener, text).map_err(failed)?;
        if let Some(address) = address {
            tell!("metrics: http://{address}{PATH}");
        }
        Ok(Some(server))
    }

    /// Serve a text. Returns the address, for TCP.
    fn serve(
        listener: Listener,
        text: impl Fn() -> Option<String> + Send + 'static,
    ) -> io::Result<(Self, Option<SocketAddr>)> {
        let (listening, socket, address) = match listener {
            Listener::Tcp(listener) => {
                let address = listener.local_addr()?;
                (OwnedFd::from(listener), None, Some(address))
            }
            Listener::Unix(socket) => (socket.listener().as_fd().try_clone_to_owned()?, Some(socket), None),
        };
        let page = Page { path: PATH, kind: CONTENT_TYPE, text: Box::new(fresh(text)) };
        http::serve(listening, "metrics", page)?;
        Ok((Self { _socket: socket }, address))
    }
}

/// The text, made again when it is not [`FRESH`].
fn fresh(text: impl Fn() -> Option<String>) -> impl FnMut() -> Option<Arc<str>> {
    let mut latest: Option<(Instant, Arc<str>)> = None;
    move || {
        if let Some((made, text)) = &latest
            && made.elapsed() < FRESH
        {
            return Some(Arc::clone(text));
        }
        let text: Arc<str> = text()?.into();
        latest = Some((Instant::now(), Arc::clone(&text)));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use paradisk_serve::Permissions;

    use super::*;

    #[test]
    fn the_text_is_made_once_in_a_while() {
        let made = Cell::new(0);
        let mut page = fresh(|| {
            made.set(made.get() + 1);
            Some("# EOF\n".to_owned())
        });
        let begin = Instant::now();
        (0..200).for_each(|_| assert_eq!(page().as_deref(), Some("# EOF\n")));
        let most = begin.elapsed().as_millis() / FRESH.as_millis() + 1;
        assert!((1..=most as usize).contains(&made.get()), "{} times, at most {most}", made.get());
        std::thread::sleep(FRESH);
        let before = made.get();
        page();
        assert_eq!(made.get(), before + 1);
    }

    #[test]
    fn a_unix_socket_has_the_mode_of_the_option_and_goes_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let permissions = Permissions { mode: 0o620, group: None };
        let socket = Socket::listen_for(&path, permissions).unwrap();
        let (server, address) = Server::serve(Listener::Unix(socket), || Some("# EOF\n".to_owned())).unwrap();
        assert_eq!(address, None);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o620);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
        assert!(response.contains(kind) && response.ends_with("\r\n\r\n# EOF\n"), "{response}");
        drop(server);
        assert!(!path.exists());
    }
}
