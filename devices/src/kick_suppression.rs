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

/// Bounds of the back-off after a request was found late, in sleeps of the device. It doubles each time, so that a guest that often puts in
/// fewer requests than expected seldom waits for a poll.
const MIN_BACKOFF: u16 = 64;
const MAX_BACKOFF: u16 = 4096;

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
    /// The request whose service time is measured.
    late: Option<Late>,
}

impl KickSuppression {
    pub(crate) const fn new() -> Self {
        Self { backoff: 0, next_backoff: MIN_BACKOFF, late: None }
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

    /// Whether the guest is asked for a kick for each request, because requests were found late.
    pub(crate) const fn backs_off(&self) -> bool {
        self.backoff > 0
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

    /// The guest put in fewer requests than expected, and they waited for a poll: back off.
    pub(crate) fn stopped_short(&mut self) {
        self.backoff = self.next_backoff;
        self.next_backoff = (2 * self.next_backoff).min(MAX_BACKOFF);
    }

    /// The guest has put in all requests that were expected.
    pub(crate) fn complete(&mut self) {
        self.next_backoff = (self.next_backoff / 2).max(MIN_BACKOFF);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_of_many_requests_is_kicked_for() {
        let mut suppression = KickSuppression::new();
        for expected in [8, 32, 100, 256] {
            let Suppressed { kicks, poll_after } = suppression.before_sleep(0, expected, false);
            assert!(kicks < expected && kicks >= expected - expected / 8 - 2, "{expected}: {kicks}");
            assert_eq!(poll_after, POLL_IDLE);
        }
        for expected in 0..8 {
            assert_eq!(suppression.before_sleep(0, expected, false), Suppressed::default(), "{expected}");
        }
        // With requests in flight, by their number; with a few, by what may come beside them.
        let beside = Suppressed { kicks: 9, poll_after: POLL_BUSY };
        assert_eq!(suppression.before_sleep(20, 12, false), beside);
        assert_eq!(suppression.before_sleep(7, 25, false), Suppressed { kicks: 23, poll_after: POLL_IDLE });
        assert_eq!(
            suppression.before_sleep(0, 32, true),
            Suppressed::default(),
            "the time of the poll has come"
        );
    }

    /// A request of this number is found after it has waited so long, and takes so long.
    fn found(suppression: &mut KickSuppression, waiting: u32, waited: Duration, takes: Duration) {
        let now = Time(1 << 40);
        suppression.polled(waiting, 29, waited, now);
        suppression.taken(5);
        suppression.taken(6);
        suppression.ended(6, now);
        suppression.ended(5, now.after(takes));
    }

    /// Sleeps without suppression.
    fn backoff(suppression: &mut KickSuppression) -> u32 {
        (0..).find(|_| suppression.before_sleep(0, 32, false) != Suppressed::default()).unwrap_or(0)
    }

    #[test]
    fn each_late_request_doubles_the_backoff() {
        let mut suppression = KickSuppression::new();
        for expected in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            found(&mut suppression, 3, POLL_IDLE, POLL_IDLE / 3);
            assert_eq!(backoff(&mut suppression), expected);
        }
        for _ in 0..10 {
            suppression.polled(30, 29, POLL_IDLE, Time(0));
        }
        found(&mut suppression, 29, POLL_IDLE, POLL_IDLE / 3);
        assert_eq!(backoff(&mut suppression), 64);
    }

    #[test]
    fn a_wait_shorter_than_the_request_causes_no_backoff() {
        let mut suppression = KickSuppression::new();
        for (waiting, waited, takes) in [
            (3, POLL_IDLE / 2, Duration::ZERO),
            (0, POLL_IDLE, Duration::ZERO),
            (3, POLL_IDLE, POLL_IDLE),
            (3, 5 * POLL_IDLE, 4 * POLL_IDLE),
        ] {
            found(&mut suppression, waiting, waited, takes);
            assert_eq!(backoff(&mut suppression), 0, "{waiting} waited {waited:?} and take {takes:?}");
        }
    }
}
