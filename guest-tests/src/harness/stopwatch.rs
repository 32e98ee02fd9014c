//! Measures the ticks in the device and asleep, without those of the time stamps.
//!
//! A time stamp takes about 25 ticks, as much as a register access. A call of the device has two of them; the first also gives the device
//! its time. An empty call is measured once, when the machine is made. Its ticks are subtracted for each call, and count for no component.

use std::hint::black_box;

use facts::tsc::{ticks, tsc_hz};
use paradisk_devices::Time;

/// One of this many accesses to registers is timed, and represents all, because two time stamps cost several times as much as the
/// access. A prime, so that each access of a request is timed equally often.
const ACCESSES_TIMED: u32 = 61;

/// Number of calls in a round of the calibration, and number of rounds. The shortest round counts, because others were interrupted.
const CALLS: u64 = 256;
const ROUNDS: u32 = 64;

/// Wall-clock ticks on the harness's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Inside the device.
    pub device: u64,
    /// Inside system calls that sleep.
    pub sleep: u64,
    /// In the measurement itself.
    pub overhead: u64,
}

impl Meter {
    /// Ticks since `earlier`.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        // The subtracted ticks are an average, so the difference may be slightly negative.
        Self {
            device: self.device.saturating_sub(earlier.device),
            sleep: self.sleep.saturating_sub(earlier.sleep),
            overhead: self.overhead.saturating_sub(earlier.overhead),
        }
    }
}

/// The cost of the measurement, in ticks for [`CALLS`] calls.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Empty calls, between their two time stamps.
    inside: u64,
    /// Empty calls, with their time stamps.
    call: u64,
    /// Time stamps. The counter may advance in steps of about this size.
    stamp: u64,
}

impl Cost {
    const NONE: Self = Self { inside: 0, call: 0, stamp: 0 };

    fn measured() -> Self {
        let mut cost = Self { inside: u64::MAX, call: u64::MAX, stamp: u64::MAX };
        let mut watch = Stopwatch::with(Self::NONE);
        for _ in 0..ROUNDS {
            let (start, before) = (ticks(), watch.spent);
            for _ in 0..CALLS {
                watch.call(black_box);
            }
            let end = ticks();
            cost.inside = cost.inside.min(watch.spent - before);
            cost.call = cost.call.min(end - start);
            let mut last = end;
            for _ in 0..CALLS {
                last = ticks();
            }
            cost.stamp = cost.stamp.min(last - end);
        }
        cost
    }
}

/// Measures calls that are made through it.
pub(super) struct Stopwatch {
    origin: u64,
    /// Nanoseconds in a tick, with 32 fraction bits.
    scale: u64,
    cost: Cost,
    calls: u64,
    /// Ticks between the time stamps of each call.
    spent: u64,
    sleeps: u64,
    slept: u64,
    /// Number of time stamps outside of calls and sleeps.
    stamps: u64,
    /// The time of the last call.
    last: Time,
    /// Accesses to registers until the next timed one.
    untimed: u32,
    /// Number of timed accesses, and the ticks between their time stamps.
    access_samples: u64,
    access_spent: u64,
}

impl Stopwatch {
    /// A calibrated stopwatch. Takes about a millisecond.
    pub(super) fn new() -> Self {
        Self::with(Cost::measured())
    }

    fn with(cost: Cost) -> Self {
        Self {
            origin: ticks(),
            scale: ((1_000_000_000u128 << 32) / u128::from(tsc_hz())) as u64,
            cost,
            calls: 0,
            spent: 0,
            sleeps: 0,
            slept: 0,
            stamps: 0,
            last: Time(0),
            untimed: ACCESSES_TIMED,
            access_samples: 0,
            access_spent: 0,
        }
    }

    /// Ticks so far.
    pub(super) const fn meter(&self) -> Meter {
        let Cost { inside, call, stamp } = self.cost;
        let accesses = self.access_spent.saturating_sub(self.access_samples * stamp / CALLS);
        let called = self.spent.saturating_sub(self.calls * inside / CALLS);
        let pairs = self.access_samples + self.sleeps;
        Meter {
            device: called + ACCESSES_TIMED as u64 * accesses,
            sleep: self.slept.saturating_sub(self.sleeps * stamp / CALLS),
            overhead: (self.calls * call + (2 * pairs + self.stamps) * stamp) / CALLS,
        }
    }

    fn time(&self, ticks: u64) -> Time {
        Time(((u128::from(ticks.wrapping_sub(self.origin)) * u128::from(self.scale)) >> 32) as u64)
    }

    /// The current time, outside of measurements.
    pub(super) fn peek(&self) -> Time {
        self.time(ticks())
    }

    /// Now.
    pub(super) fn now(&mut self) -> Time {
        self.stamps += 1;
        self.last = self.peek();
        self.last
    }

    /// Measure a call of the device.
    #[inline]
    pub(super) fn call<R>(&mut self, call: impl FnOnce(Time) -> R) -> R {
        let before = ticks();
        let now = self.time(before);
        self.last = now;
        let result = call(now);
        self.spent += ticks() - before;
        self.calls += 1;
        result
    }

    /// Measure an access to registers that takes little time. One of [`ACCESSES_TIMED`] is timed for all of them. Its time is that of the last
    /// call of the device: a time stamp would cost as much as the access.
    #[inline(always)]
    pub(super) fn access<R>(&mut self, access: impl FnOnce(Time) -> R) -> R {
        let now = self.last;
        self.untimed -= 1;
        if self.untimed > 0 {
            return access(now);
        }
        self.untimed = ACCESSES_TIMED;
        let before = ticks();
        let result = access(now);
        self.access_spent += ticks() - before;
        self.access_samples += 1;
        result
    }

    /// Measure a system call that sleeps.
    pub(super) fn sleep(&mut self, sleep: impl FnOnce()) {
        let before = ticks();
        sleep();
        self.slept += ticks() - before;
        self.sleeps += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopwatch with the cost of a processor: 25 ticks inside of an empty call, 60 with its time stamps, 20 for a time stamp.
    fn watch() -> Stopwatch {
        Stopwatch::with(Cost { inside: 25 * CALLS, call: 60 * CALLS, stamp: 20 * CALLS })
    }

    fn parts(watch: &Stopwatch) -> [u64; 3] {
        let Meter { device, sleep, overhead } = watch.meter();
        [device, sleep, overhead]
    }

    #[test]
    fn the_cost_of_the_measurement_is_subtracted() {
        let mut calls = watch();
        (calls.calls, calls.spent) = (1000, 1000 * 25);
        assert_eq!(parts(&calls), [0, 0, 1000 * 60], "empty calls");
        // Interrupted calls are longer, others a bit shorter than the calibration.
        calls.spent += 7_000;
        assert_eq!(parts(&calls), [7_000, 0, 1000 * 60]);
        calls.spent = 1000 * 24;
        assert_eq!(parts(&calls), [0, 0, 1000 * 60]);

        let mut accesses = watch();
        (accesses.access_samples, accesses.access_spent) = (100, 100 * (20 + 3));
        assert_eq!(parts(&accesses), [u64::from(ACCESSES_TIMED) * 300, 0, 2 * 100 * 20]);

        let mut sleeps = watch();
        (sleeps.sleeps, sleeps.slept, sleeps.stamps) = (10, 10 * (20 + 500), 3);
        assert_eq!(parts(&sleeps), [0, 5_000, 2 * 10 * 20 + 3 * 20]);
    }

    #[test]
    fn nothing_of_what_a_call_takes_is_subtracted() {
        const TAKES: u64 = 1000;
        const COUNT: u64 = 100;
        let spin = || {
            let start = ticks();
            while ticks() - start < TAKES {}
        };
        // No longer than all of it took, however often it is interrupted.
        let measured = |mut access: Box<dyn FnMut(&mut Stopwatch)>| {
            let mut watch = Stopwatch::with(Cost::NONE);
            let start = ticks();
            (0..COUNT).for_each(|_| access(&mut watch));
            let all = ticks() - start;
            (watch.meter(), all)
        };
        let (calls, all) = measured(Box::new(move |watch| watch.call(|_| spin())));
        assert!((COUNT * TAKES..=all).contains(&calls.device), "{calls:?} of {all}");
        let (sleeps, all) = measured(Box::new(move |watch| watch.sleep(spin)));
        assert!((COUNT * TAKES..=all).contains(&sleeps.sleep), "{sleeps:?} of {all}");
        assert_eq!((calls.sleep, sleeps.device), (0, 0));
    }

    #[test]
    fn one_access_of_many_is_timed_and_counts_for_all() {
        let mut watch = Stopwatch::with(Cost::NONE);
        let mut accesses = 0;
        for _ in 0..10 * ACCESSES_TIMED {
            watch.access(|_| accesses += 1);
        }
        assert_eq!((accesses, watch.access_samples), (10 * ACCESSES_TIMED, 10));
        assert_eq!(watch.meter().device, u64::from(ACCESSES_TIMED) * watch.access_spent);
    }

    #[test]
    fn the_calibration_is_of_empty_calls() {
        let Cost { inside, call, .. } = Cost::measured();
        assert!(inside <= call && call > 0, "{inside} of {call} ticks");
    }

    #[test]
    fn time_goes_on_from_zero() {
        let mut watch = Stopwatch::new();
        let (first, second) = (watch.now(), watch.call(|now| now));
        // An hour, for a thread that does not run.
        assert!(first <= second && second.0 < 3_600_000_000_000, "{first:?} {second:?}");
        assert_eq!((watch.stamps, watch.calls), (1, 1));
    }
}
