//! Points in time, as the owner of a device passes them in.

use std::time::Duration;

/// A point in time: nanoseconds since an origin that the owner of the device chose. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// Time from `earlier` to here; zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time and `duration` more.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        // A duration of 2^64 ns (584 years) or more counts as 2^64 - 1 ns.
        let nanos = duration.as_nanos();
        let nanos = if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 };
        Self(self.0.saturating_add(nanos))
    }
}
