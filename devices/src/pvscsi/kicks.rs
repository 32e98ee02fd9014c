//! When the driver is to kick: the request-call threshold, for drivers that have enabled it.

use super::polling::Polling;
use super::rings::Rings;
use crate::kick_suppression::{Batches, MIN_REQUESTS, POLL_IDLE, Suppressed};
use crate::time::Time;

/// The kicks that are suppressed while the device is awake, and during each sleep.
#[derive(Debug)]
pub(super) struct Kicks {
    /// The driver has enabled the request-call threshold: it kicks only if at least that many requests wait.
    enabled: bool,
    /// When to poll for requests that came without a kick.
    poll_at: Option<Time>,
    /// That poll follows a lowered threshold, while no kicks are suppressed.
    after_lowering: bool,
    /// Requests were taken since the device slept last.
    has_taken: bool,
    /// When the threshold for a sleep was last changed.
    since: Time,
    batches: Batches,
    polling: Polling,
}

impl Kicks {
    pub(super) const fn new() -> Self {
        Self {
            enabled: false,
            poll_at: None,
            after_lowering: false,
            has_taken: false,
            since: Time(0),
            batches: Batches::new(),
            polling: Polling::new(),
        }
    }

    pub(super) const fn enabled(&self) -> bool {
        self.enabled
    }

    pub(super) const fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(super) const fn poll_at(&self) -> Option<Time> {
        self.poll_at
    }

    /// A kick has blocked the driver.
    pub(super) const fn blocked(&mut self) {
        self.polling.blocked();
    }

    /// Before the ring is served, if requests can be taken from it: pass the number of waiting requests to the suppression.
    pub(super) fn before_service<M>(&mut self, rings: &Rings<M>, now: Time) {
        if self.enabled
            && let Some(suppressed) = rings.suppressed().filter(|suppressed| *suppressed > 0)
        {
            self.batches.polled(rings.waiting(), suppressed, now.since(self.since), now);
        }
    }

    /// Before `count` requests are taken: suppress all kicks, because this thread reads the ring again before it sleeps. For a single
    /// request with no other in flight the threshold stays, because lowering it again would cost a fence and another poll.
    #[inline]
    pub(super) fn before_take<M>(&mut self, rings: &mut Rings<M>, count: u32, in_flight: u32, now: Time) {
        if !self.enabled {
            return;
        }
        self.has_taken = true;
        self.batches.taken(count, in_flight + rings.waiting() + rings.unread(), now);
        if count > 1 || in_flight > 0 {
            rings.set_threshold(u32::MAX);
        }
    }

    /// `count` requests were taken.
    #[inline]
    pub(super) fn taken(&mut self, count: u32) {
        self.polling.taken(count);
    }

    /// A request was started with this task number.
    #[inline]
    pub(super) fn started(&mut self, id: u32) {
        self.batches.suppression.started(id);
    }

    /// The task has ended.
    #[inline]
    pub(super) fn ended(&mut self, id: u32, now: Time) {
        self.batches.suppression.ended(id, now);
    }

    /// Before this thread sleeps: set the threshold for that time. If that lowers the threshold, or a poll was due, also read the ring.
    /// `can_fetch`: requests can be taken from it. True: requests wait, so the thread must not sleep.
    ///
    /// The driver stores its index and then loads the threshold, with no fence between the two: the processor may load first. So a driver
    /// that loaded the old threshold may not kick, although its request comes after the device has read the ring. One more poll finds such a
    /// request: [`POLL_IDLE`] after the threshold was lowered, or that of the next suppressed kicks.
    pub(super) fn before_sleep<M>(
        &mut self,
        rings: Option<&mut Rings<M>>,
        in_flight: u32,
        can_fetch: bool,
        now: Time,
    ) -> bool {
        let Some(rings) = rings.filter(|_| self.enabled) else {
            self.poll_at = None;
            return false;
        };
        let due = self.poll_at.is_some_and(|time| now >= time);
        if due && can_fetch && rings.waiting() > 0 {
            // The caller takes these requests first. Then the caller calls this method again, with these requests counted.
            return true;
        }
        let polls = if in_flight < MIN_REQUESTS { self.polling.before_sleep(due) } else { None };
        // A poll after a lowered threshold ends no batch if requests were just taken.
        let has_taken = std::mem::take(&mut self.has_taken);
        let ends_batch = due && !(self.after_lowering && has_taken);
        let suppressed = match polls {
            Some(poll_after) => Suppressed { kicks: u32::MAX - 1, poll_after },
            None => self.batches.before_sleep(in_flight, ends_batch),
        };
        let before = rings.threshold();
        // A full ring is always kicked for: its driver can put no further request in.
        let full = rings.request_entries() as u32;
        let threshold = if suppressed.kicks == 0 { 0 } else { full.min(suppressed.kicks + 1) };
        if threshold != before {
            self.since = now;
            rings.set_threshold(threshold);
        }
        let lowered = threshold < before;
        let waits = lowered && can_fetch && rings.waiting() > 0;
        // While kicks are suppressed, a poll is always scheduled; after the threshold was lowered, one more poll is scheduled. That is done even
        // if requests wait: for a single one `before_take` does not raise the threshold, so the next call of this method does not lower it.
        if waits || lowered && suppressed.kicks == 0 {
            self.poll_at = Some(now.after(POLL_IDLE));
            self.after_lowering = true;
        } else if suppressed.kicks > 0 {
            let next = now.after(suppressed.poll_after);
            // The interval begins anew after a poll that was due, after `before_take` has set the threshold to `u32::MAX`, and if no kicks
            // were suppressed before. Any other wake-up can only make the poll come earlier.
            let same = self.poll_at.filter(|_| !due && before != u32::MAX && !self.after_lowering);
            self.poll_at = Some(same.map_or(next, |time| time.min(next)));
            self.after_lowering = false;
        } else if due {
            self.poll_at = None;
        }
        waits
    }
}
