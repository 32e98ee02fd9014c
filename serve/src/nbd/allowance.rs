//! How long a client may hold memory that others wait for: a minimum rate.
//!
//! Time runs out while the server waits for nobody but the client. Bytes of requests and replies win it back, at a rate, and
//! never more than a client has at first. They are counted behind TLS: records without content win nothing.

use std::time::Duration;

use super::blocks::LARGEST;

/// Bytes that win back all of the time.
const BYTES: u32 = LARGEST as u32 / 4;

/// What a client has left.
#[derive(Debug)]
pub(super) struct Allowance {
    whole: Duration,
    left: Duration,
}

impl Allowance {
    /// All of it.
    pub(super) const fn new(whole: Duration) -> Self {
        Self { whole, left: whole }
    }

    /// The client holds nothing: it has all of it again.
    pub(super) const fn restore(&mut self) {
        self.left = self.whole;
    }

    /// The client was waited for.
    pub(super) fn spend(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Bytes have come from it or gone to it.
    pub(super) fn earn(&mut self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(BYTES).min(BYTES);
        let back = self.whole.mul_f64(f64::from(bytes) / f64::from(BYTES));
        self.left = self.left.saturating_add(back).min(self.whole);
    }

    /// Nothing is left.
    pub(super) const fn is_used_up(&self) -> bool {
        self.left.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_keeps_it_and_less_does_not() {
        let second = Duration::from_secs(1);
        for (bytes, kept) in [(BYTES / 30, true), (BYTES / 60, false), (1, false)] {
            let mut allowance = Allowance::new(30 * second);
            for _ in 0..1000 {
                allowance.spend(second);
                allowance.earn(bytes.into());
            }
            allowance.spend(second);
            assert_eq!(!allowance.is_used_up(), kept, "{bytes}");
        }
    }

    #[test]
    fn it_is_never_more_than_at_first() {
        let mut allowance = Allowance::new(Duration::from_secs(3));
        allowance.earn(u64::MAX);
        allowance.spend(Duration::from_secs(2));
        assert!(!allowance.is_used_up());
        allowance.spend(Duration::from_secs(1));
        assert!(allowance.is_used_up());
        allowance.restore();
        assert!(!allowance.is_used_up());
    }
}
