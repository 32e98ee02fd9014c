//! The HTTP server of metrics: one thread, which serves a bounded number of clients for a bounded time each.
//!
//! A client sends a request and gets one response, and the connection is closed (HTTP/1.1, RFC 9112). Each phase of a connection has a
//! deadline that nothing extends. A client that connects when all places are taken replaces the oldest connection to which no response is
//! being sent; if there is none, the client waits. The text is made at most every 50 ms, however many clients request it, because making
//! it interrupts the threads of adapters.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{ThreadKind, spawn};
use paradisk_serve::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, send, shutdown};

use super::Snapshot;
use super::listen::Listener;
use super::open_metrics::{self, CONTENT_TYPE};
use crate::failure::Failure;

/// Clients at a time.
const CONNECTIONS: usize = 16;
/// Longest request in bytes. Prometheus sends less than 1 KiB.
const LONGEST_REQUEST: usize = 8 << 10;
/// How long a client may take to send its request, and to receive the response.
const REQUEST_TIME: Duration = Duration::from_secs(2);
const RESPONSE_TIME: Duration = Duration::from_secs(10);
/// How long the client may take to close the connection. If the server closed it with unread data, the kernel would drop the part of the
/// response that the client has not received.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// The age up to which a text is sent again.
const FRESH: Duration = Duration::from_millis(50);
/// Pause after the host could not accept a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The server. Dropping it removes the file of its socket.
pub(crate) struct Server {
    _socket: Option<Socket>,
}

impl Server {
    /// Serve the statistics that `snapshot` returns, if there is a listener. `snapshot` returns `None` if there are no statistics any
    /// more, or not in time.
    pub(crate) fn start(
        listener: Option<Listener>,
        snapshot: impl Fn() -> Option<Snapshot> + Send + 'static,
    ) -> Result<Option<Self>, Failure> {
        let Some(listener) = listener else { return Ok(None) };
        let failed = |error: io::Error| Failure::Failed(format!("--metrics: {error}"));
        let text = move || snapshot().map(open_metrics::encode);
        let (server, address) = Self::serve(listener, text).map_err(failed)?;
        if let Some(address) = address {
            eprintln!("metrics: http://{address}/metrics");
        }
        Ok(Some(server))
    }

    /// Serve a text. Returns the server and, for TCP, its address.
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
        rustix::io::ioctl_fionbio(&listening, true)?;
        let pages = Pages { text: Box::new(text), latest: None };
        spawn(ThreadKind::Metrics, "metrics", move || run(&listening, pages))?;
        Ok((Self { _socket: socket }, address))
    }
}

/// Makes responses.
struct Pages {
    text: Box<dyn Fn() -> Option<String> + Send>,
    latest: Option<(Instant, Arc<str>)>,
}

/// A response.
struct Response {
    head: String,
    body: Arc<str>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Metrics,
    /// There is no such path.
    NotFound,
    /// The method is not supported.
    NotAllowed,
    /// This is not HTTP/1.1.
    Bad,
}

/// A request that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    target: Target,
    /// The response has a body: not after HEAD.
    body: bool,
}

impl Request {
    const BAD: Self = Self { target: Target::Bad, body: true };

    /// From the bytes up to the empty line.
    fn parse(bytes: &[u8]) -> Self {
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [method, target, version] = words[..] else { return Self::BAD };
        if !version.starts_with(b"HTTP/1.") || !target.starts_with(b"/") {
            return Self::BAD;
        }
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let target = match (method, path) {
            (b"GET" | b"HEAD", b"/metrics") => Target::Metrics,
            (b"GET" | b"HEAD", _) => Target::NotFound,
            _ => Target::NotAllowed,
        };
        Self { target, body: method != b"HEAD" }
    }
}

impl Pages {
    fn response(&mut self, request: Request) -> Response {
        let plain = |status, text: &str| (status, "text/plain; charset=utf-8", Arc::from(text));
        let (status, kind, text) = match request.target {
            Target::Metrics => match self.metrics() {
                Some(text) => ("200 OK", CONTENT_TYPE, text),
                None => plain("503 Service Unavailable", "no metrics at the moment\n"),
            },
            Target::NotFound => plain("404 Not Found", "the metrics are at /metrics\n"),
            Target::NotAllowed => plain("405 Method Not Allowed", "only GET and HEAD\n"),
            Target::Bad => plain("400 Bad Request", "not a request of HTTP/1.1\n"),
        };
        Response::new(status, kind, text, request.body)
    }

    fn metrics(&mut self) -> Option<Arc<str>> {
        if let Some((made, text)) = &self.latest
            && made.elapsed() < FRESH
        {
            return Some(Arc::clone(text));
        }
        let text: Arc<str> = (self.text)()?.into();
        self.latest = Some((Instant::now(), Arc::clone(&text)));
        Some(text)
    }
}

impl Response {
    fn new(status: &str, kind: &str, body: Arc<str>, send_body: bool) -> Self {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
            body.len()
        );
        Self { head, body: if send_body { body } else { "".into() } }
    }

    /// What is left after so many bytes.
    fn rest(&self, sent: usize) -> &[u8] {
        match self.head.as_bytes().get(sent..) {
            Some(head) if !head.is_empty() => head,
            _ => self.body.as_bytes().get(sent.saturating_sub(self.head.len())..).unwrap_or_default(),
        }
    }
}

enum Phase {
    /// The request arrives.
    Request(Vec<u8>),
    /// The response is sent.
    Response { response: Response, sent: usize },
    /// The client closes the connection; what it sends is dropped.
    Closing,
}

struct Connection {
    socket: OwnedFd,
    phase: Phase,
    deadline: Instant,
}

/// The connection is over.
struct Over;

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, phase: Phase::Request(Vec::new()), deadline: Instant::now() + REQUEST_TIME }
    }

    fn interest(&self) -> PollFlags {
        match self.phase {
            Phase::Request(_) | Phase::Closing => PollFlags::IN,
            Phase::Response { .. } => PollFlags::OUT,
        }
    }

    /// Advance as far as possible without waiting. Each phase receives at most once, so that all clients have their turn.
    fn advance(&mut self, pages: &mut Pages) -> Result<(), Over> {
        if let Phase::Request(received) = &mut self.phase {
            let mut part = [0; 2048];
            if !receive(&self.socket, &mut part, |bytes| received.extend_from_slice(bytes))? {
                return Ok(());
            }
            let request = match received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(_) => Request::parse(received),
                None if received.len() > LONGEST_REQUEST => Request::BAD,
                None => return Ok(()),
            };
            self.phase = Phase::Response { response: pages.response(request), sent: 0 };
            self.deadline = Instant::now() + RESPONSE_TIME;
        }
        if let Phase::Response { response, sent } = &mut self.phase {
            loop {
                let rest = response.rest(*sent);
                if rest.is_empty() {
                    break;
                }
                match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                    Ok(taken) => *sent += taken,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(_) => return Err(Over),
                }
            }
            shutdown(&self.socket, Shutdown::Write).map_err(|_| Over)?;
            self.phase = Phase::Closing;
            self.deadline = Instant::now() + CLOSE_TIME;
        }
        receive(&self.socket, &mut [0; 2048], |_| ()).map(drop)
    }
}

/// Receive once. False: nothing has arrived.
fn receive(socket: &OwnedFd, part: &mut [u8], mut take: impl FnMut(&[u8])) -> Result<bool, Over> {
    match recv(socket, &mut *part, RecvFlags::empty()) {
        Ok((0, _)) => Err(Over),
        Ok((length, _)) => {
            take(part.get(..length).unwrap_or_default());
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(_) => Err(Over),
    }
}

fn run(listener: &OwnedFd, mut pages: Pages) {
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        let Ok(ready) = wait(listener, &connections) else {
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let mut flags = ready.iter();
        let accepts = flags.next() == Some(&true);
        connections.retain_mut(|connection| {
            let ready = flags.next().is_some_and(|ready| *ready);
            // The deadline is checked last, because this thread may process a request late that arrived in time.
            (!ready || connection.advance(&mut pages).is_ok()) && Instant::now() < connection.deadline
        });
        if accepts && make_place(&mut connections) {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => connections.push(Connection::new(socket)),
                // The client has disconnected already.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }
}

/// Have a place for another client. False: all are being answered.
fn make_place(connections: &mut Vec<Connection>) -> bool {
    if connections.len() < CONNECTIONS {
        return true;
    }
    // The oldest come first.
    let oldest =
        connections.iter().position(|connection| !matches!(connection.phase, Phase::Response { .. }));
    oldest.map(|index| drop(connections.remove(index))).is_some()
}

/// Sleep until the listener (where there is a place) or a connection is ready, or a deadline has passed: which of them are ready.
fn wait(listener: &OwnedFd, connections: &[Connection]) -> Result<Vec<bool>, Errno> {
    let all_answered =
        connections.iter().all(|connection| matches!(connection.phase, Phase::Response { .. }));
    let full = connections.len() >= CONNECTIONS && all_answered;
    let listening = if full { PollFlags::empty() } else { PollFlags::IN };
    let mut fds = vec![PollFd::new(listener, listening)];
    fds.extend(connections.iter().map(|connection| PollFd::new(&connection.socket, connection.interest())));
    let deadline = connections.iter().map(|connection| connection.deadline).min();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests;
