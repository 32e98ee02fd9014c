//! Forecast of a burst: how many requests the guest is about to put in.
//!
//! PVSCSI's driver kicks for each request from the threshold on. A threshold that is too low costs an exit for each request, one that is too high
//! leaves requests waiting. A guest that keeps N requests outstanding puts in N less those that are in flight or whose completions it has not read.
//! With N unread completions it reads them and puts in N again. The threshold is set for the last request of the burst. If the guest puts in fewer,
//! the device's poll finds them. The poll is due after the time that the guest's bursts take, within bounds.

use std::time::Duration;

use crate::kick_suppression::POLL_IDLE;
use crate::time::Time;

/// The longest time to a poll.
const LONGEST_WAIT: Duration = Duration::from_micros(400);
/// A guest that put in fewer requests than these since the last poll has stopped.
const MIN_PROGRESS: u32 = 4;
/// Polls that may find no request of a burst before the guest counts as absent.
const MAX_EMPTY_POLLS: u8 = 2;
/// After so many complete bursts the threshold is set for the last request, not for one shortly before.
const RELIABLE: u8 = 4;

/// A poll that finds part of a burst may extend it: once for each `BURSTS_PER_EXTENSION` complete bursts, saved up to `EXTENSIONS`. The bound is for
/// guests whose bursts vary: they would wait for another poll each time.
const BURSTS_PER_EXTENSION: u8 = 4;
const EXTENSIONS: u8 = 4;
/// Sleeps over which the maximum of outstanding requests is taken: between this number and twice as many.
const WINDOW: u8 = 64;

/// The burst that is expected.
#[derive(Debug)]
pub(super) struct Bursts {
    /// The most requests outstanding in this window and in the one before, and sleeps in this one.
    most: u32,
    most_before: u32,
    sleeps: u8,
    expected: u32,
    /// Requests of it taken so far, and taken at the last sleep.
    taken: u32,
    taken_before: u32,
    empty_polls: u8,
    since: Time,
    /// Complete bursts since the last one that stopped short.
    complete: u8,
    /// How long bursts take.
    takes: Duration,
    /// Extensions that are left, counted in complete bursts.
    extensions: u8,
}

/// What became of the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Burst {
    /// All of it was taken, and the next one is expected.
    Complete,
    /// The remaining requests are still expected.
    InProgress,
    /// The guest has put in less and stopped.
    StoppedShort,
    /// The guest has put in nothing.
    Absent,
}

impl Bursts {
    pub(super) const fn new() -> Self {
        Self {
            most: 0,
            most_before: 0,
            sleeps: 0,
            expected: 0,
            taken: 0,
            taken_before: 0,
            empty_polls: 0,
            since: Time(0),
            complete: 0,
            takes: Duration::ZERO,
            extensions: EXTENSIONS * BURSTS_PER_EXTENSION,
        }
    }

    /// `count` requests were taken from the ring.
    #[inline]
    pub(super) fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
    }

    /// Before each sleep: how many requests will come, with `in_flight` in flight and `unread` completions in the ring.
    pub(super) fn forecast(&mut self, in_flight: u32, unread: u32) -> u32 {
        self.sleeps += 1;
        if self.sleeps >= WINDOW {
            (self.sleeps, self.most_before, self.most) = (0, self.most, 0);
        }
        let outstanding = in_flight.saturating_add(unread);
        self.most = self.most.max(outstanding);
        match self.most.max(self.most_before).saturating_sub(outstanding) {
            0 => unread,
            more => more,
        }
    }

    /// Before the device sleeps, after all waiting requests were taken: what became of the burst. `next` requests are expected in the next one.
    /// `late`: the time of a poll has come.
    pub(super) fn before_sleep(&mut self, next: u32, late: bool, now: Time) -> Burst {
        let burst = self.judge(late, now);
        match burst {
            Burst::Complete => {
                let took = now.since(self.since).min(LONGEST_WAIT);
                self.takes = (3 * self.takes + took) / 4;
                self.complete = self.complete.saturating_add(1);
                self.extensions = (self.extensions + 1).min(EXTENSIONS * BURSTS_PER_EXTENSION);
                self.begin(next, now);
            }
            Burst::InProgress => {}
            Burst::StoppedShort => {
                self.complete = 0;
                self.begin(next, now);
            }
            Burst::Absent => self.begin(0, now),
        }
        self.taken_before = self.taken;
        burst
    }

    /// A burst of `expected` requests begins.
    pub(super) fn begin(&mut self, expected: u32, now: Time) {
        (self.expected, self.taken, self.taken_before) = (expected, 0, 0);
        (self.empty_polls, self.since) = (0, now);
    }

    fn judge(&mut self, late: bool, now: Time) -> Burst {
        let new = self.taken - self.taken_before;
        if self.taken >= self.expected {
            Burst::Complete
        } else if !late {
            self.empty_polls = 0;
            Burst::InProgress
        } else if new >= MIN_PROGRESS && self.extensions >= BURSTS_PER_EXTENSION {
            self.extensions -= BURSTS_PER_EXTENSION;
            self.empty_polls = 0;
            self.takes = self.takes.max(now.since(self.since)).min(LONGEST_WAIT);
            Burst::InProgress
        } else if self.taken > 0 {
            Burst::StoppedShort
        } else if self.empty_polls < MAX_EMPTY_POLLS {
            self.empty_polls += 1;
            Burst::InProgress
        } else {
            Burst::Absent
        }
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
        (self.takes + self.takes / 2).clamp(POLL_IDLE, LONGEST_WAIT)
    }
}
