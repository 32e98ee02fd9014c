//! A guest that keeps many requests outstanding signals few of them, and none waits long. A guest that keeps few outstanding signals each.

use std::time::Duration;

use super::*;
use crate::kick_suppression::POLL_IDLE;

const PACE: Duration = Duration::from_micros(1);

/// What happened while a guest made its requests.
#[derive(Debug, Default)]
struct Played {
    requests: u64,
    signals: u64,
    polls: u64,
    /// The longest time that a request was in the ring.
    longest: Duration,
}

/// Run the device's thread until it sleeps. Returns its deadline.
fn serve(guest: &mut Guest) -> Option<Time> {
    for _ in 0..100 {
        match guest.device.before_sleep(guest.now) {
            Sleep::No => guest.device.on_completions(guest.now),
            Sleep::Until(time) => return Some(time),
            Sleep::Forever => return None,
        }
    }
    panic!("never sleeps");
}

/// A guest that keeps `depth` requests outstanding: in each [`PACE`] it reads a completion and puts the next request in. When it has read
/// all completions, it sleeps until it is signalled.
fn play(guest: &mut Guest, depth: u64, steps: u32) -> Played {
    let mut played = Played::default();
    let mut poll = serve(guest);
    let (mut ready, mut waits_since, mut awake) = (depth, None, true);
    let memory = guest.memory.clone();
    for _ in 0..steps {
        guest.now = guest.now.after(PACE);
        let mut served = false;
        let rings = guest.rings.get_mut(&1).unwrap();
        if ready == 0 && awake {
            rings.set(&memory, 1, MASK, 1);
            if let Some((received, next)) = rings.peek(&memory) {
                assert_eq!(received.end(), (1, 0, 512));
                rings.release(&memory, next);
                ready = 1;
            } else {
                rings.set(&memory, 1, MASK, 0);
                awake = rings.peek(&memory).is_some();
            }
        }
        if ready > 0 {
            ready -= 1;
            let packet = transfer_at(played.requests, transfer(false, 0, 0, 1), DATA);
            assert!(rings.put(&memory, &packet));
            played.requests += 1;
            waits_since.get_or_insert(guest.now);
        }
        if std::mem::take(&mut rings.signal) {
            played.signals += 1;
            guest.device.on_doorbell(0, guest.now);
            served = true;
        } else if poll.is_some_and(|poll| guest.now >= poll) {
            played.polls += 1;
            guest.device.on_completions(guest.now);
            served = true;
        }
        if served {
            poll = serve(guest);
            let waited = waits_since.take().map_or(Duration::ZERO, |since| guest.now.since(since));
            played.longest = played.longest.max(waited);
        }
        awake |= guest.flags(0) != 0;
        assert!(awake || ready > 0 || poll.is_some() || waits_since.is_none(), "both sleep");
    }
    // All are answered.
    ready = guest.run_all(1).len() as u64;
    assert!(ready <= depth, "{ready} of {depth}");
    played
}

#[test]
fn few_of_many_requests_are_signalled_and_none_waits_long() {
    for depth in [16, 32] {
        let mut guest = Guest::new();
        play(&mut guest, depth, 2000);
        let played = play(&mut guest, depth, 20_000);
        let Played { requests, signals, polls, longest } = played;
        assert!(requests > 10_000, "{depth}: {played:?}");
        assert!(signals * depth < 2 * requests, "{depth}: {played:?}");
        assert!((signals + polls) * depth < 5 * requests, "{depth}: {played:?}");
        assert!(longest <= POLL_IDLE + PACE, "{depth}: {played:?}");
    }
}

#[test]
fn few_requests_are_signalled_each_also_after_many() {
    for depth in [1, 4, 7] {
        for mut guest in [Guest::new(), after_many()] {
            let first = play(&mut guest, depth, 2000);
            assert!(first.longest <= POLL_IDLE + PACE, "{depth}: {first:?}");
            let Played { polls, longest, .. } = play(&mut guest, depth, 2000);
            assert_eq!((polls, longest), (0, Duration::ZERO), "{depth}");
        }
    }
}

fn after_many() -> Guest {
    let mut guest = Guest::new();
    assert!(play(&mut guest, 32, 2000).polls > 0);
    guest
}

/// Both with many requests in flight, and with more requests of a burst to come.
#[test]
fn other_events_do_not_put_the_poll_off() {
    for in_flight in [true, false] {
        let mut guest = after_many();
        guest.hold.set(in_flight);
        let count = if in_flight { 16 } else { 1 };
        (0..count).for_each(|n| assert!(guest.put(1, &transfer_at(n, transfer(false, 0, 0, 1), DATA))));
        let poll = serve(&mut guest).expect("signals are suppressed");
        assert_eq!(guest.rings[&1].get(&guest.memory, 0, MASK), 1);
        for _ in 0..5 {
            guest.now = guest.now.after(poll.since(guest.now) / 2);
            guest.post(&[3, 0]);
            guest.received();
            assert_eq!(guest.device.before_sleep(guest.now), Sleep::Until(poll), "{in_flight}");
        }
        // An event after the deadline does not cancel the poll, either, until the ring is served.
        guest.now = poll.after(PACE);
        assert_eq!(guest.device.before_sleep(guest.now), Sleep::Until(poll));
        let requests = guest.device.stats().requests;
        assert!(guest.put(1, &transfer_at(count, transfer(false, 0, 0, 1), DATA)));
        assert_eq!(guest.device.before_sleep(guest.now), Sleep::No, "it has come without a signal");
        guest.device.on_completions(guest.now);
        assert_eq!(guest.device.stats().requests, requests + 1);
    }
}
