//! Decides when doorbells are served on the virtual CPU's thread: while the guest has one request at a time.
//!
//! Such a guest waits for its request anyway, and two thread switches are saved. A guest with more requests must not be blocked: it puts in
//! further requests while the I/O thread serves the first ones. On the virtual CPU's thread every request completes before the guest can
//! put in the next, so the two kinds of guest cannot be told apart there. So one doorbell in [`PROBE_EVERY`] goes to the I/O thread as a
//! probe: a guest with more requests rings again before the probe is served.
//!
//! An *attempt* is the time from the start of this mode until [`SUCCESS`] probes have found a single request each.

use std::time::Duration;

/// An attempt begins after this many wake-ups of the I/O thread in a row with a single request each, if each request completed at once.
const FIRST_TRY: u32 = 64;
/// Each attempt that fails makes the number of wake-ups before the next one four times as large, up to this limit.
const LAST_TRY: u32 = 16_384;
/// One doorbell in this many is a probe. A probe finds nothing if it is the last request of a batch, because no doorbell follows. The
/// number is prime, so that probes fall on different requests of the guest's batches.
const PROBE_EVERY: u32 = 61;
/// Number of probes that end an attempt with success.
const SUCCESS: u32 = 8;
/// After [`stop`](Rule::stop), the device's counters are read again from the sleep with this number on. Reading them before each sleep
/// would slow down guests with many requests.
const UNSEEN: u32 = 8;
/// The longest time that a request may block a virtual CPU.
pub(super) const LONGEST: Duration = Duration::from_micros(100);

/// The device's counters since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) requests: u64,
    pub(super) completions: u64,
}

/// Whether doorbells are served on the virtual CPU's thread.
#[derive(Debug)]
pub(super) struct Rule {
    on_vcpu: bool,
    /// Wake-ups of the I/O thread in a row with a single request each.
    lone: u32,
    /// Value of `lone` at which the next attempt begins.
    needed: u32,
    /// Doorbells served on the virtual CPU's thread since the last probe.
    served: u32,
    /// The I/O thread has not served the last probe yet.
    probing: bool,
    /// Probes that found a single request since the attempt began.
    probes: u32,
    /// The device's counters when they were read last.
    before: Work,
    /// Number of sleeps of the I/O thread until the counters are read again; 0: they are read before each sleep.
    unseen: u32,
    /// Sleeps were skipped since `before`, so the next difference is not that of one wake-up.
    stale: bool,
}

impl Rule {
    pub(super) const fn new() -> Self {
        Self {
            on_vcpu: false,
            lone: 0,
            needed: FIRST_TRY,
            served: 0,
            probing: false,
            probes: 0,
            before: Work { requests: 0, completions: 0 },
            unseen: 0,
            stale: false,
        }
    }

    /// Whether doorbells are served on the virtual CPU's thread.
    pub(super) const fn on_vcpu(&self) -> bool {
        self.on_vcpu
    }

    /// Call this before each sleep of the I/O thread. True: read the device's counters, and call
    /// [`io_thread_sleeps`](Self::io_thread_sleeps) with them.
    #[inline]
    pub(super) fn samples_this_sleep(&mut self) -> bool {
        self.unseen = self.unseen.saturating_sub(1);
        self.unseen == 0
    }

    /// The I/O thread is about to sleep, and `work` has the device's counters. Called only before a sleep for which
    /// [`samples_this_sleep`](Self::samples_this_sleep) has returned true.
    pub(super) fn io_thread_sleeps(&mut self, work: Work) {
        let Work { requests, completions } = self.since(work);
        if std::mem::take(&mut self.stale) {
            return;
        }
        if requests == 0 && completions == 0 {
            // The wake-up was for a timer or a register access.
            return;
        }
        if (requests, completions) != (1, 1) {
            return self.stop();
        }
        if self.on_vcpu {
            if std::mem::take(&mut self.probing) {
                self.probes = self.probes.saturating_add(1);
                if self.probes == SUCCESS {
                    self.needed = FIRST_TRY;
                }
            }
            return;
        }
        self.lone += 1;
        if self.lone >= self.needed {
            (self.on_vcpu, self.served, self.probing, self.probes) = (true, 0, false, 0);
        }
    }

    /// The guest rang a doorbell. True: the virtual CPU's thread serves it. False: the I/O thread serves it.
    pub(super) fn admits(&mut self) -> bool {
        if !self.on_vcpu {
            return false;
        }
        if self.probing {
            // The guest has put in another request before the first was served.
            self.stop();
            return false;
        }
        self.served += 1;
        if self.served >= PROBE_EVERY {
            (self.served, self.probing) = (0, true);
            return false;
        }
        true
    }

    /// A doorbell was served on the virtual CPU's thread, which took `took`. `work` has the device's counters after that.
    pub(super) fn served(&mut self, work: Work, took: Duration) {
        let Work { requests, completions } = self.since(work);
        // No request is no reason to stop: the guest rang without one, or the I/O thread had taken the request already.
        if requests > 1 || completions != requests || took > LONGEST {
            self.stop();
        }
    }

    /// From now on the I/O thread serves all doorbells. An attempt that has not succeeded yet fails.
    pub(super) fn stop(&mut self) {
        if std::mem::take(&mut self.on_vcpu) && self.probes < SUCCESS {
            self.needed = (self.needed * 4).min(LAST_TRY);
        }
        (self.lone, self.unseen, self.stale) = (0, UNSEEN, true);
    }

    const fn since(&mut self, work: Work) -> Work {
        let before = std::mem::replace(&mut self.before, work);
        Work {
            requests: work.requests.wrapping_sub(before.requests),
            completions: work.completions.wrapping_sub(before.completions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(5);

    /// A rule, and the counters of its device.
    struct Guest {
        rule: Rule,
        work: Work,
    }

    impl Guest {
        fn new() -> Self {
            Self { rule: Rule::new(), work: Work::default() }
        }

        fn done(&mut self, requests: u64, completions: u64) -> Work {
            self.work.requests += requests;
            self.work.completions += completions;
            self.work
        }

        /// The I/O thread serves this many requests.
        fn io_thread(&mut self, requests: u64) {
            let work = self.done(requests, requests);
            if self.rule.samples_this_sleep() {
                self.rule.io_thread_sleeps(work);
            }
        }

        /// One request at a time. Returns how many were served on the virtual CPU's thread.
        fn alone(&mut self, requests: u32) -> u32 {
            let mut served = 0;
            for _ in 0..requests {
                if self.rule.admits() {
                    let work = self.done(1, 1);
                    self.rule.served(work, SOON);
                    served += 1;
                } else {
                    self.io_thread(1);
                }
            }
            served
        }

        /// Two requests at a time. If the I/O thread serves the first, the second comes before that.
        fn in_pairs(&mut self, pairs: u32) -> u32 {
            let mut served = 0;
            for _ in 0..pairs {
                let mut left = 0;
                for _ in 0..2 {
                    if self.rule.admits() {
                        let work = self.done(1, 1);
                        self.rule.served(work, SOON);
                        served += 1;
                    } else {
                        left += 1;
                    }
                }
                if left > 0 {
                    self.io_thread(left);
                }
            }
            served
        }
    }

    #[test]
    fn a_guest_with_one_request_at_a_time_is_served_on_its_own_thread() {
        let mut guest = Guest::new();
        assert_eq!(guest.alone(FIRST_TRY), 0);
        let served = guest.alone(64 * PROBE_EVERY);
        assert_eq!(served, 64 * (PROBE_EVERY - 1), "all but the probes");
    }

    #[test]
    fn a_guest_with_more_requests_is_left_to_the_io_thread() {
        let mut guest = Guest::new();
        assert_eq!(guest.in_pairs(10_000), 0);
        // The next probe detects that the guest now has many requests.
        guest.alone(2 * FIRST_TRY);
        assert!(guest.rule.on_vcpu());
        let served = guest.in_pairs(10_000);
        assert!(served <= 2 * PROBE_EVERY, "{served} of 20,000");
        assert!(!guest.rule.on_vcpu());
        // A guest that changes often is served less and less.
        let before: u32 = (0..100).map(|_| guest.in_pairs(100) + guest.alone(2 * FIRST_TRY)).sum();
        assert!(before <= 16 * FIRST_TRY, "{before}");
        // A guest that stays with one request is served again.
        assert!(guest.alone(10 * LAST_TRY) > 8 * LAST_TRY);
        assert_eq!(guest.rule.needed, FIRST_TRY);
    }

    #[test]
    fn what_takes_long_is_left_to_the_io_thread() {
        for (requests, completions, took) in [(1, 0, SOON), (2, 2, SOON), (1, 1, 2 * LONGEST)] {
            let mut guest = Guest::new();
            guest.alone(FIRST_TRY);
            assert!(guest.rule.admits());
            let work = guest.done(requests, completions);
            guest.rule.served(work, took);
            assert!(!guest.rule.on_vcpu(), "{requests} requests, {completions} completions, {took:?}");
            assert_eq!(guest.rule.needed, 4 * FIRST_TRY);
            assert!(!guest.rule.admits());
        }
    }

    #[test]
    fn a_doorbell_without_a_request_changes_nothing() {
        let mut guest = Guest::new();
        guest.alone(FIRST_TRY);
        for _ in 0..PROBE_EVERY - 1 {
            assert!(guest.rule.admits());
            let work = guest.done(0, 0);
            guest.rule.served(work, SOON);
        }
        assert!(guest.rule.on_vcpu() && !guest.rule.admits(), "a probe");
        guest.io_thread(0);
        assert!(guest.rule.on_vcpu());
    }
}
