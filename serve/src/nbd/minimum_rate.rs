//! The minimum rate at which a client that holds memory of the pool has to transfer data while other connections wait for it.
//!
//! A token bucket of time: time that the server waits for nothing but the client is subtracted, bytes of requests and replies add
//! time, up to the initial amount. Bytes are counted as plain text: TLS records without content add nothing.

use std::time::Duration;

use super::spec::LARGEST;

/// Bytes that add the whole initial time.
const BYTES: u32 = LARGEST as u32 / 4;

/// The most that one wait subtracts. A wait that took longer includes time in which this process was stopped.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// The time that a client has left.
#[derive(Debug)]
pub(super) struct MinimumRate {
    whole: Duration,
    left: Duration,
}

impl MinimumRate {
    /// With this initial time.
    pub(super) const fn new(whole: Duration) -> Self {
        Self { whole, left: whole }
    }

    /// The client holds no memory of the pool: its time starts again.
    pub(super) const fn reset(&mut self) {
        self.left = self.whole;
    }

    /// The server waited for the client so long, for [`STEP`] at the most.
    pub(super) fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time.min(STEP));
    }

    /// So many bytes were received from it or sent to it.
    pub(super) fn transferred(&mut self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(BYTES).min(BYTES);
        let back = self.whole.mul_f64(f64::from(bytes) / f64::from(BYTES));
        self.left = self.left.saturating_add(back).min(self.whole);
    }

    /// The client has no time left.
    pub(super) const fn is_missed(&self) -> bool {
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_rate_misses_it() {
        let second = Duration::from_secs(1);
        for (bytes, kept) in [(BYTES / 30, true), (BYTES / 60, false), (1, false)] {
            let mut minimum_rate = MinimumRate::new(30 * second);
            for _ in 0..1000 {
                minimum_rate.waited(second);
                minimum_rate.transferred(bytes.into());
            }
            minimum_rate.waited(second);
            assert_eq!(!minimum_rate.is_missed(), kept, "{bytes}");
        }
    }

    #[test]
    fn time_in_which_the_server_was_stopped_does_not_count() {
        let mut minimum_rate = MinimumRate::new(3 * STEP);
        for expected in [false, false, true] {
            minimum_rate.waited(1000 * STEP);
            assert_eq!(minimum_rate.is_missed(), expected);
        }
    }

    #[test]
    fn it_never_exceeds_the_initial_time() {
        let mut minimum_rate = MinimumRate::new(2 * STEP);
        minimum_rate.transferred(u64::MAX);
        minimum_rate.waited(STEP);
        assert!(!minimum_rate.is_missed());
        minimum_rate.waited(STEP);
        assert!(minimum_rate.is_missed());
        minimum_rate.reset();
        assert!(!minimum_rate.is_missed());
    }
}
