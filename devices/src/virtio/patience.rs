//! For how many requests the guest need not notify (VIRTIO 1.2, 2.7.10).
//!
//! A notification leaves the guest, which costs far more than to put a request in. A guest that keeps many requests going
//! puts a new one in for each that was completed: the last of them is worth a notification, not each. How many it keeps
//! going shows in its descriptors: it uses those again that have come back to it.
//!
//! If it stops short of what was expected, the device looks after a short time, and asks for each request for a while. It
//! does the latter, too, when the completion of another request made it look, but not soon: a guest that waits for a fast
//! request beside slow ones shall not wait for those each time.

use std::time::Duration;

/// From so many requests on that are in flight or expected, the guest may leave out notifications.
const FROM: u16 = 8;

/// How long requests may wait that were put in without a notification, while others are in flight, whose completions make
/// the device look anyhow.
const LATE_BESIDE_OTHERS: Duration = Duration::from_millis(1);

/// How long they may wait while nothing is in flight.
const LATE_ALONE: Duration = Duration::from_micros(100);

/// After the guest has stopped short: for how many sleeps of the device each request is asked for, at least and at most.
/// The number doubles each time, so that who stops short often seldom waits.
const SHORTEST_DISTRUST: u16 = 64;
const LONGEST_DISTRUST: u16 = 4096;

/// The average of how many requests the guest keeps going moves by this part of what differs (a shift).
const SMOOTHING: u32 = 3;

/// What to ask the guest for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Patience {
    /// Requests that it may put in before the one to notify of.
    pub(super) ahead: u16,
    /// When to look, if it has not notified by then.
    pub(super) wait: Duration,
}

/// What is known of a queue's guest.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    /// By head: the number of the request that used it last.
    last_use: Box<[u16]>,
    /// Requests that the guest keeps going, times `1 << SMOOTHING`.
    depth: u32,
    /// Sleeps for which it is not trusted, and for how many it will be next time.
    distrust: u16,
    penalty: u16,
}

impl Expectation {
    pub(super) fn new(max_size: u16) -> Self {
        Self {
            last_use: (0..max_size).map(|_| 0).collect(),
            depth: 0,
            distrust: 0,
            penalty: SHORTEST_DISTRUST,
        }
    }

    pub(super) fn reset(&mut self) {
        self.last_use.fill(0);
        (self.depth, self.distrust, self.penalty) = (0, 0, SHORTEST_DISTRUST);
    }

    /// Request `number` (counted by the available ring) came with this head.
    #[inline]
    pub(super) fn request(&mut self, number: u16, head: u16) {
        let Some(last_use) = self.last_use.get_mut(usize::from(head)) else { return };
        let distance = u32::from(number.wrapping_sub(std::mem::replace(last_use, number)));
        // Other descriptors are used now and then, and not for long: what is far away counts as a little more.
        let average = self.depth >> SMOOTHING;
        self.depth = self.depth - average + distance.min(2 * average + 1);
    }

    /// What to ask for before the device sleeps. `late`: it has been waiting, and for too long.
    pub(super) fn before_sleep(&mut self, in_flight: u32, late: bool) -> Patience {
        if self.distrust > 0 {
            self.distrust -= 1;
            return Patience::default();
        }
        if late {
            return Patience::default();
        }
        let in_flight = u16::try_from(in_flight).unwrap_or(u16::MAX);
        if in_flight >= FROM {
            return Patience { ahead: in_flight / 2 - 1, wait: LATE_BESIDE_OTHERS };
        }
        let expected = ((self.depth >> SMOOTHING) as u16).saturating_sub(in_flight);
        if expected < FROM {
            return Patience::default();
        }
        Patience { ahead: expected - expected / 16 - 1, wait: LATE_ALONE }
    }

    /// The guest has put in as many as were expected.
    pub(super) fn kept(&mut self) {
        self.penalty = (self.penalty / 2).max(SHORTEST_DISTRUST);
    }

    /// It has put in fewer in this time: so long these may have waited.
    pub(super) fn stopped_short(&mut self, waited: Duration) {
        if waited < LATE_ALONE {
            return;
        }
        self.distrust = self.penalty;
        self.penalty = (2 * self.penalty).min(LONGEST_DISTRUST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked of a guest that keeps `depth` requests going, each with the descriptor of the one that came back.
    fn settled(depth: u16) -> Expectation {
        let mut expectation = Expectation::new(256);
        for number in 0..2000 {
            expectation.request(number, number % depth);
        }
        expectation
    }

    #[test]
    fn a_guest_that_keeps_many_requests_going_notifies_of_the_last_ones() {
        for depth in [8, 32, 100, 256] {
            let Patience { ahead, wait } = settled(depth).before_sleep(0, false);
            assert!(ahead < depth && ahead >= depth - depth / 8 - 2, "{depth}: {ahead}");
            assert_eq!(wait, LATE_ALONE);
        }
        for depth in 1..8 {
            assert_eq!(settled(depth).before_sleep(0, false), Patience::default(), "{depth}");
        }
        // With requests in flight, by their number; with a few, by what may come beside them.
        assert_eq!(settled(32).before_sleep(20, false), Patience { ahead: 9, wait: LATE_BESIDE_OTHERS });
        assert!(settled(32).before_sleep(7, false).ahead < 25);
        assert_eq!(
            settled(32).before_sleep(0, true),
            Patience::default(),
            "it has waited for too long already"
        );
    }

    #[test]
    fn a_guest_that_was_at_many_and_is_at_one_notifies_of_each() {
        let mut expectation = settled(256);
        for number in 2000..2040 {
            expectation.request(number, 7);
        }
        assert_eq!(expectation.before_sleep(0, false), Patience::default());
    }

    #[test]
    fn who_stops_short_is_asked_for_each_request_for_longer_and_longer() {
        let mut expectation = settled(32);
        let trusted = |expectation: &mut Expectation| {
            (0..).find(|_| expectation.before_sleep(0, false) != Patience::default()).unwrap_or(0)
        };
        for distrust in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            expectation.stopped_short(LATE_ALONE);
            assert_eq!(trusted(&mut expectation), distrust);
        }
        for _ in 0..10 {
            expectation.kept();
        }
        expectation.stopped_short(LATE_ALONE);
        assert_eq!(trusted(&mut expectation), 64);
        expectation.stopped_short(LATE_ALONE / 2);
        assert_eq!(trusted(&mut expectation), 0, "that was soon");
    }

    #[test]
    fn heads_that_are_none_count_for_nothing() {
        let mut expectation = Expectation::new(16);
        for number in 0..100 {
            expectation.request(number, 16 + number);
        }
        assert_eq!(expectation.before_sleep(0, false), Patience::default());
    }
}
