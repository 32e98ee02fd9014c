//! A guest that keeps many requests outstanding signals few of them, and none waits long. A guest that keeps few outstanding signals each.

use std::time::Duration;

use super::*;
use crate::kick_suppression::POLL_IDLE;
use crate::testing::Random;

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
fn few_requests_are_signalled_also_after_many() {
    for depth in [1, 4, 7] {
        for mut guest in [Guest::new(), after_many()] {
            let first = play(&mut guest, depth, 2000);
            assert!(first.longest <= POLL_IDLE + PACE, "{depth}: {first:?}");
            // The device seldom expects more.
            let second = play(&mut guest, depth, 2000);
            assert!(second.polls <= 3 && second.longest <= POLL_IDLE + PACE, "{depth}: {second:?}");
        }
    }
}

fn after_many() -> Guest {
    let mut guest = Guest::new();
    assert!(play(&mut guest, 32, 2000).polls > 0);
    guest
}

/// Both with many requests in flight, and with more requests of a batch to come.
#[test]
fn other_events_do_not_put_the_poll_off() {
    for in_flight in [true, false] {
        let mut guest = after_many();
        guest.hold.set(in_flight);
        let count = 16;
        let masked = (0..count).find_map(|n| {
            assert!(guest.put(1, &transfer_at(n, transfer(false, 0, 0, 1), DATA)));
            serve(&mut guest)
        });
        let poll = masked.expect("signals are suppressed");
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

/// With random loads, no request waits for longer than a millisecond.
#[test]
fn no_request_is_left() {
    for seed in 1..=40 {
        let mut random = Random::new(seed);
        let mut guest = Guest::new();
        let mut poll = serve(&mut guest);
        let (mut sent, mut outstanding, mut unsignalled, mut polled) = (0, 0, 0, 0);
        let mut least = 1;
        for round in 0..1000 {
            guest.hold.set(random.below(8) == 0);
            if round % 100 == 0 {
                least = random.pick(&[1, 1, 9, 24]);
            }
            let count = least.max(random.pick(&[1, 2, 9, 16, 30])).min(30 - outstanding);
            let all = guest.device.stats().requests + count as u64;
            for _ in 0..count {
                guest.now.0 += random.below(10_000);
                if poll.is_some_and(|poll| guest.now >= poll) {
                    guest.device.on_completions(guest.now);
                    poll = serve(&mut guest);
                }
                let doorbells = guest.device.stats().doorbells;
                assert!(guest.put(1, &transfer_at(sent, transfer(false, 0, 0, 1), DATA)));
                sent += 1;
                if guest.device.stats().doorbells > doorbells {
                    poll = serve(&mut guest);
                } else {
                    unsignalled += 1;
                }
            }
            outstanding += count;
            let limit = guest.now.after(Duration::from_millis(1));
            while guest.device.stats().requests < all {
                let Some(time) = poll else { panic!("seed {seed}: a request is left") };
                assert!(time <= limit, "seed {seed}");
                guest.now = guest.now.max(time);
                guest.device.on_completions(guest.now);
                poll = serve(&mut guest);
                polled += 1;
            }
            if random.below(3) == 0 {
                guest.hold.set(false);
                guest.device.on_completions(guest.now);
            }
            outstanding -= guest.take(1).len();
            if random.below(3) > 0 {
                guest.now.0 += random.below(100_000);
            }
            poll = serve(&mut guest);
        }
        assert!(unsignalled > 0 && polled > 0, "seed {seed}: {unsignalled}, {polled}");
    }
}
