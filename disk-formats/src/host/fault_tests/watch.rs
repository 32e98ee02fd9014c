//! Ends the tests where a run does not end.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Runs take milliseconds.
const LONGEST: Duration = Duration::from_secs(60);

/// Looks at the runs of one test.
pub(super) struct Watch(Sender<String>);

impl Watch {
    pub(super) fn new() -> Self {
        let (begun, runs) = channel::<String>();
        std::thread::spawn(move || {
            let mut current = String::new();
            loop {
                match runs.recv_timeout(LONGEST) {
                    Ok(next) => current = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("does not end: {current}");
                        std::process::abort();
                    }
                }
            }
        });
        Self(begun)
    }

    /// The next run.
    pub(super) fn begin(&self, title: impl FnOnce() -> String) {
        self.0.send(title()).expect("a thread that looks");
    }
}
