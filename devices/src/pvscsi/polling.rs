//! Polling of the request ring in place of kicks, for a driver whose kicks block it.
//!
//! A kick blocks if the virtual CPU waits until the owner of the device has replied to it (a vfio-user client that posts no writes). Such a
//! kick costs several thread switches, and a fast disk completes the request before the driver can put in the next one. The device then
//! never sees more than one request outstanding. Therefore, after a kick that blocked, the device suppresses all kicks and polls the ring
//! every [`INTERVAL`], for as long as polls find several requests. A driver with one request at a time never puts in a second one between
//! two polls: the device asks it for kicks again, and waits for more and more of them before it tries to poll again.

use std::time::Duration;

/// Time between two polls, to which the host adds the timer slack of the thread (50 us without a setting). A kick that blocks takes about
/// as long.
const INTERVAL: Duration = Duration::from_micros(50);
/// Requests that a poll has to find for polling to pay off.
const MIN_FOUND: u32 = 2;
/// Polling ends after so many polls in a row that find fewer. More than one: a driver takes some time between two batches.
const MAX_POOR_POLLS: u8 = 3;
/// Bounds of the back-off after polling has ended, in kicks that block. It doubles each time, and each poll that finds enough requests
/// halves it.
const MIN_BACKOFF: u16 = 16;
const MAX_BACKOFF: u16 = 256;

/// Whether the device polls, and whether it may begin to.
#[derive(Debug)]
pub(super) struct Polling {
    /// A kick has blocked the driver since the device slept last.
    kick_blocked: bool,
    /// The device polls, and all kicks are suppressed.
    active: bool,
    /// Requests taken since the last poll.
    taken: u32,
    /// Polls in a row that found fewer than [`MIN_FOUND`].
    poor: u8,
    /// Number of blocking kicks that do not begin polling: those that are left, and those after the next end of polling.
    backoff: u16,
    next_backoff: u16,
}

impl Polling {
    pub(super) const fn new() -> Self {
        Self { kick_blocked: false, active: false, taken: 0, poor: 0, backoff: 0, next_backoff: MIN_BACKOFF }
    }

    /// The driver was blocked by a kick.
    pub(super) const fn blocked(&mut self) {
        self.kick_blocked = true;
    }

    /// So many requests were taken from the ring.
    #[inline]
    pub(super) fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
    }

    /// Before each sleep. `Some`: kicks are suppressed, and the next poll is due after this time. `due`: the time of a poll has come.
    pub(super) fn before_sleep(&mut self, due: bool) -> Option<Duration> {
        let blocked = std::mem::take(&mut self.kick_blocked);
        if !self.active {
            if !blocked {
                return None;
            }
            if self.backoff > 0 {
                self.backoff -= 1;
                return None;
            }
            (self.active, self.poor, self.taken) = (true, 0, 0);
        } else if due {
            let taken = std::mem::take(&mut self.taken);
            if taken >= MIN_FOUND {
                (self.poor, self.next_backoff) = (0, self.next_backoff / 2);
            } else {
                self.poor += 1;
            }
            if self.poor == MAX_POOR_POLLS {
                self.active = false;
                self.backoff = self.next_backoff;
                self.next_backoff = (2 * self.next_backoff).clamp(MIN_BACKOFF, MAX_BACKOFF);
                return None;
            }
        }
        Some(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of polls that find `found` requests each until the device asks for kicks again; 100 at the most.
    fn polls(polling: &mut Polling, found: u32) -> u32 {
        (0..100)
            .find(|_| {
                polling.taken(found);
                polling.before_sleep(true).is_none()
            })
            .unwrap_or(100)
    }

    /// Number of kicks that block until the device polls.
    fn kicks(polling: &mut Polling) -> u32 {
        let kick = |polling: &mut Polling| {
            polling.taken(1);
            polling.blocked();
            polling.before_sleep(false).is_some()
        };
        (1..).find(|_| kick(polling)).unwrap_or(0)
    }

    #[test]
    fn one_request_at_a_time_doubles_the_backoff() {
        let mut state = Polling::new();
        let mut before_each = Vec::new();
        for _ in 0..9 {
            before_each.push(kicks(&mut state));
            assert_eq!(polls(&mut state, 1), u32::from(MAX_POOR_POLLS) - 1);
        }
        assert_eq!(before_each, [1, 17, 33, 65, 129, 257, 257, 257, 257]);
        // Several at a time end that.
        assert_eq!(kicks(&mut state), 257);
        assert_eq!(polls(&mut state, 2), 100);
        assert_eq!(polls(&mut state, 0), u32::from(MAX_POOR_POLLS) - 1);
        assert_eq!(kicks(&mut state), 1);
    }

    #[test]
    fn a_pause_between_two_batches_is_allowed() {
        let mut state = Polling::new();
        kicks(&mut state);
        for found in [10, 0, 0, 10, 1, 0, 2, 1, 1] {
            state.taken(found);
            assert_eq!(state.before_sleep(true), Some(INTERVAL), "{found}");
            assert_eq!(
                state.before_sleep(false),
                Some(INTERVAL),
                "a wake-up before the interval is over is no poll"
            );
        }
        assert_eq!(state.before_sleep(true), None);
    }

    #[test]
    fn kicks_that_do_not_block_start_no_polling() {
        let mut state = Polling::new();
        state.taken(32);
        assert_eq!(state.before_sleep(false), None);
        assert_eq!(state.before_sleep(true), None);
    }
}
