//! Decides when posting saves time: while virtual CPUs exit soon after a write in any case.
//!
//! Then a posted write costs no exit of its own, and has almost no delay. If a guest writes and then sleeps, only the
//! poll of the I/O thread finds the write. The writes of such a guest should exit, and also those of a guest that waits
//! for each request. The thread that processes the writes tells these guests from others: on the thread of a virtual
//! CPU they are prompt, on an I/O thread late. So posting is tried when there are many requests, and ended when too many
//! writes are late.

use std::time::Duration;

use paradisk_devices::Time;

/// Interval of the decisions.
const WINDOW: Duration = Duration::from_millis(2);
/// Posting is not tried below this many requests per second; interrupt moderation has the same threshold.
const REQUESTS_PER_SECOND: u64 = 2000;
/// One of this many writes may be late.
const LATE: u64 = 8;
/// Pause after a failed try. It doubles with each further failure, up to a maximum.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Interval at which the I/O thread polls while writes are posted: the longest delay of a write.
pub(crate) const LOOK: Duration = Duration::from_micros(50);

/// Counters so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Requests that the device fetched.
    pub(crate) requests: u64,
    /// Posted writes that were taken on an exit.
    pub(crate) prompt: u64,
    /// Posted writes that an I/O thread processed, or that came while the device had no other work.
    pub(crate) late: u64,
}

/// Whether a device's writes are to be posted.
#[derive(Debug)]
pub(crate) struct Worth {
    posting: bool,
    window: Option<(Time, Seen)>,
    pause: Duration,
    not_before: Time,
}

impl Worth {
    pub(crate) const fn new() -> Self {
        Self { posting: false, window: None, pause: FIRST_PAUSE, not_before: Time(0) }
    }

    pub(crate) const fn posting(&self) -> bool {
        self.posting
    }

    /// Whether a decision by [`judge`](Self::judge) is due.
    pub(crate) fn due(&self, now: Time) -> bool {
        self.window.is_none_or(|(start, _)| now.since(start) >= WINDOW)
    }

    /// Decide by the counters. True: start or stop posting, according to [`posting`](Self::posting).
    pub(crate) fn judge(&mut self, now: Time, seen: Seen) -> bool {
        let Some((start, before)) = self.window.replace((now, seen)) else { return false };
        let was = self.posting;
        if self.posting {
            let prompt = seen.prompt - before.prompt;
            let late = seen.late - before.late;
            if late * LATE > prompt {
                self.posting = false;
                self.not_before = now.after(self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            } else if prompt == 0 {
                // Nothing to do: the thread may sleep.
                self.posting = false;
            } else {
                self.pause = FIRST_PAUSE;
            }
        } else if now >= self.not_before {
            let requests = u128::from(seen.requests - before.requests);
            let enough = u128::from(REQUESTS_PER_SECOND) * now.since(start).as_nanos() / 1_000_000_000;
            self.posting = requests > 0 && requests >= enough;
        }
        self.posting != was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decide every 2 ms, for a guest that makes `requests` in that time, of which `found` are late.
    fn run(windows: u64, requests: u64, found: u64) -> (u64, Worth) {
        let mut worth = Worth::new();
        let mut seen = Seen::default();
        let mut posted = 0;
        for window in 0..windows {
            let now = Time(window * 2_000_000);
            assert!(worth.due(now));
            worth.judge(now, seen);
            seen.requests += requests;
            if worth.posting() {
                posted += 1;
                seen.late += found;
                seen.prompt += requests - found;
            }
        }
        (posted, worth)
    }

    #[test]
    fn a_guest_that_leaves_anyway_posts_nearly_always() {
        let (posted, worth) = run(1000, 50, 1);
        assert!(posted >= 997 && worth.posting(), "{posted}");
    }

    #[test]
    fn a_guest_that_writes_and_sleeps_hardly_ever_posts() {
        let (posted, _) = run(10_000, 50, 25);
        assert!(posted <= 120, "{posted} of 10,000 windows");
    }

    #[test]
    fn few_requests_are_not_posted() {
        assert_eq!(run(1000, 3, 0).0, 0);
        assert_eq!(run(1000, 0, 0).0, 0);
    }

    #[test]
    fn an_idle_guest_lets_the_thread_sleep_and_comes_back_at_once() {
        let mut worth = run(10, 50, 0).1;
        let mut seen = Seen { requests: 500, prompt: 450, late: 0 };
        worth.judge(Time(20_000_000), seen);
        assert!(worth.judge(Time(22_000_000), seen) && !worth.posting(), "idle");
        seen.requests += 50;
        assert!(worth.judge(Time(24_000_000), seen) && worth.posting(), "busy again");
    }
}
