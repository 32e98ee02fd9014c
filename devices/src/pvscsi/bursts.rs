//! Forecast of a burst: how many requests the guest is about to put in.
//!
//! PVSCSI's driver kicks for each request from the threshold on. A threshold that is too low costs an exit for each request, one that is
//! too high leaves requests waiting. The threshold is set for the last request of the burst. If the guest puts in fewer, the device's poll
//! finds them. The poll is due after one and a half times the duration of the guest's bursts, within bounds.
//!
//! **Size.** N is the largest number of requests that were recently outstanding at the same time. The forecast depends on what the guest
//! does when the device sleeps:
//! - It is not reading completions: it will put in N minus the requests in flight minus the unread completions. If that is 0, because all N
//!   completions are unread, it will read them and put in as many again.
//! - Its interrupt handler is reading completions: it will read all of them, and put in N minus the requests in flight. The unread
//!   completions are not subtracted. Their number depends on the relative speed of two CPUs, and so would the number of exits.
//! - Its handler reads each completion at once. Then few requests are ever outstanding together, and N is too small. If the guest stops
//!   twice after the same number of requests, its bursts have that size.
//! - The device is faster than the guest, and is woken for each request. Then it sees no burst at all. A trial (`threshold`) suppresses all
//!   kicks for some polls, and counts the requests.
//!
//! **Position.** Requests of a burst are counted from its first one, whether kicks were suppressed meanwhile or not. A forecast that begins
//! in the middle of a burst is too high: the device waits for more requests than the guest puts in, until its poll. If the next forecast
//! began in the middle of a burst again, every burst would wait for a poll. So a poll that finds part of a burst counts as its end: the
//! next request is the first one of another burst.

use std::time::Duration;

use crate::bursts::{EarlyPolls, MostOutstanding};
use crate::kick_suppression::{MIN_REQUESTS, POLL_IDLE};
use crate::time::Time;

/// The longest time to a poll. The poll for a burst that takes longer than this is due before the burst ends.
const LONGEST_WAIT: Duration = Duration::from_micros(600);
/// If a poll finds fewer requests than this, the guest has stopped.
const MIN_PROGRESS: u32 = 4;
/// Polls that may find no request of a burst before the guest counts as absent.
const MAX_EMPTY_POLLS: u8 = 2;
/// After so many complete bursts the threshold is set for the last request, not for one shortly before.
const RELIABLE: u8 = 4;

/// The longest burst that is learned from two stops of the guest. More requests than this between two stops do not count as a single burst.
const MAX_RUN: u32 = 256;

/// The burst that is expected.
#[derive(Debug)]
pub(super) struct Bursts {
    most: MostOutstanding,
    /// The most requests outstanding that were seen since the device slept last.
    seen: u32,
    /// The guest's index of the completion ring when requests were last taken, or the device last slept.
    read: u32,
    /// Whether that index had changed when the device last slept: the guest was reading completions.
    reads: bool,
    /// Size of a burst that begins when the guest has read all completions.
    whole: u32,
    /// Size of the current burst; 0 while it is unknown.
    expected: u32,
    /// Number of requests of the current burst that were taken: so far, and until the last sleep.
    taken: u32,
    taken_before: u32,
    /// Polls in a row that found no request of the current burst.
    empty_polls: u8,
    /// The guest has stopped, and has not begun the current burst yet: the duration of this burst is measured from its first request.
    stopped: bool,
    /// When the current burst began.
    since: Time,
    /// Complete bursts since the guest last stopped early.
    complete: u8,
    /// Duration of bursts: a moving average.
    average: Duration,
    excuses: EarlyPolls,
    /// Requests taken since the guest last stopped, and between its last two stops.
    run: u32,
    run_before: u32,
}

/// What became of the current burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Burst {
    /// All of its requests were taken. The next burst is expected.
    Complete,
    /// The remaining requests are still expected.
    InProgress,
    /// The guest has put in fewer and stopped, and seldom does so. The next burst is expected.
    Excused,
    /// The guest has put in fewer and stopped.
    StoppedShort,
    /// The guest has put in none.
    Absent,
}

impl Bursts {
    pub(super) const fn new() -> Self {
        Self {
            most: MostOutstanding::new(),
            seen: 0,
            read: 0,
            reads: false,
            whole: 0,
            expected: 0,
            taken: 0,
            taken_before: 0,
            empty_polls: 0,
            stopped: false,
            since: Time(0),
            complete: 0,
            average: Duration::ZERO,
            excuses: EarlyPolls::new(),
            run: 0,
            run_before: 0,
        }
    }

    /// `count` requests were taken from the ring.
    #[inline]
    pub(super) fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
        self.run = self.run.saturating_add(count);
    }

    /// Requests are about to be taken: the guest has so many outstanding, and `read` is its index of the completion ring.
    #[inline]
    pub(super) fn fetches(&mut self, outstanding: u32, read: u32) {
        self.seen = self.seen.max(outstanding);
        self.read = read;
    }

    /// The device sleeps with many requests in flight, from which nothing follows about bursts.
    pub(super) const fn forget_seen(&mut self) {
        self.seen = 0;
    }

    /// Before each sleep: how many requests the guest will put in next, with `in_flight` in flight and `unread` completions in the ring.
    /// `read`: the guest's index of the completion ring.
    pub(super) fn forecast(&mut self, in_flight: u32, unread: u32, read: u32) -> u32 {
        let outstanding = in_flight.saturating_add(unread);
        let seen = std::mem::take(&mut self.seen);
        let most = self.most.sleep(seen.max(outstanding));
        self.reads = read != std::mem::replace(&mut self.read, read);
        self.whole = most.saturating_sub(in_flight);
        match most.saturating_sub(outstanding) {
            _ if self.reads => self.whole,
            0 => unread,
            more => more,
        }
    }

    /// Before the device sleeps, after all waiting requests were taken: what became of the burst. `next` requests are expected in the next
    /// one. `late`: the time of a poll has come.
    pub(super) fn before_sleep(&mut self, next: u32, late: bool, now: Time) -> Burst {
        if self.expected == 0 {
            self.begin(next, now);
            return Burst::InProgress;
        }
        if self.stopped && self.taken > 0 {
            (self.stopped, self.since) = (false, now);
        }
        let burst = self.judge(late);
        match burst {
            // Until the first request of the burst comes, completions of requests in flight make the burst longer.
            Burst::InProgress if self.taken == 0 => self.expected = self.expected.max(next),
            // A guest that has not begun to read completions puts in no more than `next`.
            Burst::InProgress if !self.reads => {
                self.expected = self.expected.min(self.taken.saturating_add(next))
            }
            Burst::InProgress => {}
            Burst::Complete => {
                let took = now.since(self.since).min(LONGEST_WAIT);
                self.average = (3 * self.average + took) / 4;
                self.complete = self.complete.saturating_add(1);
                self.begin(next, now);
            }
            Burst::Excused | Burst::StoppedShort => {
                self.complete = 0;
                if burst == Burst::Excused {
                    // The poll may have come too early.
                    self.average = self.average.max(now.since(self.since)).min(LONGEST_WAIT);
                }
                self.stops();
                self.begin(self.whole, now);
                self.stopped = burst == Burst::StoppedShort;
            }
            Burst::Absent => {
                self.begin(self.whole, now);
                self.stopped = true;
            }
        }
        self.taken_before = self.taken;
        burst
    }

    /// A burst of `expected` requests begins.
    pub(super) fn begin(&mut self, expected: u32, now: Time) {
        (self.expected, self.taken, self.taken_before) = (expected, 0, 0);
        (self.empty_polls, self.stopped, self.since) = (0, false, now);
    }

    fn judge(&mut self, late: bool) -> Burst {
        let new = self.taken - self.taken_before;
        if self.taken >= self.expected {
            Burst::Complete
        } else if !late {
            self.empty_polls = 0;
            Burst::InProgress
        } else if self.complete > 0 && new >= MIN_PROGRESS && self.excuses.spend() {
            Burst::Excused
        } else if self.taken > 0 {
            Burst::StoppedShort
        } else if self.empty_polls < MAX_EMPTY_POLLS {
            self.empty_polls += 1;
            Burst::InProgress
        } else {
            Burst::Absent
        }
    }

    /// The guest has stopped. If it has put in the same number of requests before each of its last two stops, its bursts have that size.
    fn stops(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run == std::mem::replace(&mut self.run_before, run) && run <= MAX_RUN {
            self.learn(run);
            self.whole = self.whole.max(run);
        }
    }

    /// The guest puts in bursts of so many at the least.
    pub(super) fn learn(&mut self, size: u32) {
        self.most.raise(size);
    }

    /// Whether the guest has so few requests outstanding that no kick is suppressed for its bursts.
    pub(super) fn are_short(&self) -> bool {
        self.most.get() < MIN_REQUESTS
    }

    /// A burst was complete while its kicks were suppressed.
    pub(super) fn credit(&mut self) {
        self.excuses.earn();
    }

    /// Requests of the burst that were taken.
    pub(super) const fn found(&self) -> u32 {
        self.taken
    }

    /// Requests still to come.
    pub(super) const fn missing(&self) -> u32 {
        self.expected.saturating_sub(self.taken)
    }

    /// Whether the last [`RELIABLE`] bursts were complete.
    pub(super) const fn reliable(&self) -> bool {
        self.complete >= RELIABLE
    }

    /// Time to the next poll.
    pub(super) fn poll_after(&self) -> Duration {
        (self.average + self.average / 2).clamp(POLL_IDLE, LONGEST_WAIT)
    }
}
