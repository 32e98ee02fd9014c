//! Reports about clients, limited in number: clients try again and again.

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A report of a kind at most once in this time.
const INTERVAL: Duration = Duration::from_secs(10);

static HOOK: OnceLock<fn(&str)> = OnceLock::new();
static REFUSALS: ReportLimit = ReportLimit::new();
static START: OnceLock<Instant> = OnceLock::new();

/// Lets one report of a kind through in 10 seconds, and counts the others.
#[derive(Debug, Default)]
pub struct ReportLimit {
    /// When the next report may be made, in milliseconds since the first one of any kind.
    next: AtomicU64,
    /// Reports that were not made since the last one.
    withheld: AtomicU64,
}

impl ReportLimit {
    /// The first report may be made at once.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), withheld: AtomicU64::new(0) }
    }

    /// Whether a report may be made now: `Some`, with the number of reports that were not made since the last one; or `None`.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(START.get_or_init(Instant::now).elapsed())
    }

    fn admit_at(&self, now: Duration) -> Option<u64> {
        let now = now.as_millis() as u64;
        let following = now + INTERVAL.as_millis() as u64;
        let update = |next: u64| (now >= next).then_some(following);
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(_) => Some(self.withheld.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.withheld.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// Set the function that gets a line when the host is the reason why a client could not be served: at most one line in 10 seconds, of all
/// servers of the process. It is called on threads of the servers. Only the first call has an effect.
pub fn on_client_refused(hook: fn(&str)) {
    let _ = HOOK.set(hook);
}

/// Report that a client could not be served.
pub fn client_refused(error: &dyn Display) {
    if REFUSALS.admit().is_some()
        && let Some(hook) = HOOK.get()
    {
        hook(&format!("a client could not be served: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_report_in_each_interval() {
        let limit = ReportLimit::new();
        let admit =
            |step: u64| limit.admit_at(Duration::from_millis(step * 100)).map(|withheld| (step, withheld));
        let reports: Vec<_> = (0..250).filter_map(admit).collect();
        assert_eq!(reports, [(0, 0), (100, 99), (200, 99)]);
    }
}
