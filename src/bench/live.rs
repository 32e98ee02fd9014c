//! `paradisk bench --serve ADDR`: the page of a running measurement.
//!
//! The server only sends a finished page. The measuring thread makes the page between two runs, if it was requested since the last one, and
//! in at most a twentieth of the time. So runs are not disturbed, and a page that is not requested costs nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
#[expect(clippy::disallowed_types, reason = "locked between runs and for a copy of a pointer")]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use benches::html;
use benches::progress::Progress;
use benches::result::Document;
use facts::host::host;

use super::progress::Bar;
use super::results::command;
use crate::failure::Failure;
use crate::http;

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
    /// The page was requested after it was made.
    wanted: AtomicBool,
}

impl Shown {
    /// Serve the page called `name` at this address, if there is one.
    pub(super) fn new(address: Option<SocketAddr>, name: &str) -> Result<Self, Failure> {
        let live = address.map(|address| Live::at(address, name)).transpose()?;
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
    fn at(address: SocketAddr, name: &str) -> Result<Self, Failure> {
        let live = TcpListener::bind(address).and_then(|listener| Self::serve(listener, name));
        live.map_err(|error| Failure::Failed(format!("--serve {address}: {error}")))
    }

    fn serve(listener: TcpListener, name: &str) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let empty = Document { command: Some(command()), ..Document::empty(None, host()) };
        let html = html::render_live(name, empty, "The measurement begins.");
        let page = Arc::new(Page::new(html));
        let served = Arc::clone(&page);
        let text = Box::new(move || Some(served.take()));
        let page_at = http::Page { path: "/", kind: "text/html; charset=utf-8", text };
        http::serve(listener.into(), "page", page_at)?;
        tell!("live page: http://{address}/");
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

    /// The page, which is wanted again from now on.
    fn take(&self) -> Arc<str> {
        self.wanted.store(true, Ordering::Relaxed);
        Arc::clone(&self.html.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_is_made_when_it_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let live = Live::serve(listener, "a <bench>").unwrap();
        let mut shown = Shown { bar: Bar::new(), live: Some(live) };
        shown.begin(10);
        shown.job("pvscsi ram");
        let empty = || Document::empty(None, host());
        shown.rows(&|| panic!("no page was requested"));
        let answer = ask(address);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{answer}");
        assert!(answer.contains("a &lt;bench&gt;") && answer.contains("The measurement begins."));
        shown.done();
        let begin = Instant::now();
        shown.rows(&empty);
        let answer = ask(address);
        assert!(answer.contains("1 of 10 runs, the last of pvscsi ram"), "{answer}");
        let live = shown.live.as_mut().unwrap();
        assert!(live.next >= begin + PAUSE);
        // However long this test takes.
        live.next += Duration::from_secs(3600);
        shown.rows(&|| panic!("it is too soon for another"));
    }
}
