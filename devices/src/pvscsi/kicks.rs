//! When the driver is to kick: the request-call threshold, for drivers that have agreed to it.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use crate::Time;
use crate::patience::{LATE_ALONE, Patience, Trust};

/// The agreement, and what is known of the driver.
#[derive(Debug)]
pub(super) struct Kicks {
    /// The driver leaves out kicks below the threshold.
    pub(super) enabled: bool,
    /// When to look for requests that came without a kick.
    look_at: Option<Time>,
    /// Since when the threshold is what it is.
    since: Time,
    pub(super) trust: Trust,
}

impl Kicks {
    pub(super) const fn new() -> Self {
        Self { enabled: false, look_at: None, since: Time(0), trust: Trust::new() }
    }

    /// When to look, at the latest.
    pub(super) const fn look_at(&self) -> Option<Time> {
        self.look_at
    }
}

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// The device is awake, having slept or not: has the driver put in what was expected?
    pub(super) fn look_for_requests(&mut self, now: Time) {
        if self.kicks.enabled
            && self.can_fetch()
            && let Some(rings) = &self.rings
            && let Some(ahead) = rings.ahead()
        {
            self.kicks.trust.look(rings.waiting(), ahead, now.since(self.kicks.since), now);
        }
    }

    /// Requests are taken: while this thread looks at the ring by itself, the driver need not kick.
    pub(super) fn need_no_kicks(&mut self) {
        if self.kicks.enabled
            && let Some(rings) = &mut self.rings
        {
            rings.set_threshold(u32::MAX);
            self.kicks.look_at = None;
        }
    }

    /// Tell the driver from how many waiting requests on it is to kick while this thread sleeps, and look at the ring
    /// again. True: requests are there.
    ///
    /// With none in flight, it will put in about as many as there are completions that it has not read.
    ///
    /// The driver stores its index and then loads the threshold without a fence between, so its load may come first.
    /// A request that it left without a kick that way is found by one more look, [`LATE_ALONE`] after the threshold was
    /// lowered.
    pub(super) fn ask_for_kicks(&mut self, now: Time) -> bool {
        let (in_flight, can_fetch) = (self.in_flight.count(), self.can_fetch());
        let Self { rings: Some(rings), kicks, .. } = self else {
            self.kicks.look_at = None;
            return false;
        };
        if !kicks.enabled {
            kicks.look_at = None;
            return false;
        }
        let late = kicks.look_at.is_some_and(|time| now >= time);
        let Patience { ahead, wait } = kicks.trust.before_sleep(in_flight, rings.unread(), late);
        let before = rings.threshold();
        let threshold = if ahead == 0 { 0 } else { ahead + 1 };
        if threshold != before {
            kicks.since = now;
            rings.set_threshold(threshold);
        }
        let lowered = threshold < before;
        if (lowered || late) && can_fetch && rings.waiting() > 0 {
            return true;
        }
        // As long as the driver may leave out kicks there is a next look; after the threshold was lowered, one more.
        if ahead > 0 {
            let next = now.after(wait);
            kicks.look_at = Some(kicks.look_at.filter(|_| !late).map_or(next, |time| time.min(next)));
        } else if lowered {
            kicks.look_at = Some(now.after(LATE_ALONE));
        } else if late {
            kicks.look_at = None;
        }
        false
    }
}
