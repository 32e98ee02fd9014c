//! A page over HTTP: one thread, which serves a bounded number of clients for a bounded time each.
//!
//! A client sends a request and gets one response, and the connection is closed (HTTP/1.1, RFC 9112). Each phase of a connection has a
//! deadline that nothing extends. A client that connects when all places are taken replaces the oldest connection to which no response is
//! being sent; if responses are being sent to all, the client waits.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{ThreadKind, spawn};
use paradisk_serve::{ClientSocket, client_refused, start_closer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketFlags, send, shutdown};

/// Clients at a time.
const CONNECTIONS: usize = 16;
/// Longest request in bytes. Browsers and Prometheus send less than 1 KiB.
const LONGEST_REQUEST: usize = 8 << 10;
const TIMES: Times = Times {
    request: Duration::from_secs(2),
    response: Duration::from_secs(10),
    close: Duration::from_secs(1),
};
/// Pause after the host could not accept a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// To send its request.
    request: Duration,
    /// To receive the response.
    response: Duration,
    /// To close the connection. If the server closed the socket with unread data of the client, the kernel would drop the part of the
    /// response that the client has not received.
    close: Duration,
}

/// The page of a server.
pub(crate) struct Page {
    /// The path of its URL.
    pub(crate) path: &'static str,
    /// Its media type.
    pub(crate) kind: &'static str,
    /// The page at present. `None`: there is none any more, or not in time.
    pub(crate) text: Box<dyn FnMut() -> Option<Arc<str>> + Send>,
}

/// Serve a page on a thread of this name until the process ends.
///
/// # Errors
/// The host refuses the thread.
pub(crate) fn serve(listener: OwnedFd, thread: &str, page: Page) -> io::Result<()> {
    serve_within(TIMES, listener, thread, page)
}

fn serve_within(times: Times, listener: OwnedFd, thread: &str, page: Page) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    start_closer()?;
    spawn(ThreadKind::Metrics, thread, move || run(&listener, page, times)).map(drop)
}

/// A response.
struct Response {
    head: String,
    body: Arc<str>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Page,
    /// There is no such path.
    NotFound,
    /// The method is not supported.
    NotAllowed,
    /// This is no request of HTTP/1.x.
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

    /// From the bytes up to the empty line, where the page has this path.
    fn parse(bytes: &[u8], page: &str) -> Self {
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let [method, target, version] = words[..] else { return Self::BAD };
        if !version.starts_with(b"HTTP/1.") || !target.starts_with(b"/") {
            return Self::BAD;
        }
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let target = match (method, path) {
            (b"GET" | b"HEAD", path) if path == page.as_bytes() => Target::Page,
            (b"GET" | b"HEAD", _) => Target::NotFound,
            _ => Target::NotAllowed,
        };
        Self { target, body: method != b"HEAD" }
    }
}

impl Page {
    fn response(&mut self, request: Request) -> Response {
        let plain = |status, text: &str| (status, "text/plain; charset=utf-8", Arc::from(text));
        let (status, kind, text) = match request.target {
            Target::Page => match (self.text)() {
                Some(text) => ("200 OK", self.kind, text),
                None => plain("503 Service Unavailable", "not available at the moment\n"),
            },
            Target::NotFound => plain("404 Not Found", &format!("the only page is {}\n", self.path)),
            Target::NotAllowed => plain("405 Method Not Allowed", "only GET and HEAD\n"),
            Target::Bad => plain("400 Bad Request", "not a request of HTTP/1.1\n"),
        };
        Response::new(status, kind, text, request.body)
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
    socket: ClientSocket,
    phase: Phase,
    deadline: Instant,
    times: Times,
}

/// The connection is over.
struct Over;

impl Connection {
    fn new(socket: ClientSocket, times: Times) -> Self {
        let deadline = Instant::now() + times.request;
        Self { socket, phase: Phase::Request(Vec::new()), deadline, times }
    }

    fn interest(&self) -> PollFlags {
        match self.phase {
            Phase::Request(_) | Phase::Closing => PollFlags::IN,
            Phase::Response { .. } => PollFlags::OUT,
        }
    }

    /// Continue as far as possible without waiting. Data of the client are received once in each phase, and the response is sent until the
    /// socket's buffer is full, so that all clients have their turn.
    fn advance(&mut self, page: &mut Page) -> Result<(), Over> {
        if let Phase::Request(received) = &mut self.phase {
            let mut part = [0; 2048];
            if !receive(&self.socket, &mut part, |bytes| received.extend_from_slice(bytes))? {
                return Ok(());
            }
            let request = match received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(_) => Request::parse(received, page.path),
                None if received.len() > LONGEST_REQUEST => Request::BAD,
                None => return Ok(()),
            };
            self.phase = Phase::Response { response: page.response(request), sent: 0 };
            self.deadline = Instant::now() + self.times.response;
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
            self.deadline = Instant::now() + self.times.close;
        }
        receive(&self.socket, &mut [0; 2048], |_| ()).map(drop)
    }
}

/// Receive once. False: nothing has arrived.
fn receive(socket: &ClientSocket, part: &mut [u8], mut take: impl FnMut(&[u8])) -> Result<bool, Over> {
    match socket.receive(&mut [IoSliceMut::new(part)]) {
        Ok(0) => Err(Over),
        Ok(length) => {
            take(part.get(..length).unwrap_or_default());
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(_) => Err(Over),
    }
}

fn run(listener: &OwnedFd, mut page: Page, times: Times) {
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
            // The deadline last: this thread itself may have come late to a request that is there.
            (!ready || connection.advance(&mut page).is_ok()) && Instant::now() < connection.deadline
        });
        if accepts && make_place(&mut connections) {
            match ClientSocket::accept(listener, SocketFlags::NONBLOCK) {
                Ok(socket) => connections.push(Connection::new(socket, times)),
                // The client has disconnected already.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    client_refused(&errno);
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// Make sure that there is a place for another client. False: responses are being sent to all.
fn make_place(connections: &mut Vec<Connection>) -> bool {
    if connections.len() < CONNECTIONS {
        return true;
    }
    // The oldest come first.
    let oldest =
        connections.iter().position(|connection| !matches!(connection.phase, Phase::Response { .. }));
    oldest.map(|index| drop(connections.remove(index))).is_some()
}

/// Sleep until the listener (unless [`make_place`] would fail) or a connection is ready, or a deadline has passed. Returns for the listener
/// and each connection whether it is ready.
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
