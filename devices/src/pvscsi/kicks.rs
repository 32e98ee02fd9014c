//! When the driver is to kick: the request-call threshold, for drivers that have agreed to it.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::bursts::{Burst, Bursts};
use super::polling::Polling;
use crate::Time;
use crate::kick_suppression::{KickSuppression, MIN_REQUESTS, POLL_IDLE, Suppressed};

/// Suppresses all kicks: more requests than any ring holds. The threshold that it makes is one below that of a device that is awake.
const ALL_KICKS: u32 = u32::MAX - 2;

/// What was negotiated, and what is known of the driver.
#[derive(Debug)]
pub(super) struct Kicks {
    /// Negotiated: the driver kicks only from the threshold on.
    pub(super) enabled: bool,
    /// When to poll for requests that came without a kick.
    poll_at: Option<Time>,
    /// When the threshold was set.
    since: Time,
    /// The threshold was set with many requests in flight.
    busy: bool,
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

    /// When the next poll is due, if one is.
    pub(super) const fn poll_at(&self) -> Option<Time> {
        self.poll_at
    }

    /// The kicks to suppress while the device sleeps.
    fn suppress(&mut self, in_flight: u32, unread: u32, late: bool, now: Time) -> Suppressed {
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

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Before the ring is served: pass the number of waiting requests to the suppression.
    pub(super) fn note_waiting(&mut self, now: Time) {
        if self.kicks.enabled
            && self.kicks.busy
            && self.can_fetch()
            && let Some(rings) = &self.rings
            && let Some(suppressed) = rings.suppressed()
        {
            self.kicks.suppression.polled(rings.waiting(), suppressed, now.since(self.kicks.since), now);
        }
    }

    /// Suppress all kicks, for `count` requests are about to be taken and this thread reads the ring again before it sleeps. For a single request
    /// the threshold stays: to lower it again would cost a fence and another poll.
    pub(super) fn disable_kicks(&mut self, count: u32) {
        if self.kicks.enabled
            && (count > 1 || self.in_flight.count() > 0)
            && let Some(rings) = &mut self.rings
        {
            rings.set_threshold(u32::MAX);
        }
    }

    /// Set the threshold for the time that this thread sleeps, and read the ring again. True: requests wait.
    ///
    /// With few requests in flight, `bursts` forecasts how many the driver will put in.
    ///
    /// The driver stores its index and then loads the threshold without a fence between, so its load may come first.
    /// One more poll, [`POLL_IDLE`] after the threshold was lowered, finds a request that came without a kick for that reason.
    pub(super) fn enable_kicks(&mut self, now: Time) -> bool {
        let (in_flight, can_fetch) = (self.in_flight.count(), self.can_fetch());
        let Self { rings: Some(rings), kicks, .. } = self else {
            self.kicks.poll_at = None;
            return false;
        };
        if !kicks.enabled {
            kicks.poll_at = None;
            return false;
        }
        let late = kicks.poll_at.is_some_and(|time| now >= time);
        if late && can_fetch && rings.waiting() > 0 {
            // They are taken first: what became of the burst is decided when all waiting requests are counted.
            return true;
        }
        let suppressed = kicks.suppress(in_flight, rings.unread(), late, now);
        let before = rings.threshold();
        let threshold = if suppressed.kicks == 0 { 0 } else { suppressed.kicks + 1 };
        if threshold != before {
            kicks.since = now;
            rings.set_threshold(threshold);
        }
        let lowered = threshold < before;
        if lowered && can_fetch && rings.waiting() > 0 {
            // If a single request is taken now, the threshold stays. One behind it may have come without a kick.
            kicks.poll_at = Some(now.after(POLL_IDLE));
            return true;
        }
        // While kicks are suppressed a next poll is due; after the threshold was lowered, one more.
        if suppressed.kicks > 0 {
            let next = now.after(suppressed.poll_after);
            // Requests that were taken since restart the interval. A wake-up for another reason does not.
            let same = kicks.poll_at.filter(|_| !late && before != u32::MAX);
            kicks.poll_at = Some(same.map_or(next, |time| time.min(next)));
        } else if lowered {
            kicks.poll_at = Some(now.after(POLL_IDLE));
        } else if late {
            kicks.poll_at = None;
        }
        false
    }
}
