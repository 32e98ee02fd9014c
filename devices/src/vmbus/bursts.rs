//! Forecast of a burst: a guest that keeps N requests outstanding puts in N of them one after the other, once it has read their
//! completions.
//!
//! A ring's mask is all or nothing: the guest cannot be told to signal for the last request of a burst, as by PVSCSI's threshold or
//! virtio's event index. So the first request of a burst is signalled, and starts at once. For the others the mask is set, and the device
//! polls the ring when they are due by the guest's pace: two wake-ups for a burst, in place of one for each request. A guest with few
//! requests outstanding is never masked.
//!
//! The pace is measured when a poll finds part of a burst, and assumed to be a little faster after each complete burst. If a poll finds no
//! further request of a burst, the burst is over: the mask is cleared, and the caller backs off.

use std::time::Duration;

use crate::bursts::{EarlyPolls, MostOutstanding};
use crate::kick_suppression::{MIN_REQUESTS, POLL_IDLE};
use crate::time::Time;

/// If fewer requests than these are expected, the guest signals each.
const MIN_MISSING: u32 = 4;
/// A burst is complete if at most `1 / UNCERTAIN` of the expected requests are missing.
const UNCERTAIN: u32 = 8;
/// Bounds of the time to a poll.
const SHORTEST: Duration = Duration::from_micros(8);
const LONGEST: Duration = POLL_IDLE;
/// The pace before it is measured: time for each request.
const FIRST_PACE: Duration = Duration::from_micros(1);
/// Each complete burst shortens the time for each request by `1 / (1 << FASTER)` of it.
const FASTER: u32 = 5;

/// What is known of a guest's bursts.
#[derive(Debug)]
pub(super) struct Bursts {
    most: MostOutstanding,
    /// Requests taken since the last sleep.
    taken: u32,
    /// Time for each request of a burst.
    pace: Duration,
    /// Polls that find part of a burst, and are followed by another.
    extensions: EarlyPolls,
    burst: Option<Burst>,
}

/// A burst whose first request has come.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Requests after the first, and those of them that were taken.
    expected: u32,
    taken: u32,
    since: Time,
    poll: Time,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forecast {
    /// The guest is to signal the next request.
    Signals,
    /// A burst has ended as expected. The guest is to signal the next request.
    Complete,
    /// More requests of a burst are due at this time.
    Due(Time),
    /// The guest has put in fewer than expected.
    StoppedShort,
}

impl Bursts {
    pub(super) const fn new() -> Self {
        let (most, extensions) = (MostOutstanding::new(), EarlyPolls::new());
        Self { most, taken: 0, pace: FIRST_PACE, extensions, burst: None }
    }

    /// So many requests were taken from the ring.
    #[inline]
    pub(super) const fn taken(&mut self, count: u32) {
        self.taken = self.taken.saturating_add(count);
    }

    /// The guest's signals are not masked for a burst.
    pub(super) const fn stop(&mut self) {
        self.burst = None;
    }

    /// Before each sleep, after all waiting requests were taken, with `in_flight` in flight and `unread` completions in the ring.
    #[inline]
    pub(super) fn before_sleep(&mut self, in_flight: u32, unread: u32, now: Time) -> Forecast {
        let outstanding = in_flight.saturating_add(unread);
        let most = self.most.sleep(outstanding);
        let taken = std::mem::take(&mut self.taken);
        match self.burst {
            Some(burst) => self.go_on(burst, taken, now),
            None if taken == 0 || most < MIN_REQUESTS => Forecast::Signals,
            None => self.begin(most.saturating_sub(outstanding), unread, taken, now),
        }
    }

    /// Requests were taken that the guest has signalled: decide whether they begin a burst. `free`: how many more the guest usually has
    /// outstanding.
    fn begin(&mut self, free: u32, unread: u32, taken: u32, now: Time) -> Forecast {
        // The guest puts in as many requests as are missing from its usual number. If none is missing, it puts in one for each completion
        // that it has not read.
        let expected = match free {
            0 => unread.saturating_sub(taken),
            missing => missing,
        };
        if expected < MIN_MISSING {
            return Forecast::Signals;
        }
        let poll = self.due(expected, now);
        self.burst = Some(Burst { expected, taken: 0, since: now, poll });
        Forecast::Due(poll)
    }

    fn go_on(&mut self, mut burst: Burst, taken: u32, now: Time) -> Forecast {
        burst.taken = burst.taken.saturating_add(taken);
        let missing = burst.expected.saturating_sub(burst.taken);
        if missing <= burst.expected / UNCERTAIN {
            self.burst = None;
            self.pace -= self.pace / (1 << FASTER);
            self.extensions.earn();
            return Forecast::Complete;
        }
        if now >= burst.poll {
            if taken == 0 || !self.extensions.spend() {
                self.burst = None;
                return Forecast::StoppedShort;
            }
            self.pace = (now.since(burst.since) / burst.taken).min(LONGEST);
            burst.poll = self.due(missing, now);
        }
        self.burst = Some(burst);
        Forecast::Due(burst.poll)
    }

    fn due(&self, requests: u32, now: Time) -> Time {
        now.after((self.pace * requests).clamp(SHORTEST, LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bursts::{MOST_EARLY_POLLS, WINDOW};

    const PACE: Duration = Duration::from_micros(2);

    /// What happened while a guest made its requests.
    #[derive(Debug, Default)]
    struct Played {
        requests: u32,
        wake_ups: u32,
        /// Of [`PACE`], in which the guest had nothing to do.
        idle: u32,
    }

    /// A guest that keeps `depth` requests outstanding: it reads a completion and puts the next request in each [`PACE`]. It signals where
    /// the ring was empty, unless that is masked. The device completes requests when it finds them.
    fn play(bursts: &mut Bursts, depth: u32, steps: u32) -> Played {
        let mut played = Played::default();
        let (mut now, mut unread, mut ring, mut forecast) = (Time(1 << 40), depth, 0, Forecast::Signals);
        for _ in 0..steps {
            now = now.after(PACE);
            let mut wakes = matches!(forecast, Forecast::Due(poll) if now >= poll);
            if unread > 0 {
                (unread, ring) = (unread - 1, ring + 1);
                wakes |= ring == 1 && !matches!(forecast, Forecast::Due(_));
            } else {
                played.idle += 1;
            }
            assert!(unread > 0 || wakes || matches!(forecast, Forecast::Due(_)), "both sleep");
            if wakes {
                played.wake_ups += 1;
                played.requests += ring;
                unread += ring;
                bursts.taken(std::mem::take(&mut ring));
                forecast = bursts.before_sleep(0, unread, now);
                if let Forecast::Due(poll) = forecast {
                    assert!(poll > now && poll <= now.after(LONGEST), "{forecast:?} at {now:?}");
                }
            }
        }
        played
    }

    #[test]
    fn a_burst_takes_few_wake_ups_and_no_long_wait() {
        for depth in [8, 16, 32, 100] {
            let mut bursts = Bursts::new();
            play(&mut bursts, depth, 1000);
            bursts.stop();
            let played = play(&mut bursts, depth, 10_000);
            let Played { requests, wake_ups, idle } = played;
            assert!(wake_ups * depth.min(32) < 5 * requests, "{depth}: {played:?}");
            assert!(idle < 3000 && requests > 7000, "{depth}: {played:?}");
        }
        for depth in 1..MIN_REQUESTS {
            let Played { requests, wake_ups, idle } = play(&mut Bursts::new(), depth, 1000);
            assert_eq!((requests, wake_ups, idle), (1000, 1000, 0), "all are signalled");
        }
    }

    #[test]
    fn a_burst_that_stops_is_over_at_the_next_poll() {
        let mut bursts = Bursts::new();
        play(&mut bursts, 32, 1000);
        bursts.stop();
        let now = Time(1 << 40);
        bursts.taken(1);
        let Forecast::Due(poll) = bursts.before_sleep(0, 32, now) else { panic!("a burst is expected") };
        // Woken for another reason, without a request: the poll is not put off.
        assert_eq!(bursts.before_sleep(0, 32, now.after(SHORTEST / 2)), Forecast::Due(poll));
        assert_eq!(bursts.before_sleep(0, 32, poll), Forecast::StoppedShort);
        assert_eq!(bursts.before_sleep(0, 32, poll), Forecast::Signals);
        // Nor does one that puts in a request for each poll wait for all of the burst.
        bursts.taken(1);
        let (mut polls, mut forecast) = (0, bursts.before_sleep(0, 1, poll));
        while let Forecast::Due(time) = forecast {
            polls += 1;
            bursts.taken(1);
            forecast = bursts.before_sleep(0, 1, time);
        }
        assert_eq!(forecast, Forecast::StoppedShort);
        assert!((1..=1 + MOST_EARLY_POLLS).contains(&polls), "{polls}");
    }

    #[test]
    fn a_guest_that_has_become_one_at_a_time_is_not_masked() {
        let mut bursts = Bursts::new();
        play(&mut bursts, 32, 1000);
        bursts.stop();
        let mut masked = 0;
        for n in 0..1000 {
            bursts.taken(1);
            if let Forecast::Due(time) = bursts.before_sleep(0, 1, Time(n << 20)) {
                masked += 1;
                assert_eq!(bursts.before_sleep(0, 0, time), Forecast::StoppedShort);
            }
        }
        assert!(masked <= 2 * u32::from(WINDOW), "{masked}");
    }
}
