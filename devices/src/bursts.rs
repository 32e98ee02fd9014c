//! What the forecasts of bursts of PVSCSI and storvsc have in common: the number of requests that a guest keeps outstanding, and the polls
//! that may find part of a burst.

/// Sleeps over which the maximum of outstanding requests is taken: between this number and twice as many.
pub(crate) const WINDOW: u8 = 64;

/// Complete bursts that earn one early poll.
const BURSTS_PER_POLL: u8 = 4;
/// Maximum number of early polls that are saved.
pub(crate) const MOST_EARLY_POLLS: u8 = 4;

/// The most requests that the guest had outstanding lately.
#[derive(Debug)]
pub(crate) struct MostOutstanding {
    /// In this window and in the one before.
    now: u32,
    before: u32,
    /// Sleeps in this window.
    sleeps: u8,
}

impl MostOutstanding {
    pub(crate) const fn new() -> Self {
        Self { now: 0, before: 0, sleeps: 0 }
    }

    /// Before each sleep, with `outstanding` requests outstanding: the most of this window and the one before.
    #[inline]
    pub(crate) fn sleep(&mut self, outstanding: u32) -> u32 {
        self.sleeps += 1;
        if self.sleeps >= WINDOW {
            (self.sleeps, self.before, self.now) = (0, self.now, 0);
        }
        self.raise(outstanding);
        self.get()
    }

    /// The most of this window and the one before.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.now.max(self.before)
    }

    /// There were at least `outstanding` requests outstanding.
    pub(crate) fn raise(&mut self, outstanding: u32) {
        self.now = self.now.max(outstanding);
    }
}

/// The early polls that are left: polls that find only part of a burst and do not end the suppression. Without a bound, a guest whose
/// bursts vary or have become shorter would wait for a poll each time.
#[derive(Debug)]
pub(crate) struct EarlyPolls {
    /// Those that are left, counted in complete bursts.
    earned: u8,
}

impl EarlyPolls {
    /// As many as can be saved.
    pub(crate) const fn new() -> Self {
        Self { earned: MOST_EARLY_POLLS * BURSTS_PER_POLL }
    }

    /// A burst was complete.
    pub(crate) fn earn(&mut self) {
        self.earned = (self.earned + 1).min(MOST_EARLY_POLLS * BURSTS_PER_POLL);
    }

    /// Use one. False: none is left.
    pub(crate) const fn spend(&mut self) -> bool {
        let spends = self.earned >= BURSTS_PER_POLL;
        if spends {
            self.earned -= BURSTS_PER_POLL;
        }
        spends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_is_forgotten_after_two_windows() {
        let mut most = MostOutstanding::new();
        assert_eq!(most.sleep(9), 9);
        let sleeps = (0..).take_while(|_| most.sleep(3) == 9).count();
        assert!((usize::from(WINDOW)..2 * usize::from(WINDOW)).contains(&sleeps), "{sleeps}");
        most.raise(7);
        assert_eq!(most.sleep(3), 7);
    }

    #[test]
    fn early_polls_are_earned_and_saved_up_to_a_bound() {
        let mut polls = EarlyPolls::new();
        let spent = |polls: &mut EarlyPolls| (0..100).take_while(|_| polls.spend()).count();
        assert_eq!(spent(&mut polls), usize::from(MOST_EARLY_POLLS));
        (0..BURSTS_PER_POLL - 1).for_each(|_| polls.earn());
        assert!(!polls.spend());
        polls.earn();
        assert_eq!(spent(&mut polls), 1);
        (0..1000).for_each(|_| polls.earn());
        assert_eq!(spent(&mut polls), usize::from(MOST_EARLY_POLLS));
    }
}
