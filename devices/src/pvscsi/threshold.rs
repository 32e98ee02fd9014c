//! How many kicks to suppress: what was negotiated of the request-call threshold, and what is known of the driver.

use super::bursts::{Burst, Bursts};
use super::polling::Polling;
use crate::kick_suppression::{KickSuppression, MIN_REQUESTS, Suppressed};
use crate::time::Time;

/// Suppresses all kicks: more requests than any ring holds. The threshold that it makes is one below that of a device that is awake.
const ALL_KICKS: u32 = u32::MAX - 2;

/// What was negotiated, and what is known of the driver.
#[derive(Debug)]
pub(super) struct Kicks {
    /// Negotiated: the driver kicks only from the threshold on.
    pub(super) enabled: bool,
    /// When to poll for requests that came without a kick.
    pub(super) poll_at: Option<Time>,
    /// When the threshold was set.
    pub(super) since: Time,
    /// The threshold was set with many requests in flight.
    pub(super) busy: bool,
    /// The threshold was set for a burst.
    expecting: bool,
    /// Kicks for requests of the burst are suppressed.
    suppressed: bool,
    pub(super) bursts: Bursts,
    pub(super) polling: Polling,
    pub(super) suppression: KickSuppression,
}

impl Kicks {
    pub(super) const fn new() -> Self {
        Self {
            enabled: false,
            poll_at: None,
            since: Time(0),
            busy: false,
            expecting: false,
            suppressed: false,
            bursts: Bursts::new(),
            polling: Polling::new(),
            suppression: KickSuppression::new(),
        }
    }

    /// The kicks to suppress while the device sleeps.
    pub(super) fn suppress(&mut self, in_flight: u32, unread: u32, late: bool, now: Time) -> Suppressed {
        let expecting = std::mem::take(&mut self.expecting);
        self.busy = in_flight >= MIN_REQUESTS;
        if self.busy {
            return self.suppression.before_sleep(in_flight, unread, late);
        }
        if let Some(poll_after) = self.polling.before_sleep(late) {
            return Suppressed { kicks: ALL_KICKS, poll_after };
        }
        let next = self.bursts.forecast(in_flight, unread);
        let mut kick_each = late;
        let mut in_progress = false;
        if expecting {
            // Without suppression no request waits for a poll.
            let late = late && self.suppressed;
            let burst = self.bursts.before_sleep(next, late, now);
            kick_each = burst == Burst::StoppedShort;
            in_progress = burst == Burst::InProgress;
            match burst {
                Burst::Complete => self.suppression.complete(),
                // With requests in flight, the guest waits for those.
                Burst::StoppedShort if in_flight == 0 => self.suppression.stopped_short(),
                Burst::StoppedShort | Burst::InProgress | Burst::Absent => {}
            }
        } else {
            self.bursts.begin(next, now);
        }
        let missing = self.bursts.missing();
        let suppressed = self.suppression.before_sleep(in_flight, missing, kick_each);
        self.suppressed = suppressed.kicks > 0;
        // Each of the last few requests of a burst is kicked for.
        self.expecting = self.suppressed || in_progress && missing < MIN_REQUESTS;
        if !self.suppressed {
            return suppressed;
        }
        let kicks = if self.bursts.reliable() { missing - 1 } else { suppressed.kicks };
        Suppressed { kicks, poll_after: self.bursts.poll_after() }
    }
}
