//! Messages on standard error: each is a line or more.
//!
//! The reader of standard error may have ended, or may not read. A message is lost then, and nothing else happens: no message makes the
//! program fail, and in `run` and `serve` none makes a thread wait. There, threads put messages into a bounded queue ([`queue`]), and one
//! thread writes them ([`start`]). That thread alone may sleep in the write: a pipe may be full, a terminal stopped, and the file system
//! of a file may not answer. Other commands write at once.
//!
//! ```text
//! tell! -> queue, or counted as lost where it is full -> the thread -> standard error
//! ```

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::process::ExitCode;
#[expect(clippy::disallowed_types, reason = "messages are no requests")]
use std::sync::Mutex;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use paradisk_disk_formats::{ThreadKind, spawn};

use crate::failure::Failure;

/// Maximum number of messages in the queue.
const CAPACITY: usize = 1024;

/// How long the end of the process waits for messages to be written.
const LAST_MESSAGES: Duration = Duration::from_secs(2);

/// Print a line to standard error. The arguments are those of `format!`.
macro_rules! tell {
    ($($text:tt)+) => { $crate::tell::line(format_args!($($text)+)) };
}

/// The messages of this process.
static MESSAGES: Messages = Messages::new();

/// As [`tell!`] prints it.
pub(crate) fn line(text: Arguments<'_>) {
    MESSAGES.add(format!("{text}\n"));
}

/// Print why a subcommand failed; its exit status.
pub(crate) fn failure(failure: &Failure) -> ExitCode {
    match failure {
        Failure::Usage(text) => {
            tell!("error: {text}\n\nFor more information, try '--help'.");
            ExitCode::from(2)
        }
        Failure::Failed(text) => {
            tell!("error: {text}");
            ExitCode::from(1)
        }
        Failure::Reported => ExitCode::from(1),
        Failure::Ended { status, text } => {
            tell!("{text}");
            ExitCode::from(*status)
        }
    }
}

/// From now on, messages are written by a thread, once that is [started](start). Messages of a panic, too.
pub(crate) fn queue() {
    MESSAGES.state().queues = true;
    std::panic::set_hook(Box::new(tell_panic));
}

/// Start the thread that writes messages, unless it runs.
///
/// # Errors
/// The host refuses the thread.
pub(crate) fn start() -> io::Result<()> {
    MESSAGES.start()
}

/// Wait, for a bounded time, until all messages are written: the process is about to end.
pub(crate) fn finish() {
    if MESSAGES.start().is_err() {
        // Nobody else writes them, and nothing is served.
        while let Some(message) = MESSAGES.pop() {
            write(message.as_bytes());
        }
    }
    let waits = |state: &mut State| state.writer && (state.writing || !state.queue.is_empty());
    let _ = MESSAGES.written.wait_timeout_while(MESSAGES.state(), LAST_MESSAGES, waits);
}

fn tell_panic(panic: &PanicHookInfo<'_>) {
    let (thread, trace) = (thread::current(), Backtrace::capture());
    let name = thread.name().unwrap_or("without a name");
    match trace.status() {
        BacktraceStatus::Captured => tell!("thread `{name}` {panic}\n{trace}"),
        _ => tell!("thread `{name}` {panic}"),
    }
    // The process may be about to end.
    finish();
}

/// Write to standard error. An error means that nobody reads it.
fn write(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

#[expect(clippy::disallowed_types, reason = "messages are no requests")]
struct Messages {
    state: Mutex<State>,
    added: Condvar,
    written: Condvar,
}

struct State {
    /// Messages are queued, and not written at once.
    queues: bool,
    queue: VecDeque<String>,
    /// Messages that found the queue full, since the last one that did not.
    lost: u64,
    /// There is a thread that writes.
    writer: bool,
    /// It is writing a message.
    writing: bool,
}

impl Messages {
    #[expect(clippy::disallowed_types, reason = "messages are no requests")]
    const fn new() -> Self {
        let state = State { queues: false, queue: VecDeque::new(), lost: 0, writer: false, writing: false };
        Self { state: Mutex::new(state), added: Condvar::new(), written: Condvar::new() }
    }

    /// No lock is held while anything is written.
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, message: String) {
        let mut state = self.state();
        if !state.queues {
            drop(state);
            write(message.as_bytes());
            return;
        }
        state.push(message);
        self.added.notify_one();
    }

    fn start(&'static self) -> io::Result<()> {
        let mut state = self.state();
        if state.queues && !state.writer {
            spawn(ThreadKind::Messages, "messages", || self.run())?;
            state.writer = true;
        }
        Ok(())
    }

    fn pop(&self) -> Option<String> {
        self.state().pop()
    }

    fn run(&self) -> ! {
        let mut state = self.state();
        loop {
            let Some(message) = state.pop() else {
                state.writing = false;
                self.written.notify_all();
                state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.writing = true;
            drop(state);
            write(message.as_bytes());
            state = self.state();
        }
    }
}

impl State {
    fn push(&mut self, message: String) {
        // Two free places: for the message that reports the loss, and for this one.
        if self.lost > 0 && self.queue.len() + 2 <= CAPACITY {
            self.report_loss();
        }
        if self.lost == 0 && self.queue.len() < CAPACITY {
            self.queue.push_back(message);
        } else {
            self.lost += 1;
        }
    }

    fn pop(&mut self) -> Option<String> {
        if self.queue.is_empty() && self.lost > 0 {
            self.report_loss();
        }
        self.queue.pop_front()
    }

    /// In the order of the messages, it stands where they would be.
    fn report_loss(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        self.queue
            .push_back(format!("warning: {lost} lines lost here: standard error was not read in time\n"));
    }
}

/// A writer for events of the crate `tracing`: each write is a message.
pub(crate) struct Events;

impl Write for Events {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        MESSAGES.add(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_loses_messages_and_says_how_many() {
        let messages = Messages::new();
        messages.state().queues = true;
        (0..CAPACITY + 5).for_each(|number| messages.add(format!("{number}\n")));
        let take = || messages.pop();
        assert_eq!(take().unwrap(), "0\n");
        // One place is free, and the loss is not reported yet.
        messages.add("lost, too\n".to_owned());
        assert_eq!(take().unwrap(), "1\n");
        messages.add("later\n".to_owned());
        let rest: Vec<String> = std::iter::from_fn(take).collect();
        let [last, loss, later] = rest.last_chunk().unwrap();
        assert_eq!((last, later), (&format!("{}\n", CAPACITY - 1), &"later\n".to_owned()));
        assert!(loss.starts_with("warning: 6 lines lost"), "{loss}");
        (0..=CAPACITY).for_each(|_| messages.add("again\n".to_owned()));
        let rest: Vec<String> = std::iter::from_fn(take).collect();
        assert_eq!(rest.len(), CAPACITY + 1);
        assert!(rest.last().unwrap().starts_with("warning: 1 lines lost"), "{:?}", rest.last());
    }
}
