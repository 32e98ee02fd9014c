//! Notification suppression: how many requests the guest may put in before it kicks. A kick exits from the guest, which costs far more than
//! putting a request in.
//!
//! A guest that keeps many requests outstanding puts in a new one for each completion. One kick for the last of the new ones is enough.
//! While many are in flight, their completions make the device poll the queue anyhow, so the guest may put in new ones, half as many as are
//! in flight, before it kicks.
//!
//! A guest that puts in fewer requests than expected does not kick. The device finds the requests by a poll: after a short time, or when
//! another request completes. If a request waited for the poll more than twice as long as it then took, the suppression has delayed it too
//! much. The device then backs off: for a number of sleeps it asks for a kick for each request. So a guest that waits for a fast request
//! beside slow ones does not wait for a poll each time. If all requests take long, the device does not back off: a batch saves more than a
//! slightly earlier start.

use std::time::Duration;

use crate::time::Time;

/// Kicks are suppressed only if at least this many requests are in flight, or at least this many are expected.
pub(crate) const MIN_REQUESTS: u32 = 8;

/// Time to the poll for requests without a kick while at least [`MIN_REQUESTS`] are in flight. Their completions usually make the device
/// poll earlier.
const POLL_BUSY: Duration = Duration::from_millis(1);

/// Time to the poll for requests without a kick while fewer than [`MIN_REQUESTS`] are in flight: exactly this for virtio, at least for
/// [`Batches`], where it is one and a half times as long as the guest takes for a batch.
pub(crate) const POLL_IDLE: Duration = Duration::from_micros(100);
const MAX_POLL_IDLE: Duration = POLL_BUSY;

/// Bounds of the back-off after a request was found late, in sleeps of the device. It doubles each time, so that a guest that often puts in
/// fewer requests than expected seldom waits for a poll.
const MIN_BACKOFF: u16 = 64;
const MAX_BACKOFF: u16 = 4096;

/// A trial begins after this many sleeps, less up to 15, that follow quick requests with few expected: less, so that trials begin at different
/// requests of a batch. A device that is faster than its guest is woken for each request, and never sees many outstanding, so it tries to sleep
/// without kicks until a poll.
const BEFORE_TRIAL: u8 = 60;

/// Requests that the first poll of a trial must find, and the time that the poll allows for each. If it finds as many, the next poll must
/// find twice as many in twice the time, up to [`MIN_REQUESTS`]. So a guest with one request at a time hardly waits. Requests come quickly if
/// the first poll would have found them.
const TRIAL: u32 = 2;
const TRIAL_PACE: Duration = Duration::from_micros(20);

/// What a poll that finds part of a batch takes from [`Batches::credit`], which then prevents a back-off; and the maximum of that credit, with
/// which a guest begins whose batches a trial has found.
const EXCUSE: u8 = 4;
const MAX_CREDIT: u8 = 8;

/// Sleeps over which the maximum of outstanding requests is taken: between this number and twice as many.
const WINDOW: u8 = 64;

/// The kicks that are suppressed while the device sleeps. The default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suppressed {
    /// Requests that the guest may put in before the one that it kicks for.
    pub(crate) kicks: u32,
    /// Time to the device's poll, if the guest has not kicked by then.
    pub(crate) poll_after: Duration,
}

/// A request that was found late.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// The longest time that it may have waited.
    waited: Duration,
    /// When it was found.
    found: Time,
    /// Its number, once it is started.
    number: Option<u32>,
}

/// Decides how many kicks of one queue are suppressed.
#[derive(Clone, Debug)]
pub(crate) struct KickSuppression {
    /// Remaining sleeps of the back-off, without suppressed kicks; and the length of the next back-off.
    backoff: u16,
    next_backoff: u16,
    /// The request whose service time is measured.
    late: Option<Late>,
}

impl KickSuppression {
    pub(crate) const fn new() -> Self {
        Self { backoff: 0, next_backoff: MIN_BACKOFF, late: None }
    }

    /// Before the device sleeps, with `in_flight` requests in flight and `expected` more expected: the kicks to suppress.
    /// `kick_each`: suppress none this time, because a poll was due.
    pub(crate) fn before_sleep(&mut self, in_flight: u32, expected: u32, kick_each: bool) -> Suppressed {
        if self.backoff > 0 {
            self.backoff -= 1;
            return Suppressed::default();
        }
        if kick_each {
            return Suppressed::default();
        }
        if in_flight >= MIN_REQUESTS {
            return Suppressed { kicks: in_flight / 2 - 1, poll_after: POLL_BUSY };
        }
        if expected < MIN_REQUESTS {
            return Suppressed::default();
        }
        Suppressed { kicks: expected - 1, poll_after: POLL_IDLE }
    }

    /// Before the queue is served, by a poll or a kick: `waiting` requests wait. The guest was allowed to put in `suppressed` of them
    /// without a kick, and the threshold was set `waited` ago.
    pub(crate) fn polled(&mut self, waiting: u32, suppressed: u32, waited: Duration, now: Time) {
        if waiting == 0 || suppressed == 0 {
            return;
        }
        if waiting > suppressed {
            self.all_came();
        } else if waited >= POLL_IDLE {
            self.late = Some(Late { waited, found: now, number: None });
        }
    }

    /// As [`polled`](Self::polled), with requests in the ring and all kicks suppressed since `waited`.
    pub(crate) fn found_masked(&mut self, waited: Duration, now: Time) {
        if waited < POLL_IDLE {
            self.all_came();
        } else {
            self.polled(1, u32::MAX, waited, now);
        }
    }

    /// The guest put in fewer requests than expected, and they waited for a poll: back off.
    fn stopped_short(&mut self) {
        self.backoff = self.next_backoff;
        self.next_backoff = (2 * self.next_backoff).min(MAX_BACKOFF);
    }

    /// The guest has put in all requests that were expected.
    fn all_came(&mut self) {
        self.next_backoff = (self.next_backoff / 2).max(MIN_BACKOFF);
    }

    /// A request was started, or taken by an adapter that numbers requests before they start (virtio). It has this number until it ends.
    /// The first one after a poll found a request late is measured. If the late request went to a backlog of PVSCSI's or storvsc's, that is
    /// another request.
    #[inline]
    pub(crate) fn started(&mut self, number: u32) {
        if let Some(late) = &mut self.late
            && late.number.is_none()
        {
            late.number = Some(number);
        }
    }

    /// A request has ended.
    #[inline]
    pub(crate) fn ended(&mut self, number: u32, now: Time) {
        let Some(late) = self.late.filter(|late| late.number == Some(number)) else { return };
        self.late = None;
        if late.waited > 2 * now.since(late.found) {
            self.stopped_short();
        }
    }
}

/// Suppression for a guest whose rings show how many requests it has outstanding: in the ring, in flight, or with an unread completion.
///
/// The guest puts in batches of N: the most that were outstanding in the last sleeps. Requests of a batch are counted, so that the guest kicks
/// for the last one. A poll that is due ends a batch.
#[derive(Debug)]
pub(crate) struct Batches {
    /// N of this window of [`WINDOW`] sleeps, and of the one before.
    most: u32,
    before: u32,
    sleeps: u8,
    /// Requests of the current batch that were taken.
    taken: u32,
    /// Requests that were taken since a poll ended a batch; and the last poll has ended one.
    since_end: u32,
    at_end: bool,
    /// Time that the guest takes for a batch.
    takes: Duration,
    /// Complete batches, less [`EXCUSE`] for each poll that found part of one and caused no back-off: it may have come too early. A batch
    /// is complete when the guest kicks for its last request.
    credit: u8,
    /// When requests were taken last; and whether they came quickly after the ones before, if the device has not slept since.
    taken_at: Time,
    quick: bool,
    /// Quick sleeps with nothing in flight and few expected since the last trial.
    few: u8,
    /// Requests that the next poll of a trial must find; and the trial goes on.
    sought: u32,
    goes_on: bool,
    /// Why kicks are suppressed while the device sleeps, or were in the last sleep.
    reason: Reason,
    pub(crate) suppression: KickSuppression,
}

/// Why kicks are suppressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Many requests are in flight.
    InFlight,
    /// Requests of a batch are missing.
    Batch,
    /// The size of batches is to be found out.
    Trial,
}

impl Batches {
    pub(crate) const fn new() -> Self {
        Self {
            most: 0,
            before: 0,
            sleeps: 0,
            taken: 0,
            since_end: 0,
            at_end: false,
            takes: POLL_IDLE,
            credit: MAX_CREDIT,
            taken_at: Time(0),
            quick: false,
            few: 0,
            sought: TRIAL,
            goes_on: false,
            reason: Reason::InFlight,
            suppression: KickSuppression::new(),
        }
    }

    /// `count` requests are taken of `outstanding`.
    #[inline]
    pub(crate) fn taken(&mut self, count: u32, outstanding: u32, now: Time) {
        self.quick = now.since(self.taken_at) <= TRIAL * TRIAL_PACE;
        self.taken_at = now;
        if self.suppression.backoff > 0 && outstanding == count {
            // None of the requests before is outstanding: a batch begins.
            self.taken = 0;
        }
        self.taken = self.taken.saturating_add(count);
        self.since_end = self.since_end.saturating_add(count);
        self.most = self.most.max(outstanding);
    }

    /// As [`KickSuppression::polled`], with `suppressed` kicks, at least 1.
    pub(crate) fn polled(&mut self, waiting: u32, suppressed: u32, waited: Duration, now: Time) {
        match self.reason {
            Reason::Trial => {
                let first = self.sought == TRIAL;
                if waiting >= self.sought {
                    self.goes_on = self.sought < MIN_REQUESTS;
                    if !self.goes_on {
                        self.credit = MAX_CREDIT;
                    }
                    self.sought *= 2;
                    return;
                }
                if waited < self.sought * TRIAL_PACE {
                    // Not the poll, but another event.
                    self.goes_on = !first;
                    return;
                }
                if first {
                    return;
                }
                // Back off for a guest with a few requests at a time: it must seldom wait for a second poll.
                return self.suppression.polled(waiting, suppressed, waited.max(POLL_IDLE), now);
            }
            Reason::Batch if waiting > suppressed => {
                self.takes = (self.takes - self.takes / 8).max(waited.min(MAX_POLL_IDLE));
                self.credit = (self.credit + 1).min(MAX_CREDIT);
            }
            Reason::Batch if waiting > 0 && waited >= POLL_IDLE => {
                self.takes = (2 * self.takes).min(MAX_POLL_IDLE);
                self.at_end = true;
                if self.credit >= EXCUSE {
                    self.credit -= EXCUSE;
                    return;
                }
            }
            _ => {}
        }
        self.suppression.polled(waiting, suppressed, waited, now);
    }

    /// As [`KickSuppression::before_sleep`], after all waiting requests were taken. `due`: the time of a poll has come.
    pub(crate) fn before_sleep(&mut self, in_flight: u32, due: bool) -> Suppressed {
        let size = self.most.max(self.before);
        if std::mem::take(&mut self.at_end) {
            // If the batch was as large as expected, and less than twice as large, its size is that of the batches.
            let batch = std::mem::take(&mut self.since_end);
            if (size..size.saturating_mul(2)).contains(&batch) {
                self.most = batch;
            }
        }
        self.sleeps += 1;
        if self.sleeps == WINDOW {
            (self.sleeps, self.before, self.most) = (0, self.most, 0);
        }
        if due || self.taken >= size || in_flight >= MIN_REQUESTS {
            self.taken = 0;
        }
        let goes_on = std::mem::take(&mut self.goes_on);
        if !goes_on {
            self.sought = TRIAL;
        }
        let quick = std::mem::take(&mut self.quick);
        self.few += u8::from(quick && size < MIN_REQUESTS && in_flight == 0);
        if in_flight < MIN_REQUESTS && (goes_on || self.few >= BEFORE_TRIAL) {
            (self.few, self.reason) = (self.sleeps % 16, Reason::Trial);
            let suppressed = self.suppression.before_sleep(in_flight, u32::MAX, due && !goes_on);
            return Suppressed { poll_after: self.sought * TRIAL_PACE, ..suppressed };
        }
        self.reason = if in_flight >= MIN_REQUESTS { Reason::InFlight } else { Reason::Batch };
        let expected = size.saturating_sub(self.taken.max(in_flight));
        let suppressed = self.suppression.before_sleep(in_flight, expected, due);
        if self.reason == Reason::Batch {
            let poll_after = (3 * self.takes / 2).clamp(POLL_IDLE, MAX_POLL_IDLE);
            return Suppressed { poll_after, ..suppressed };
        }
        suppressed
    }
}

#[cfg(test)]
mod tests;
