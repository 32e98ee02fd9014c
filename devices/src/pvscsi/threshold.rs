//! How many kicks to suppress: the negotiated request-call threshold, and forecasts and trials of the driver's bursts.

use super::bursts::{Burst, Bursts};
use super::polling::Polling;
use crate::kick_suppression::{KickSuppression, MIN_REQUESTS, POLL_IDLE, Suppressed};
use crate::time::Time;

/// Value of [`Suppressed::kicks`] that suppresses all kicks while the device sleeps: more requests than any ring holds. The threshold is
/// then `u32::MAX - 1`, which differs from `u32::MAX`, the threshold while the device is awake.
const ALL_KICKS: u32 = u32::MAX - 2;

/// Sleeps in a row without suppressed kicks, and without back-off, before a trial. Odd, so that trials begin at different requests of
/// a burst: a trial that begins at the last request of a burst finds nothing.
const BEFORE_TRIAL: u8 = 61;
/// Polls of a trial. More than one: the first may find the end of a burst.
const POLLS_OF_TRIAL: u8 = 3;

/// Decides how many kicks are suppressed during each sleep.
#[derive(Debug)]
pub(super) struct Kicks {
    /// The driver has enabled the request-call threshold: it kicks only if at least that many requests wait.
    pub(super) enabled: bool,
    /// When to poll for requests that came without a kick.
    pub(super) poll_at: Option<Time>,
    /// When the threshold for a sleep was last changed.
    pub(super) since: Time,
    /// The threshold was set with many requests in flight.
    pub(super) busy: bool,
    /// Requests that are taken belong to the burst that `bursts` follows.
    in_burst: bool,
    /// Kicks for requests of the burst are suppressed.
    suppressed: bool,
    /// Sleeps in a row without suppressed kicks. Those of a back-off do not count.
    sleeps_unsuppressed: u8,
    /// Remaining polls of the trial; 0 if none runs. During a trial all kicks are suppressed.
    trial: u8,
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
            in_burst: false,
            suppressed: false,
            sleeps_unsuppressed: 0,
            trial: 0,
            bursts: Bursts::new(),
            polling: Polling::new(),
            suppression: KickSuppression::new(),
        }
    }

    /// The kicks to suppress while the device sleeps. `unread`: completions that the guest has not read; `read`: the guest's index of the
    /// completion ring; `late`: a poll was due.
    pub(super) fn suppress(
        &mut self,
        in_flight: u32,
        (unread, read): (u32, u32),
        late: bool,
        now: Time,
    ) -> Suppressed {
        let in_burst = std::mem::take(&mut self.in_burst);
        let trial = std::mem::take(&mut self.trial);
        self.busy = in_flight >= MIN_REQUESTS;
        if self.busy {
            self.bursts.forget_seen();
            return self.suppression.before_sleep(in_flight, unread, late);
        }
        if let Some(poll_after) = self.polling.before_sleep(late) {
            self.sleeps_unsuppressed = 0;
            return Suppressed { kicks: ALL_KICKS, poll_after };
        }
        self.in_burst = true;
        if trial > 0 && !self.ends_trial(trial, late, now) {
            return self.try_all();
        }
        let next = self.bursts.forecast(in_flight, unread, read);
        if !late && !self.suppressed && trial == 0 && self.bursts.are_short() {
            // The driver kicks for each request in any case, so the burst need not be followed.
            self.in_burst = false;
            self.suppression.before_sleep(in_flight, 0, false);
            return self.kick_for_each(false, in_flight, now);
        }
        // Only suppressed kicks make requests wait for a poll.
        let waited = late && in_burst && self.suppressed;
        let mut kick_each = late && !waited;
        if in_burst && trial == 0 {
            match self.bursts.before_sleep(next, waited, now) {
                Burst::Complete if self.suppressed => {
                    self.suppression.complete();
                    self.bursts.credit();
                }
                Burst::StoppedShort => {
                    kick_each = true;
                    // With requests in flight, the guest waits for those.
                    if in_flight == 0 {
                        self.suppression.stopped_short();
                    }
                }
                // Not even the first request has come, so let the guest kick for it.
                Burst::Absent => kick_each = true,
                Burst::Complete | Burst::InProgress | Burst::Excused => {}
            }
        } else {
            self.bursts.begin(next, now);
        }
        let missing = self.bursts.missing();
        let suppressed = self.suppression.before_sleep(in_flight, missing, kick_each);
        self.suppressed = suppressed.kicks > 0;
        if !self.suppressed {
            return self.kick_for_each(kick_each, in_flight, now);
        }
        self.sleeps_unsuppressed = 0;
        let kicks = if self.bursts.reliable() { missing - 1 } else { suppressed.kicks };
        Suppressed { kicks, poll_after: self.bursts.poll_after() }
    }

    /// Call this before a sleep without suppressed kicks. It returns that no kick is suppressed, or begins a trial.
    fn kick_for_each(&mut self, kick_each: bool, in_flight: u32, now: Time) -> Suppressed {
        self.sleeps_unsuppressed =
            self.sleeps_unsuppressed.saturating_add(u8::from(!self.suppression.backs_off()));
        if self.sleeps_unsuppressed >= BEFORE_TRIAL && !kick_each && in_flight == 0 {
            self.in_burst = true;
            self.bursts.begin(0, now);
            self.trial = POLLS_OF_TRIAL;
            return self.try_all();
        }
        Suppressed::default()
    }

    /// Suppress all kicks until the next poll of a trial. A trial finds out how many requests the guest puts in: if each request wakes the
    /// device, and the device is faster than the guest, the device never sees more than one request of a burst.
    fn try_all(&mut self) -> Suppressed {
        self.suppressed = true;
        Suppressed { kicks: ALL_KICKS, poll_after: POLL_IDLE }
    }

    /// Whether a trial with `polls` remaining polls is over now. If no poll has found many requests, the trial has only delayed the guest's
    /// requests, so the device backs off before the next trial.
    fn ends_trial(&mut self, polls: u8, late: bool, now: Time) -> bool {
        self.trial = polls;
        if !late {
            return false;
        }
        let found = self.bursts.found();
        self.bursts.begin(0, now);
        self.trial -= 1;
        if found >= MIN_REQUESTS {
            self.bursts.learn(found);
            self.trial = 0;
        } else if self.trial == 0 {
            self.suppression.stopped_short();
        }
        self.sleeps_unsuppressed = 0;
        self.trial == 0
    }
}

#[cfg(test)]
mod tests;
