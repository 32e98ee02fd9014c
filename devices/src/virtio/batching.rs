//! Whether the driver notifies once for a batch by itself.
//!
//! Linux's drivers put a batch into the ring and then notify once, if the event index lies within the batch. For such a driver the device need not
//! suppress notifications: an event index at the next request costs the same one exit, and the device neither sets a timer nor polls, so that no
//! request waits for a poll. A driver that notifies for each request would leave the guest each time.
//!
//! The device finds out by a trial: it asks for a notification of the next request and looks how many wait when it comes. A trial follows a poll
//! that found nothing, where notifications are not suppressed anyway, or a number of notifications in a row that found all expected requests. A failed
//! trial doubles that number.

use crate::kick_suppression::{MIN_REQUESTS, Suppressed};

/// Bounds of the number of whole batches before a trial.
const MIN_BEFORE_TRIAL: u16 = 8;
const MAX_BEFORE_TRIAL: u16 = 4096;
/// Notifications in a row for less than a batch after which the driver no longer counts as one that batches.
const MAX_PARTIAL: u8 = 3;

/// What is known of the driver of one queue.
#[derive(Clone, Debug)]
pub(super) struct Batching {
    /// The driver notifies once for a batch.
    batches: bool,
    /// The next notification decides.
    trial: bool,
    /// Requests expected when the device slept; 0: the next notification tells nothing.
    expected: u32,
    /// Whole batches since the last trial, and how many of them are needed for the next.
    whole: u16,
    needed: u16,
    /// Partial batches in a row.
    partial: u8,
}

impl Batching {
    pub(super) const fn new() -> Self {
        Self { batches: false, trial: false, expected: 0, whole: 0, needed: MIN_BEFORE_TRIAL, partial: 0 }
    }

    /// Before the device sleeps with `in_flight` requests in flight and `expected` expected: what is to be suppressed of `suppressed`. `late`: the
    /// requests expected before have not come in time, and nothing is suppressed for that.
    pub(super) fn before_sleep(
        &mut self,
        in_flight: u32,
        expected: u32,
        late: bool,
        suppressed: Suppressed,
    ) -> Suppressed {
        // With many requests in flight, these make the device poll anyhow.
        let decides = in_flight < MIN_REQUESTS && expected >= MIN_REQUESTS && (suppressed.kicks > 0 || late);
        self.expected = if decides { expected } else { 0 };
        self.trial = decides && !self.batches && (late || self.whole >= self.needed);
        if decides && (self.batches || self.trial) { Suppressed::default() } else { suppressed }
    }

    /// Whether [`woken`](Self::woken) is to be called.
    #[inline]
    pub(super) const fn watches(&self) -> bool {
        self.expected > 0
    }

    /// The device was woken, and so many requests wait.
    pub(super) fn woken(&mut self, waiting: u32) {
        if waiting == 0 || self.expected == 0 {
            return;
        }
        let whole = waiting + waiting / 8 >= std::mem::take(&mut self.expected);
        let trial = std::mem::take(&mut self.trial);
        if whole {
            self.partial = 0;
            self.whole = self.whole.saturating_add(1);
            if trial {
                (self.batches, self.needed) = (true, MIN_BEFORE_TRIAL);
            }
            return;
        }
        self.whole = 0;
        if self.batches {
            self.partial += 1;
            self.batches = self.partial < MAX_PARTIAL;
        }
        if trial || !self.batches && self.partial > 0 {
            self.partial = 0;
            self.needed = (2 * self.needed).min(MAX_BEFORE_TRIAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kick_suppression::KickSuppression;

    /// A driver that notifies once for a batch, or for each request. The device serves what waits as soon as it is notified.
    struct Queue {
        suppression: KickSuppression,
        batching: Batching,
        notifications: u32,
    }

    impl Queue {
        fn new() -> Self {
            Self { suppression: KickSuppression::new(), batching: Batching::new(), notifications: 0 }
        }

        /// A batch; the requests that it put in without a notification after the last one.
        fn batch(&mut self, depth: u32, len: u32, once: bool) -> u32 {
            let (mut put, mut waiting) = (0, 0);
            let mut suppressed = self.sleep(depth, false);
            while put < len {
                let step = if once { len } else { 1 };
                (put, waiting) = (put + step, waiting + step);
                if waiting > suppressed.kicks {
                    self.notifications += 1;
                    self.batching.woken(waiting);
                    waiting = 0;
                    suppressed = self.sleep(depth, false);
                }
            }
            waiting
        }

        fn sleep(&mut self, depth: u32, late: bool) -> Suppressed {
            let suppressed = self.suppression.before_sleep(0, depth, late);
            self.batching.before_sleep(0, depth, late, suppressed)
        }
    }

    #[test]
    fn a_driver_that_batches_is_not_polled() {
        let mut queue = Queue::new();
        for _ in 0..=MIN_BEFORE_TRIAL {
            assert_eq!(queue.batch(32, 32, true), 0);
        }
        assert_eq!(queue.notifications, u32::from(MIN_BEFORE_TRIAL) + 1);
        assert_eq!(queue.sleep(32, false), Suppressed::default(), "no suppression, so no poll");
        // A poll that found nothing is a trial by itself.
        let mut queue = Queue::new();
        queue.sleep(32, true);
        queue.batching.woken(30);
        assert_eq!(queue.sleep(32, false), Suppressed::default());
    }

    #[test]
    fn a_driver_that_notifies_for_each_request_is_tried_less_and_less() {
        let mut queue = Queue::new();
        for _ in 0..10_000 {
            // The poll finds the last ones, if any.
            if queue.batch(32, 32, false) > 0 {
                queue.sleep(32, false);
            }
        }
        assert!(!queue.batching.batches);
        assert_eq!(queue.batching.needed, MAX_BEFORE_TRIAL);
        // Two for a batch without trials: one before its last request, one for what is left.
        assert!(queue.notifications < 21_000, "{}", queue.notifications);
    }

    #[test]
    fn a_driver_that_stops_batching_is_seen() {
        let mut queue = Queue::new();
        (0..20).for_each(|_| {
            queue.batch(32, 32, true);
        });
        assert!(queue.batching.batches);
        let before = queue.notifications;
        queue.batch(32, 32, false);
        assert!(!queue.batching.batches);
        assert!(queue.notifications - before <= u32::from(MAX_PARTIAL) + 2);
    }

    #[test]
    fn with_many_in_flight_or_few_expected_nothing_is_decided() {
        let mut batching = Batching::new();
        let many = KickSuppression::new().before_sleep(MIN_REQUESTS, 32, false);
        assert_eq!(batching.before_sleep(MIN_REQUESTS, 32, false, many), many);
        assert!(!batching.watches());
        batching.before_sleep(0, MIN_REQUESTS - 1, true, Suppressed::default());
        assert!(!batching.watches());
        batching.woken(5);
        assert!(!batching.batches);
    }
}
