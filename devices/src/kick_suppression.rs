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

/// Time to the poll for requests without a kick while fewer than [`MIN_REQUESTS`] are in flight.
pub(crate) const POLL_IDLE: Duration = Duration::from_micros(100);

/// The longest time to the poll for the rest of a batch.
const POLL_BATCH: Duration = Duration::from_micros(400);

/// Bounds of the back-off after a request was found late, in sleeps of the device. It doubles each time, so that a guest that often puts in
/// fewer requests than expected seldom waits for a poll.
const MIN_BACKOFF: u16 = 64;
const MAX_BACKOFF: u16 = 4096;

/// Requests that a guest with unknown batches is expected to put in, and the number of batches after which a larger one is expected.
const TRIAL: u32 = 64;

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
    /// Its number, once it is taken.
    number: Option<u32>,
}

/// Decides how many kicks of one queue are suppressed.
#[derive(Clone, Debug)]
pub(crate) struct KickSuppression {
    /// Remaining sleeps of the back-off, without suppressed kicks; and the length of the next back-off.
    backoff: u16,
    next_backoff: u16,
    /// The shortest back-off.
    min_backoff: u16,
    /// The request whose service time is measured.
    late: Option<Late>,
}

impl KickSuppression {
    pub(crate) const fn new() -> Self {
        Self { backoff: 0, next_backoff: MIN_BACKOFF, min_backoff: MIN_BACKOFF, late: None }
    }

    /// Before the device sleeps, with `in_flight` requests in flight and `expected` more expected: the kicks to suppress.
    /// `kick_each`: suppress none this time, because a poll was due and the caller blames the suppression.
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
        Suppressed { kicks: expected - expected / 16 - 1, poll_after: POLL_IDLE }
    }

    /// Before the queue is served, by a poll or a kick: `waiting` requests wait. The guest was allowed to put in `suppressed` of them
    /// without a kick, and the threshold was set `waited` ago.
    pub(crate) fn polled(&mut self, waiting: u32, suppressed: u32, waited: Duration, now: Time) {
        if waiting == 0 || suppressed == 0 {
            return;
        }
        if waiting > suppressed {
            self.complete();
        } else if waited >= POLL_IDLE {
            self.late = Some(Late { waited, found: now, number: None });
        }
    }

    /// As [`polled`](Self::polled), with requests in the ring and all kicks suppressed since `waited`.
    pub(crate) fn found_masked(&mut self, waited: Duration, now: Time) {
        if waited < POLL_IDLE {
            self.complete();
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
    fn complete(&mut self) {
        self.next_backoff = (self.next_backoff / 2).max(self.min_backoff);
    }

    /// A request was taken from the queue and has this number until it ends.
    #[inline]
    pub(crate) fn taken(&mut self, number: u32) {
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

/// What is expected of a guest whose ring does not show how many requests it keeps outstanding: batches. The guest puts a batch in, and
/// then waits for completions.
///
/// The size of a batch is learned from the guest's stops. A poll that finds fewer requests than expected is a stop, and the requests since
/// the last stop are a batch. Without a stop the size may be too small: a device that is faster than its guest is woken for each request,
/// and a batch may consist of several smaller ones. So after [`TRIAL`] batches without a stop the device expects more. If a stop shows that
/// the guest puts in few, the device tries again after the back-off.
#[derive(Debug)]
pub(crate) struct Batches {
    /// Requests of a batch.
    size: u32,
    /// Requests that were taken: of the current batch, and since the guest last stopped.
    taken: u32,
    run: u32,
    /// When the current batch began, and the duration of a batch.
    since: Time,
    took: Duration,
    /// Requests that were missing from the current batch when kicks were suppressed; 0: none is.
    expected: u32,
    /// Kicks are suppressed because many requests are in flight.
    pub(crate) busy: bool,
    pub(crate) suppression: KickSuppression,
}

impl Batches {
    pub(crate) const fn new() -> Self {
        // A wrong size of a batch is corrected at the first stop, so the first back-offs are short.
        let suppression = KickSuppression { min_backoff: 1, next_backoff: 1, ..KickSuppression::new() };
        Self {
            size: 0,
            taken: 0,
            run: 0,
            since: Time(0),
            took: Duration::ZERO,
            expected: 0,
            busy: false,
            suppression,
        }
    }

    /// `count` requests were taken.
    #[inline]
    pub(crate) const fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
        self.run = self.run.saturating_add(count);
    }

    /// Whether a request of the current batch was taken.
    pub(crate) const fn begun(&self) -> bool {
        self.taken > 0
    }

    /// Requests of the current batch that were not taken yet.
    pub(crate) const fn missing(&self) -> u32 {
        self.size.saturating_sub(self.taken)
    }

    /// As [`KickSuppression::polled`], which judges only requests beside many others. [`before_sleep`](Self::before_sleep) judges batches.
    pub(crate) fn polled(&mut self, waiting: u32, suppressed: u32, waited: Duration, now: Time) {
        if self.busy {
            self.suppression.polled(waiting, suppressed, waited, now);
        }
    }

    /// As [`KickSuppression::before_sleep`], after all waiting requests were taken. `late`: a poll was due.
    pub(crate) fn before_sleep(&mut self, in_flight: u32, late: bool, now: Time) -> Suppressed {
        let expected = std::mem::take(&mut self.expected);
        self.busy = in_flight >= MIN_REQUESTS;
        if self.busy {
            self.begin(now);
            return self.suppression.before_sleep(in_flight, 0, late);
        }
        let missing = self.missing();
        let late = late && expected > 0;
        if late && self.taken == 0 {
            // The guest has not begun the batch: it kicks for the first request.
            return Suppressed::default();
        }
        if late || missing == 0 {
            if self.taken >= MIN_REQUESTS {
                // Also if the poll may have come too early.
                let took = now.since(self.since).min(POLL_BATCH);
                self.took = took.max((3 * self.took + took) / 4);
            }
            let found = expected.saturating_sub(missing);
            if missing > self.size / 8 || late && found < MIN_REQUESTS {
                self.suppression.stopped_short();
                // After more batches, the guest has stopped for another reason.
                if self.run / 8 <= self.size {
                    self.size = self.run;
                }
                self.run = 0;
            } else if expected > 0 && self.run / 2 >= self.size {
                // It is not the first one since the guest stopped.
                self.suppression.complete();
            }
            self.begin(now);
        }
        // After so many batches without a stop, these may be parts of larger ones.
        let tries = (1..MIN_REQUESTS).contains(&self.size) || self.run / TRIAL >= self.size.max(1);
        if tries && self.taken == 0 && self.suppression.backoff == 0 {
            let larger = TRIAL.max(2 * self.size);
            if self.size >= MIN_REQUESTS {
                self.took = (self.took * larger / self.size).min(POLL_BATCH);
            }
            (self.size, self.run) = (larger, 0);
        }
        let expected = self.missing().saturating_sub(in_flight);
        // The guest kicks for the last request: the size of a batch is exact.
        let mut kicks = 0;
        if self.suppression.before_sleep(in_flight, expected, false).kicks > 0 {
            (kicks, self.expected) = (expected - 1, expected);
        }
        Suppressed { kicks, poll_after: (3 * self.took / 2).clamp(POLL_IDLE, POLL_BATCH) }
    }

    const fn begin(&mut self, now: Time) {
        (self.taken, self.since) = (0, now);
    }
}

#[cfg(test)]
mod tests;
