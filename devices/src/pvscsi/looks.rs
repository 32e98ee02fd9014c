//! Looking at the request ring by time instead of asking for kicks, for a driver whose kicks block it.
//!
//! Where a virtual CPU waits until the owner of the device has answered a kick (a vfio-user client that posts no writes), a kick costs
//! several thread switches, and a fast disk has completed the request before the driver can put in the next one. So the device never sees more than one
//! request outstanding, and cannot forecast a burst. Instead, after a kick that blocked, the driver is asked for no kicks, and the ring is looked at every
//! [`INTERVAL`]. That goes on as long as looks find several requests. A driver with one request at a time never puts in a second one between two looks: it
//! is asked for kicks again, for more and more of them before the next try.

use std::time::Duration;

/// Between two looks, to which the host adds the timer slack of the thread (50 us without a setting). A kick that blocks takes about as long.
const INTERVAL: Duration = Duration::from_micros(50);
/// Requests that a look has to find to be worth it.
const WORTH: u32 = 2;
/// So many looks in a row that find fewer end it: a driver takes some time between two batches.
const POOR_LOOKS: u8 = 3;
/// For how many kicks no look is tried after that, at least and at most. The number doubles each time, and looks that are worth it halve it.
const FEWEST_KICKS: u16 = 16;
const MOST_KICKS: u16 = 256;

/// Whether the device looks, and whether it may try to.
#[derive(Debug)]
pub(super) struct Looks {
    /// A kick has blocked the driver since the device slept last.
    blocked: bool,
    /// The driver is asked for no kicks.
    looking: bool,
    /// Requests taken since the last look.
    taken: u32,
    /// Looks in a row that were not worth it.
    poor: u8,
    /// Kicks until the next try, and how many there will be after the next failure.
    kicks: u16,
    penalty: u16,
}

impl Looks {
    pub(super) const fn new() -> Self {
        Self { blocked: false, looking: false, taken: 0, poor: 0, kicks: 0, penalty: FEWEST_KICKS }
    }

    /// The driver was blocked by a kick.
    pub(super) fn blocked(&mut self) {
        self.blocked = true;
    }

    /// So many requests were taken from the ring.
    #[inline]
    pub(super) fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
    }

    /// Before each sleep: `Some`: no kicks, and this long until the next look. `late`: the time of a look has come.
    pub(super) fn before_sleep(&mut self, late: bool) -> Option<Duration> {
        let blocked = std::mem::take(&mut self.blocked);
        if !self.looking {
            if !blocked {
                return None;
            }
            if self.kicks > 0 {
                self.kicks -= 1;
                return None;
            }
            (self.looking, self.poor, self.taken) = (true, 0, 0);
        } else if late {
            let taken = std::mem::take(&mut self.taken);
            if taken >= WORTH {
                (self.poor, self.penalty) = (0, self.penalty / 2);
            } else {
                self.poor += 1;
            }
            if self.poor == POOR_LOOKS {
                self.looking = false;
                self.kicks = self.penalty;
                self.penalty = (2 * self.penalty).clamp(FEWEST_KICKS, MOST_KICKS);
                return None;
            }
        }
        Some(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks that find so many requests each, until the device asks for kicks again: their number, 100 at the most.
    fn looks(looks: &mut Looks, found: u32) -> u32 {
        (0..100)
            .find(|_| {
                looks.taken(found);
                looks.before_sleep(true).is_none()
            })
            .unwrap_or(100)
    }

    /// Kicks that block until the device looks.
    fn kicks(looks: &mut Looks) -> u32 {
        let kick = |looks: &mut Looks| {
            looks.taken(1);
            looks.blocked();
            looks.before_sleep(false).is_some()
        };
        (1..).find(|_| kick(looks)).unwrap_or(0)
    }

    #[test]
    fn one_request_at_a_time_is_looked_for_less_and_less_often() {
        let mut state = Looks::new();
        let mut before_each = Vec::new();
        for _ in 0..9 {
            before_each.push(kicks(&mut state));
            assert_eq!(looks(&mut state, 1), u32::from(POOR_LOOKS) - 1);
        }
        assert_eq!(before_each, [1, 17, 33, 65, 129, 257, 257, 257, 257]);
        // Several at a time end that.
        assert_eq!(kicks(&mut state), 257);
        assert_eq!(looks(&mut state, 2), 100);
        assert_eq!(looks(&mut state, 0), u32::from(POOR_LOOKS) - 1);
        assert_eq!(kicks(&mut state), 1);
    }

    #[test]
    fn a_pause_between_two_batches_is_allowed() {
        let mut state = Looks::new();
        kicks(&mut state);
        for found in [10, 0, 0, 10, 1, 0, 2, 1, 1] {
            state.taken(found);
            assert_eq!(state.before_sleep(true), Some(INTERVAL), "{found}");
            assert_eq!(state.before_sleep(false), Some(INTERVAL), "what wakes the device early is no look");
        }
        assert_eq!(state.before_sleep(true), None);
    }

    #[test]
    fn kicks_that_do_not_block_are_no_reason_to_look() {
        let mut state = Looks::new();
        state.taken(32);
        assert_eq!(state.before_sleep(false), None);
        assert_eq!(state.before_sleep(true), None);
    }
}
