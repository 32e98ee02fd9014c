//! Ends the tests where a run does not end.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Runs take milliseconds.
const LONGEST: Duration = Duration::from_secs(120);

#[allow(clippy::disallowed_types, reason = "a test's clock")]
type Mutex<T> = std::sync::Mutex<T>;

/// The run at hand, and when it began.
type Current = Mutex<(String, Instant)>;

/// Looks at the runs of one test.
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

    /// The next run.
    pub(super) fn begin(&self, title: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (title, Instant::now());
    }
}

/// Whether there are further runs.
fn in_time(current: &Weak<Current>) -> bool {
    let Some(current) = current.upgrade() else { return false };
    let (title, begun) = &*current.lock().unwrap_or_else(PoisonError::into_inner);
    if begun.elapsed() > LONGEST {
        eprintln!("does not end: {title}");
        std::process::abort();
    }
    true
}
