//! Reports that clients could not be served because the host has no descriptors, memory or threads left.

use std::fmt::Display;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A report at most once in this time: clients try again, and a server tries to accept them.
const INTERVAL: Duration = Duration::from_secs(10);

static HOOK: OnceLock<fn(&str)> = OnceLock::new();
/// When the next report may be made, in milliseconds since the first refusal.
static NEXT: AtomicU64 = AtomicU64::new(0);
static START: OnceLock<Instant> = OnceLock::new();

/// Set the function that gets a line when the host is the reason why a client could not be served: at most one line in 10 seconds, of all
/// servers of the process. It is called on threads of the servers. Only the first call has an effect.
pub fn on_client_refused(hook: fn(&str)) {
    let _ = HOOK.set(hook);
}

/// Report that a client could not be served.
pub fn client_refused(error: &dyn Display) {
    let now = START.get_or_init(Instant::now).elapsed();
    if due(&NEXT, now)
        && let Some(hook) = HOOK.get()
    {
        hook(&format!("a client could not be served: {error}"));
    }
}

/// Whether a report may be made; if so, the next one only after the interval.
fn due(next: &AtomicU64, now: Duration) -> bool {
    let now = now.as_millis() as u64;
    let following = now + INTERVAL.as_millis() as u64;
    let update = |next: u64| (now >= next).then_some(following);
    next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_report_in_each_interval() {
        let next = AtomicU64::new(0);
        let reports = (0..1000).filter(|step| due(&next, Duration::from_millis(step * 100)));
        assert_eq!(reports.collect::<Vec<_>>(), [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
    }
}
