//! `paradisk bench --serve ADDR`: the page of a running measurement.
//!
//! One thread answers `GET /` over HTTP/1.1, one connection at a time. It only sends a finished page. The measuring thread makes the page between two
//! runs, if it was requested since the last one, and in at most a twentieth of the time. So runs are not disturbed, and a page that is not requested
//! costs nothing.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
#[expect(clippy::disallowed_types, reason = "locked between runs and for a copy of a pointer")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use benches::html;
use benches::progress::Progress;
use benches::result::Document;
use facts::host::host;

use super::progress::Bar;
use super::results::command;
use crate::failure::Failure;

/// Maximum number of bytes of a request: browsers send less than 1 KiB.
const MOST_BYTES: usize = 8 << 10;
/// How long a browser may take to send its request, or to receive the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Making pages takes at most one part in this many of the time.
const SHARE: u32 = 20;
/// Minimum time between two pages.
const PAUSE: Duration = Duration::from_secs(1);

/// Progress on the terminal, and on the page if one is served.
pub(super) struct Shown {
    bar: Bar,
    live: Option<Live>,
}

/// A page and its state.
struct Live {
    name: String,
    page: Arc<Page>,
    jobs: usize,
    done: usize,
    current: String,
    /// When the next page may be made.
    next: Instant,
}

/// The last page.
#[expect(clippy::disallowed_types, reason = "locked between runs and for a copy of a pointer")]
struct Page {
    html: Mutex<Arc<str>>,
    /// The page was requested since then.
    wanted: AtomicBool,
}

impl Shown {
    /// Serve the page called `name` at this address, if there is one.
    pub(super) fn new(address: Option<SocketAddr>, name: &str) -> Result<Self, Failure> {
        let live = address.map(|address| Live::serve(address, name)).transpose()?;
        Ok(Self { bar: Bar::new(), live })
    }
}

impl Progress for Shown {
    fn begin(&mut self, jobs: usize) {
        self.bar.begin(jobs);
        if let Some(live) = &mut self.live {
            (live.jobs, live.done) = (jobs, 0);
        }
    }

    fn job(&mut self, name: &str) {
        self.bar.job(name);
        if let Some(live) = &mut self.live {
            name.clone_into(&mut live.current);
        }
    }

    fn done(&mut self) {
        self.bar.done();
        if let Some(live) = &mut self.live {
            live.done += 1;
        }
    }

    fn rows(&mut self, rows: &dyn Fn() -> Document) {
        if let Some(live) = &mut self.live {
            live.update(rows);
        }
    }

    fn end(&mut self) {
        self.bar.end();
    }
}

impl Live {
    fn serve(address: SocketAddr, name: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("--serve {address}: {error}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let empty = Document { command: Some(command()), ..Document::empty(None, host()) };
        let html = html::render_live(name, empty, "The measurement begins.");
        let page = Arc::new(Page::new(html));
        let served = Arc::clone(&page);
        thread::Builder::new().name("page".into()).spawn(move || served.run(&listener)).map_err(failed)?;
        eprintln!("live page: http://{address}/");
        let (current, next) = (String::new(), Instant::now());
        Ok(Self { name: name.to_owned(), page, jobs: 0, done: 0, current, next })
    }

    /// Make a new page, if it was requested and the time for it has come.
    fn update(&mut self, rows: &dyn Fn() -> Document) {
        let begin = Instant::now();
        if begin < self.next || !self.page.wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let Self { jobs, done, current, .. } = self;
        let progress = format!("Under way: {done} of {jobs} runs, the last of {current}.");
        let document = Document { command: Some(command()), ..rows() };
        let html = html::render_live(&self.name, document, &progress);
        *self.page.html.lock().unwrap_or_else(PoisonError::into_inner) = html.into();
        self.next = begin + (begin.elapsed() * SHARE).max(PAUSE);
    }
}

impl Page {
    #[expect(clippy::disallowed_types, reason = "locked between runs and for a copy of a pointer")]
    fn new(html: String) -> Self {
        Self { html: Mutex::new(html.into()), wanted: AtomicBool::new(false) }
    }

    fn run(&self, listener: &TcpListener) {
        for stream in listener.incoming() {
            match stream {
                // A browser that disconnects is no failure of the measurement.
                Ok(stream) => drop(self.answer(stream)),
                // Out of descriptors, perhaps.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let request = receive(&mut stream)?;
        let (status, kind, body) = match request.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] {
            [b"GET", b"/", ..] => {
                self.wanted.store(true, Ordering::Relaxed);
                let html = Arc::clone(&self.html.lock().unwrap_or_else(PoisonError::into_inner));
                ("200 OK", "text/html", html)
            }
            [b"GET", ..] => ("404 Not Found", "text/plain", "no such page\n".into()),
            _ => ("405 Method Not Allowed", "text/plain", "only GET\n".into()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nAllow: GET\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())
    }
}

/// A request up to the empty line.
///
/// # Errors
/// The request is too long, or takes too long.
fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + CLIENT_TIMEOUT;
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > MOST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => request.extend_from_slice(part.get(..length).unwrap_or_default()),
        }
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Send these bytes, and return the answer.
    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // The server does not read all of a request that is too long.
        let _ = stream.write_all(request);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn the_page_is_made_when_it_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut shown = Shown::new(Some(address), "a <bench>").unwrap();
        shown.begin(10);
        shown.job("pvscsi ram");
        let empty = || Document::empty(None, host());
        shown.rows(&|| panic!("no page was requested"));
        let answer = ask(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{answer}");
        assert!(answer.contains("a &lt;bench&gt;") && answer.contains("The measurement begins."));
        shown.done();
        shown.rows(&empty);
        let answer = ask(address, b"GET / HTTP/1.1\r\n\r\n");
        assert!(answer.contains("1 of 10 runs, the last of pvscsi ram"), "{answer}");
        shown.rows(&|| panic!("it is too soon for another"));
        for (request, status) in [
            (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 404 "),
            (b"POST / HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
            (b"\r\n\r\n", "HTTP/1.1 405 "),
        ] {
            assert!(ask(address, request).starts_with(status));
        }
        // Too long, and cut off: no answer, and the next is served.
        assert_eq!(ask(address, &vec![b'x'; 64 << 10]), "");
        drop(TcpStream::connect(address).unwrap());
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
