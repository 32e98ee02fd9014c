//! Interrupt moderation: it delays signals, never completions. An adapter posts each completion at the end of its batch at the latest,
//! whether a signal follows or not.
//!
//! With few commands in flight (CIF), each batch of completions is signalled at its end. The more commands are in flight, the smaller the
//! share of completions that are signalled (Ahmad, Gulati and Mashtizadeh, "vIC: Interrupt Coalescing for Virtual Machine Storage Device
//! IO", USENIX ATC 2011).
//! The paper uses no timer: a signal is held back only while commands are in flight, so another completion follows. Here a signal that is
//! held back also has a deadline ([`Coalescing::backstop`]), because that completion may take long.
//!
//! One [`Moderator`] decides for one interrupt vector (in a ring of virtio-blk: for one queue). Its CIF are the requests in flight and, as
//! far as the adapter can count them, those that wait. Buffers for events do not count, because they may never be used.

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
    /// A share that depends on the commands in flight. At most one signal for completions reaped together.
    Oio,
    /// As [`Oio`](Self::Oio) if completions come fast enough, else as [`Batch`](Self::Batch).
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
    /// With fewer completions per second, nothing is held back ([`Policy::OioIops`]).
    pub iops_threshold: u64,
    /// Interval at which rate and share are computed.
    pub epoch: Duration,
    /// A signal is held back only for completions that, at the measured rate, arrive within this time ([`Policy::OioIops`]). The published
    /// ratios bound the added latency only in proportion to the disk's latency: on a slow disk, signals would be held back long.
    /// [`Duration::MAX`] selects the published ratios.
    pub longest_hold: Duration,
    /// Longest delay of a signal if no other completion follows.
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

/// Of `skip_up` completions, `count_up` signal. If `count_up` is 1, the last of them signals.
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

    /// As this ratio, but no completion waits for more than `others` further ones.
    fn waiting_for(self, others: u128) -> Self {
        match (self.count_up, u32::try_from(others)) {
            (_, Ok(0)) => Self::ALL,
            (1, Ok(others)) => Self { skip_up: self.skip_up.min(others.saturating_add(1)), ..self },
            // In the other ratios a completion waits for one other.
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
    /// Numerator of the share of completions that signal while at least `cif_threshold` commands are in flight. Computed each epoch.
    pub signals: u32,
    /// Denominator of that share. The share is 1/1 for [`Policy::Off`] and [`Policy::Batch`].
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
    /// Completions before this time do not end the epoch.
    epoch_end: Time,
    /// Since when a signal is held back.
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

    /// Change the options. True: signal now, for completions that were held back.
    #[must_use]
    pub(crate) fn set_options(&mut self, options: Coalescing) -> bool {
        tracing::debug!(?options, "interrupt moderation");
        let signal = self.flush();
        *self = Self::new(options);
        signal
    }

    /// A completion was written into the guest's ring, its index published or not, and `cif` commands are in flight without it. True:
    /// before the next completion, publish those of this batch so far, and signal. False: [`end_batch`](Self::end_batch) decides.
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

    /// Call this after the completions of a batch are posted. True: signal, for all completions so far.
    #[inline]
    #[must_use]
    pub(crate) fn end_batch(&mut self, now: Time) -> bool {
        if self.due || self.deadline().is_some_and(|deadline| now >= deadline) {
            return self.flush();
        }
        false
    }

    /// Time by which held completions must be signalled. `None`: nothing is held back.
    #[must_use]
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.withheld.map(|since| since.after(self.options.backstop))
    }

    /// Forget the signals that are due or held back. True: there were some, and the caller must signal for them, unless it signals in any
    /// case or the guest wants no signal.
    #[must_use]
    pub(crate) fn flush(&mut self) -> bool {
        let owed = self.due || self.withheld.is_some();
        self.due = false;
        self.withheld = None;
        owed
    }

    /// Whether this completion signals.
    #[inline]
    fn deliver(&mut self, cif: u32, now: Time) -> bool {
        self.completions += 1;
        if now >= self.epoch_end {
            self.check_epoch(cif, now);
        }
        // Sources differ on this comparison. Here interrupts are coalesced with exactly `cif_threshold` commands in
        // flight after this one has completed.
        if cif < self.options.cif_threshold || self.counter >= self.ratio.skip_up {
            self.counter = 1;
            return true;
        }
        self.counter += 1;
        // With `count_up` = 1 the last completion of the period signals, not the first.
        self.counter <= self.ratio.count_up
    }

    /// Start the first epoch, or the next one if this one is over.
    #[cold]
    fn check_epoch(&mut self, cif: u32, now: Time) {
        let start = *self.epoch_start.get_or_insert(now);
        if now.since(start) >= self.options.epoch {
            self.start_epoch(cif, start, now);
        }
        // `after` truncates an epoch of 2^64 ns or more. Then this time is too early, and later completions call `check_epoch` for nothing.
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
