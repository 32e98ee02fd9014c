//! When the driver is to kick: the request-call threshold, for drivers that have enabled it.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use crate::hba::Hba;
use crate::kick_suppression::{MIN_REQUESTS, POLL_IDLE, Suppressed};
use crate::time::Time;

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Before the ring is served: pass the number of waiting requests to the suppression.
    pub(super) fn note_waiting(&mut self, now: Time) {
        if self.kicks.enabled
            && let Some(rings) = &self.rings
            && let Some(suppressed) = rings.suppressed().filter(|suppressed| *suppressed > 0)
            && self.can_fetch()
        {
            self.kicks.batches.polled(rings.waiting(), suppressed, now.since(self.kicks.since), now);
        }
    }

    /// Before `count` requests are taken: pass them and the number of outstanding ones to the suppression.
    #[inline]
    pub(super) fn note_taken(&mut self, count: u32) {
        if self.kicks.enabled
            && let Some(rings) = &self.rings
        {
            let outstanding = self.engine.in_flight.count() + rings.waiting() + rings.unread();
            self.kicks.batches.taken(count, outstanding);
        }
    }

    /// Before `count` requests are taken: suppress all kicks, because this thread reads the ring again before it sleeps. For a single
    /// request with no other in flight the threshold stays, because lowering it again would cost a fence and another poll.
    pub(super) fn disable_kicks(&mut self, count: u32) {
        if self.kicks.enabled
            && (count > 1 || self.engine.in_flight.count() > 0)
            && let Some(rings) = &mut self.rings
        {
            rings.set_threshold(u32::MAX);
        }
    }

    /// Set the threshold for the time that this thread sleeps. If that lowers the threshold, or a poll was due, also read the ring. True:
    /// requests wait, so the thread must not sleep.
    ///
    /// The driver stores its index and then loads the threshold, with no fence between the two: the processor may load first. So a driver
    /// that loaded the old threshold may not kick, although its request comes after the device has read the ring. One more poll,
    /// [`POLL_IDLE`] after the threshold was lowered, finds such a request.
    pub(super) fn enable_kicks(&mut self, now: Time) -> bool {
        let (in_flight, can_fetch) = (self.engine.in_flight.count(), self.can_fetch());
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
            // The caller takes these requests first. Then the caller calls this method again, with these requests counted.
            return true;
        }
        let polls = if in_flight < MIN_REQUESTS { kicks.polling.before_sleep(late) } else { None };
        let suppressed = match polls {
            Some(poll_after) => Suppressed { kicks: u32::MAX - 1, poll_after },
            None => kicks.batches.before_sleep(in_flight, late),
        };
        let before = rings.threshold();
        // A full ring is always kicked for: its driver can put no further request in.
        let full = rings.request_entries() as u32;
        let threshold = if suppressed.kicks == 0 { 0 } else { full.min(suppressed.kicks + 1) };
        if threshold != before {
            kicks.since = now;
            rings.set_threshold(threshold);
        }
        let lowered = threshold < before;
        if lowered && can_fetch && rings.waiting() > 0 {
            // Schedule the poll now. If the ring has only one request, `disable_kicks` does not raise the threshold, so the next call of
            // this method does not lower it. Another request may come without a kick all the same, as described above.
            kicks.poll_at = Some(now.after(POLL_IDLE));
            return true;
        }
        // While kicks are suppressed, a poll is always scheduled; after the threshold was lowered, one more poll is scheduled.
        if suppressed.kicks > 0 {
            let next = now.after(suppressed.poll_after);
            // The interval begins anew after a poll that was due, and after `disable_kicks` has set the threshold to `u32::MAX`. Any other
            // wake-up can only make the poll come earlier.
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
