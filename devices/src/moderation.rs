//! Interrupt moderation: completions are always posted to the guest at once, only the signal may be held back.
//!
//! The device knows how many commands are in flight (CIF), so it knows that more completions will come and needs no
//! timer: it delivers a share of the interrupts that shrinks as CIF grows, and every one when few commands are out
//! (Ahmad, Gulati and Mashtizadeh, "vIC: Interrupt Coalescing for Virtual Machine Storage Device IO", USENIX ATC 2011).
//! One [`Moderator`] serves one interrupt vector; commands that may never complete do not count in its CIF.

use std::time::Duration;

use crate::time::Time;

/// When completions signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Each completion signals.
    Off,
    /// Completions reaped together signal once.
    Batch,
    /// By commands in flight alone.
    Oio,
    /// By commands in flight, once the rate is high enough.
    #[default]
    OioIops,
}

/// Policy and thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// When completions signal.
    pub policy: Policy,
    /// With fewer commands in flight, nothing is held back. At least 1.
    pub cif_threshold: u32,
    /// With fewer completions a second, nothing is held back ([`Policy::OioIops`]).
    pub iops_threshold: u64,
    /// How often rate and ratio are computed anew.
    pub epoch: Duration,
    /// No completion is held back for others that, at the rate measured, take longer than this to come
    /// ([`Policy::OioIops`]). The published ratios bound what is added to a latency by a share of it, which is much where
    /// latencies are long; [`Duration::MAX`] leaves them as they are.
    pub longest_hold: Duration,
    /// The longest that a completion may go without its signal, should no other completion follow.
    pub backstop: Duration,
}

impl Default for Coalescing {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            cif_threshold: 4,
            iops_threshold: 2000,
            epoch: Duration::from_millis(200),
            longest_hold: Duration::from_micros(50),
            backstop: Duration::from_millis(1),
        }
    }
}

impl Coalescing {
    /// This policy with the default thresholds.
    #[must_use]
    pub fn policy(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }
}

/// Of `skip_up` completions, `count_up` are delivered, or, where `count_up` is 1, the last alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ratio {
    count_up: u32,
    skip_up: u32,
}

impl Ratio {
    const ALL: Self = Self { count_up: 1, skip_up: 1 };

    /// The ratio for `cif` commands in flight against the threshold.
    const fn of(cif: u32, threshold: u32) -> Self {
        match cif / threshold {
            0 => Self::ALL,
            1 => Self { count_up: 4, skip_up: 5 },
            2 => Self { count_up: 3, skip_up: 4 },
            3 => Self { count_up: 2, skip_up: 3 },
            many => Self { count_up: 1, skip_up: many / 2 },
        }
    }

    /// The same, but no completion waits for more than `others`.
    fn waiting_for(self, others: u128) -> Self {
        match (self.count_up, u32::try_from(others)) {
            (_, Ok(0)) => Self::ALL,
            (1, Ok(others)) => Self { skip_up: self.skip_up.min(others.saturating_add(1)), ..self },
            // In the other ratios it waits for one.
            _ => self,
        }
    }
}

/// The moderation of one interrupt vector as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModerationState {
    /// When completions signal.
    pub policy: Policy,
    /// The share of completions that signal while enough commands are in flight, computed anew each epoch: so many ...
    pub signals: u32,
    /// ... of so many. 1 of 1 for [`Policy::Off`] and [`Policy::Batch`], which know no share.
    pub completions: u32,
    /// A completion waits for its signal.
    pub held_back: bool,
}

/// Decides for one interrupt vector.
#[derive(Clone, Debug)]
pub(crate) struct Moderator {
    options: Coalescing,
    ratio: Ratio,
    counter: u32,
    /// Completions in this epoch.
    completions: u64,
    /// `None` until the first completion.
    epoch_start: Option<Time>,
    /// No completion before this time ends the epoch.
    epoch_end: Time,
    /// Since when a completion waits for its signal.
    withheld: Option<Time>,
    /// A signal is owed at the end of the batch.
    due: bool,
}

impl Moderator {
    /// A moderator with these options.
    #[must_use]
    pub(crate) fn new(options: Coalescing) -> Self {
        let options = Coalescing { cif_threshold: options.cif_threshold.max(1), ..options };
        Self {
            options,
            ratio: Ratio::ALL,
            counter: 1,
            completions: 0,
            epoch_start: None,
            epoch_end: Time(0),
            withheld: None,
            due: false,
        }
    }

    /// The options.
    #[must_use]
    pub(crate) const fn options(&self) -> &Coalescing {
        &self.options
    }

    /// The state.
    #[must_use]
    pub(crate) const fn state(&self) -> ModerationState {
        ModerationState {
            policy: self.options.policy,
            signals: self.ratio.count_up,
            completions: self.ratio.skip_up,
            held_back: self.withheld.is_some(),
        }
    }

    /// Change the options. True: signal now, for what the old ones held back.
    #[must_use]
    pub(crate) fn set_options(&mut self, options: Coalescing) -> bool {
        tracing::debug!(?options, "interrupt moderation");
        let signal = self.flush();
        *self = Self::new(options);
        signal
    }

    /// A completion has been posted to the guest, and `cif` commands are still in flight (it no longer counts).
    /// True: signal at once, before the next completion; else [`end_batch`](Self::end_batch) tells.
    #[inline]
    #[must_use]
    pub(crate) fn completed(&mut self, cif: u32, now: Time) -> bool {
        match self.options.policy {
            Policy::Off => return true,
            Policy::Batch => self.due = true,
            Policy::Oio | Policy::OioIops => {
                if self.deliver(cif, now) {
                    self.due = true;
                } else if self.withheld.is_none() {
                    self.withheld = Some(now);
                }
            }
        }
        false
    }

    /// All completions of the batch were counted. True: signal; that covers every completion so far.
    #[inline]
    #[must_use]
    pub(crate) fn end_batch(&mut self, now: Time) -> bool {
        if self.due || self.deadline().is_some_and(|deadline| now >= deadline) {
            return self.flush();
        }
        false
    }

    /// When the completion held back longest must be signalled; `None`: nothing is held back.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.withheld.map(|since| since.after(self.options.backstop))
    }

    /// Before commands are taken away, the device stops or memory is saved. True: signal what was held back.
    #[must_use]
    pub(crate) fn flush(&mut self) -> bool {
        let owed = self.due || self.withheld.is_some();
        self.due = false;
        self.withheld = None;
        owed
    }

    /// Whether this completion's interrupt is one to be delivered.
    #[inline]
    fn deliver(&mut self, cif: u32, now: Time) -> bool {
        self.completions += 1;
        if now >= self.epoch_end {
            self.check_epoch(cif, now);
        }
        // The one comparison on which sources differ: with exactly `cif_threshold` commands out, counted after this
        // one has completed, interrupts are coalesced.
        if cif < self.options.cif_threshold || self.counter >= self.ratio.skip_up {
            self.counter = 1;
            return true;
        }
        self.counter += 1;
        // With a count of one, the last of the period is delivered, not the first.
        self.counter <= self.ratio.count_up
    }

    /// Start the first epoch, or the next one where this one is over.
    #[cold]
    fn check_epoch(&mut self, cif: u32, now: Time) {
        let start = *self.epoch_start.get_or_insert(now);
        if now.since(start) >= self.options.epoch {
            self.start_epoch(cif, start, now);
        }
        // The time of an epoch of 2^64 ns or more is too early: then each completion gets here.
        self.epoch_end = self.epoch_start.map_or(now, |start| start.after(self.options.epoch));
    }

    fn start_epoch(&mut self, cif: u32, start: Time, now: Time) {
        let nanoseconds = now.since(start).as_nanos().max(1);
        let iops = u128::from(self.completions) * 1_000_000_000 / nanoseconds;
        let Coalescing { policy, cif_threshold, iops_threshold, longest_hold, .. } = self.options;
        let ratio = Ratio::of(cif, cif_threshold);
        self.ratio = match policy {
            Policy::OioIops if iops < u128::from(iops_threshold) => Ratio::ALL,
            Policy::OioIops => {
                ratio.waiting_for(iops.saturating_mul(longest_hold.as_nanos()) / 1_000_000_000)
            }
            _ => ratio,
        };
        self.completions = 0;
        self.epoch_start = Some(now);
    }
}

#[cfg(test)]
mod tests;
