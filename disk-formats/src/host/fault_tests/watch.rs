//! Aborts the tests if a run does not end.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Maximum duration of a run; runs take milliseconds.
const LONGEST: Duration = Duration::from_secs(120);

#[allow(clippy::disallowed_types, reason = "a test's clock")]
type Mutex<T> = std::sync::Mutex<T>;

/// The current run, and its start.
type Current = Mutex<(String, Instant)>;

/// Watches the runs of one test.
pub(super) struct Watch(Arc<Current>);

impl Watch {
    pub(super) fn new() -> Self {
        let current = Arc::new(Mutex::new((String::new(), Instant::now())));
        let looked_at = Arc::downgrade(&current);
        std::thread::spawn(move || {
            while in_time(&looked_at) {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self(current)
    }

    /// Start the next run.
    pub(super) fn begin(&self, title: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (title, Instant::now());
    }
}

/// Abort the process if the current run takes too long; `false` if the test has ended.
fn in_time(current: &Weak<Current>) -> bool {
    let Some(current) = current.upgrade() else { return false };
    let (title, begun) = &*current.lock().unwrap_or_else(PoisonError::into_inner);
    if begun.elapsed() > LONGEST {
        eprintln!("does not end: {title}");
        std::process::abort();
    }
    true
}
