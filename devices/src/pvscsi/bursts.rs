//! How many requests a guest is about to put in: of as many as it keeps outstanding, those that are not outstanding now.
//!
//! PVSCSI's driver kicks for each request from the threshold on, so a threshold that is too low costs an exit a request, and one that is too high leaves
//! requests waiting. A guest that keeps N requests outstanding puts in N less those that are in flight or whose completions it has not read; with all N
//! to be read it reads them and puts in as many again. It is asked to kick for the last of them. A guest that stops short is noticed by a look of the
//! device after a time that is as long as guests take, within bounds.

use std::time::Duration;

use crate::Time;
use crate::patience::LATE_ALONE;

/// The longest time until the device looks.
const LONGEST_WAIT: Duration = Duration::from_micros(400);
/// A guest that has put in fewer requests than these while the device waited has stopped.
const ON_ITS_WAY: u32 = 4;
/// How often the device looks for a guest that has put in nothing.
const EMPTY_LOOKS: u8 = 2;
/// After so many complete bursts the guest is asked to kick for the last request, not for one shortly before.
const RELIABLE: u8 = 4;

/// How often a guest may be on its way still when the device looks: once for so many complete bursts, and so often at once. A guest whose bursts vary
/// would wait each time.
const BURSTS_PER_EXCUSE: u8 = 4;
const EXCUSES: u8 = 4;
/// Sleeps over which the most that was outstanding is looked for, at least; twice as many at the most.
const WINDOW: u8 = 64;

/// The burst that is expected.
#[derive(Debug)]
pub(super) struct Bursts {
    /// The most requests outstanding in this window and in the one before, and sleeps in this one.
    most: u32,
    most_before: u32,
    sleeps: u8,
    expected: u32,
    /// Of it, taken so far, and when the device looked last.
    taken: u32,
    taken_before: u32,
    empty_looks: u8,
    since: Time,
    /// Complete bursts since the guest last stopped short.
    complete: u8,
    /// How long bursts take.
    takes: Duration,
    /// What is left of the excuses, counted in complete bursts.
    excuses: u8,
}

/// What became of the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Burst {
    /// All of it was taken, and the next one is expected.
    Complete,
    /// The rest is expected.
    OnItsWay,
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
            empty_looks: 0,
            since: Time(0),
            complete: 0,
            takes: Duration::ZERO,
            excuses: EXCUSES * BURSTS_PER_EXCUSE,
        }
    }

    /// So many requests were taken from the ring.
    #[inline]
    pub(super) fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
    }

    /// Before each sleep: what is in flight, and how many completions are in the ring. How many requests will come.
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

    /// Before the device sleeps again, having taken all that waits: what became of the burst. `next` requests will come from here on. `late`: the
    /// device has waited for the guest, and its time has come.
    pub(super) fn before_sleep(&mut self, next: u32, late: bool, now: Time) -> Burst {
        let burst = self.judge(late, now);
        match burst {
            Burst::Complete => {
                let took = now.since(self.since).min(LONGEST_WAIT);
                self.takes = (3 * self.takes + took) / 4;
                self.complete = self.complete.saturating_add(1);
                self.excuses = (self.excuses + 1).min(EXCUSES * BURSTS_PER_EXCUSE);
                self.begin(next, now);
            }
            Burst::OnItsWay => {}
            Burst::StoppedShort => {
                self.complete = 0;
                self.begin(next, now);
            }
            Burst::Absent => self.begin(0, now),
        }
        self.taken_before = self.taken;
        burst
    }

    /// So many requests are expected from here on.
    pub(super) fn begin(&mut self, expected: u32, now: Time) {
        (self.expected, self.taken, self.taken_before) = (expected, 0, 0);
        (self.empty_looks, self.since) = (0, now);
    }

    fn judge(&mut self, late: bool, now: Time) -> Burst {
        let new = self.taken - self.taken_before;
        if self.taken >= self.expected {
            Burst::Complete
        } else if !late {
            self.empty_looks = 0;
            Burst::OnItsWay
        } else if new >= ON_ITS_WAY && self.excuses >= BURSTS_PER_EXCUSE {
            self.excuses -= BURSTS_PER_EXCUSE;
            self.empty_looks = 0;
            self.takes = self.takes.max(now.since(self.since)).min(LONGEST_WAIT);
            Burst::OnItsWay
        } else if self.taken > 0 {
            Burst::StoppedShort
        } else if self.empty_looks < EMPTY_LOOKS {
            self.empty_looks += 1;
            Burst::OnItsWay
        } else {
            Burst::Absent
        }
    }

    /// Requests still to come.
    pub(super) const fn missing(&self) -> u32 {
        self.expected.saturating_sub(self.taken)
    }

    /// Whether the guest usually puts in all that is expected.
    pub(super) const fn reliable(&self) -> bool {
        self.complete >= RELIABLE
    }

    /// After what time to look.
    pub(super) fn wait(&self) -> Duration {
        (self.takes + self.takes / 2).clamp(LATE_ALONE, LONGEST_WAIT)
    }
}
