//! For how many requests the guest need not notify: a doorbell leaves the guest, which costs far more than to put a request in.
//!
//! A guest that keeps many requests going puts a new one in for each that was completed: the last of them is worth a
//! notification, not each. While many are in flight, their completions make the device look anyhow, and half as many new ones
//! may come until then.
//!
//! If it stops short of what was expected, the device looks after a short time, or when the completion of another request makes
//! it look. Where that was late for a request that takes less time than it waited, the device asks for each request for a while:
//! a guest that waits for a fast request beside slow ones shall not wait for those each time. Where all take as long as that, it
//! does not: to be started together with others is worth more than to be started a little earlier.

use std::time::Duration;

use crate::Time;

/// From so many requests on that are in flight or expected, the guest may leave out notifications.
pub(crate) const FROM: u32 = 8;

/// How long requests may wait that were put in without a notification, while others are in flight, whose completions make
/// the device look anyhow.
const LATE_BESIDE_OTHERS: Duration = Duration::from_millis(1);

/// How long they may wait while nothing is in flight.
pub(crate) const LATE_ALONE: Duration = Duration::from_micros(100);

/// After the guest has stopped short: for how many sleeps of the device each request is asked for, at least and at most.
/// The number doubles each time, so that who stops short often seldom waits.
const SHORTEST_DISTRUST: u16 = 64;
const LONGEST_DISTRUST: u16 = 4096;

/// What to ask the guest for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Requests that it may put in before the one to notify of.
    pub(crate) ahead: u32,
    /// When to look, if it has not notified by then.
    pub(crate) wait: Duration,
}

/// A request that was found late.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// The longest that it may have waited.
    waited: Duration,
    /// When it was found.
    found: Time,
    /// Its number, once it is taken.
    number: Option<u32>,
}

/// How far a guest is trusted to put in what is expected of it.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    /// Sleeps for which it is not trusted, and for how many it will be next time.
    distrust: u16,
    penalty: u16,
    /// The request that is watched.
    late: Option<Late>,
}

impl Trust {
    pub(crate) const fn new() -> Self {
        Self { distrust: 0, penalty: SHORTEST_DISTRUST, late: None }
    }

    /// What to ask for before the device sleeps, with so many requests in flight and so many expected beside them. `late`: it has
    /// been waiting, and for too long.
    pub(crate) fn before_sleep(&mut self, in_flight: u32, expected: u32, late: bool) -> Patience {
        if self.distrust > 0 {
            self.distrust -= 1;
            return Patience::default();
        }
        if late {
            return Patience::default();
        }
        if in_flight >= FROM {
            return Patience { ahead: in_flight / 2 - 1, wait: LATE_BESIDE_OTHERS };
        }
        if expected < FROM {
            return Patience::default();
        }
        Patience { ahead: expected - expected / 16 - 1, wait: LATE_ALONE }
    }

    /// The device looks and finds so many requests; it has let the guest put in `ahead` before the one to notify of, and `waited`
    /// since then.
    pub(crate) fn look(&mut self, waiting: u32, ahead: u32, waited: Duration, now: Time) {
        if waiting == 0 || ahead == 0 {
            return;
        }
        if waiting > ahead {
            self.complete();
        } else if waited >= LATE_ALONE {
            self.late = Some(Late { waited, found: now, number: None });
        }
    }

    /// The guest has stopped short of what was expected while nothing was in flight, and has waited for it.
    pub(crate) fn stopped_short(&mut self) {
        self.distrust = self.penalty;
        self.penalty = (2 * self.penalty).min(LONGEST_DISTRUST);
    }

    /// The guest has put in all that was expected.
    pub(crate) fn complete(&mut self) {
        self.penalty = (self.penalty / 2).max(SHORTEST_DISTRUST);
    }

    /// A request was taken, and goes by this number until it ends.
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
    fn the_last_of_many_requests_is_notified_of() {
        let mut trust = Trust::new();
        for expected in [8, 32, 100, 256] {
            let Patience { ahead, wait } = trust.before_sleep(0, expected, false);
            assert!(ahead < expected && ahead >= expected - expected / 8 - 2, "{expected}: {ahead}");
            assert_eq!(wait, LATE_ALONE);
        }
        for expected in 0..8 {
            assert_eq!(trust.before_sleep(0, expected, false), Patience::default(), "{expected}");
        }
        // With requests in flight, by their number; with a few, by what may come beside them.
        let beside = Patience { ahead: 9, wait: LATE_BESIDE_OTHERS };
        assert_eq!(trust.before_sleep(20, 12, false), beside);
        assert_eq!(trust.before_sleep(7, 25, false), Patience { ahead: 23, wait: LATE_ALONE });
        assert_eq!(
            trust.before_sleep(0, 32, true),
            Patience::default(),
            "it has waited for too long already"
        );
    }

    /// A request of this number is found after it has waited so long, and takes so long.
    fn found(trust: &mut Trust, waiting: u32, waited: Duration, takes: Duration) {
        let now = Time(1 << 40);
        trust.look(waiting, 29, waited, now);
        trust.taken(5);
        trust.taken(6);
        trust.ended(6, now);
        trust.ended(5, now.after(takes));
    }

    /// For how many sleeps each request is asked for.
    fn asked(trust: &mut Trust) -> u32 {
        (0..).find(|_| trust.before_sleep(0, 32, false) != Patience::default()).unwrap_or(0)
    }

    #[test]
    fn who_stops_short_is_asked_for_each_request_for_longer_and_longer() {
        let mut trust = Trust::new();
        for distrust in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            found(&mut trust, 3, LATE_ALONE, LATE_ALONE / 3);
            assert_eq!(asked(&mut trust), distrust);
        }
        for _ in 0..10 {
            trust.look(30, 29, LATE_ALONE, Time(0));
        }
        found(&mut trust, 29, LATE_ALONE, LATE_ALONE / 3);
        assert_eq!(asked(&mut trust), 64);
    }

    #[test]
    fn who_loses_little_by_stopping_short_is_trusted() {
        let mut trust = Trust::new();
        for (waiting, waited, takes) in [
            (3, LATE_ALONE / 2, Duration::ZERO),
            (0, LATE_ALONE, Duration::ZERO),
            (3, LATE_ALONE, LATE_ALONE),
            (3, 5 * LATE_ALONE, 4 * LATE_ALONE),
        ] {
            found(&mut trust, waiting, waited, takes);
            assert_eq!(asked(&mut trust), 0, "{waiting} waited {waited:?} and take {takes:?}");
        }
    }
}
