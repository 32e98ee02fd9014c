//! When the driver is to kick: the request-call threshold, for drivers that have agreed to it.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::bursts::{Burst, Bursts};
use super::looks::Looks;
use crate::Time;
use crate::patience::{FROM, LATE_ALONE, Patience, Trust};

/// Asks for no kicks: more requests than any ring holds. Not the threshold while the device is awake, which is one higher.
const NO_KICKS: u32 = u32::MAX - 2;

/// The agreement, and what is known of the driver.
#[derive(Debug)]
pub(super) struct Kicks {
    /// The driver leaves out kicks below the threshold.
    pub(super) enabled: bool,
    /// When to look for requests that came without a kick.
    look_at: Option<Time>,
    /// Since when the threshold is what it is.
    since: Time,
    /// The threshold is about requests that come beside others, which are in flight.
    beside_others: bool,
    /// The threshold is about a burst.
    expecting: bool,
    /// The driver may leave out kicks meanwhile.
    leaves_out: bool,
    pub(super) bursts: Bursts,
    pub(super) looks: Looks,
    pub(super) trust: Trust,
}

impl Kicks {
    pub(super) const fn new() -> Self {
        Self {
            enabled: false,
            look_at: None,
            since: Time(0),
            beside_others: false,
            expecting: false,
            leaves_out: false,
            bursts: Bursts::new(),
            looks: Looks::new(),
            trust: Trust::new(),
        }
    }

    /// When to look, at the latest.
    pub(super) const fn look_at(&self) -> Option<Time> {
        self.look_at
    }

    /// For how many requests the driver need not kick while the device sleeps.
    fn ahead(&mut self, in_flight: u32, unread: u32, late: bool, now: Time) -> Patience {
        let expecting = std::mem::take(&mut self.expecting);
        self.beside_others = in_flight >= FROM;
        if self.beside_others {
            return self.trust.before_sleep(in_flight, unread, late);
        }
        if let Some(wait) = self.looks.before_sleep(late) {
            return Patience { ahead: NO_KICKS, wait };
        }
        let next = self.bursts.forecast(in_flight, unread);
        let mut ask = late;
        let mut on_its_way = false;
        if expecting {
            // Where each request was to be kicked for, none can be late.
            let late = late && self.leaves_out;
            let burst = self.bursts.before_sleep(next, late, now);
            ask = burst == Burst::StoppedShort;
            on_its_way = burst == Burst::OnItsWay;
            match burst {
                Burst::Complete => self.trust.complete(),
                // With requests in flight, it is they that take long.
                Burst::StoppedShort if in_flight == 0 => self.trust.stopped_short(),
                Burst::StoppedShort | Burst::OnItsWay | Burst::Absent => {}
            }
        } else {
            self.bursts.begin(next, now);
        }
        let missing = self.bursts.missing();
        let patience = self.trust.before_sleep(in_flight, missing, ask);
        self.leaves_out = patience.ahead > 0;
        // The last few of a burst are kicked for one by one.
        self.expecting = self.leaves_out || on_its_way && missing < FROM;
        if !self.leaves_out {
            return patience;
        }
        let ahead = if self.bursts.reliable() { missing - 1 } else { patience.ahead };
        Patience { ahead, wait: self.bursts.wait() }
    }
}

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// The device is awake, having slept or not: has the driver put in what was expected?
    pub(super) fn look_for_requests(&mut self, now: Time) {
        if self.kicks.enabled
            && self.kicks.beside_others
            && self.can_fetch()
            && let Some(rings) = &self.rings
            && let Some(ahead) = rings.ahead()
        {
            self.kicks.trust.look(rings.waiting(), ahead, now.since(self.kicks.since), now);
        }
    }

    /// So many requests are about to be taken: while this thread looks at the ring by itself, the driver need not kick. For a single request
    /// the threshold stays: to lower it again would cost a fence and another look.
    pub(super) fn need_no_kicks(&mut self, count: u32) {
        if self.kicks.enabled
            && (count > 1 || self.in_flight.count() > 0)
            && let Some(rings) = &mut self.rings
        {
            rings.set_threshold(u32::MAX);
        }
    }

    /// Tell the driver from how many waiting requests on it is to kick while this thread sleeps, and look at the ring
    /// again. True: requests are there.
    ///
    /// With few in flight, `bursts` tells how many it will put in.
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
        if late && can_fetch && rings.waiting() > 0 {
            // Taken first: what became of a burst is judged when all that waits is counted.
            return true;
        }
        let Patience { ahead, wait } = kicks.ahead(in_flight, rings.unread(), late, now);
        let before = rings.threshold();
        let threshold = if ahead == 0 { 0 } else { ahead + 1 };
        if threshold != before {
            kicks.since = now;
            rings.set_threshold(threshold);
        }
        let lowered = threshold < before;
        if lowered && can_fetch && rings.waiting() > 0 {
            // A single request that is taken now leaves the threshold; one behind it may have come without a kick.
            kicks.look_at = Some(now.after(LATE_ALONE));
            return true;
        }
        // As long as the driver may leave out kicks there is a next look; after the threshold was lowered, one more.
        if ahead > 0 {
            let next = now.after(wait);
            // Requests that were taken meanwhile make it a new wait; a wake-up for something else does not.
            let same = kicks.look_at.filter(|_| !late && before != u32::MAX);
            kicks.look_at = Some(same.map_or(next, |time| time.min(next)));
        } else if lowered {
            kicks.look_at = Some(now.after(LATE_ALONE));
        } else if late {
            kicks.look_at = None;
        }
        false
    }
}
