//! With many requests in flight the guest's signals are suppressed, and no request waits long. With few in flight each is signalled.

use std::time::Duration;

use super::*;
use crate::testing::Random;

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

#[test]
fn few_requests_in_flight_are_signalled() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    for n in 0..7 {
        let doorbells = guest.device.stats().doorbells;
        assert!(guest.put(1, &transfer_at(n, transfer(false, 0, 0, 1), DATA)));
        assert_eq!(guest.device.stats().doorbells, doorbells + 1);
        assert_eq!(serve(&mut guest), None);
    }
}

#[test]
fn other_events_do_not_put_the_poll_off() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    let masked = (0..8).find_map(|n| {
        assert!(guest.put(1, &transfer_at(n, transfer(false, 0, 0, 1), DATA)));
        serve(&mut guest)
    });
    let poll = masked.expect("signals are suppressed");
    assert_eq!(guest.rings[&1].get(&guest.memory, 0, MASK), 1);
    for _ in 0..5 {
        guest.now = guest.now.after(poll.since(guest.now) / 2);
        guest.post(&[3, 0]);
        guest.received();
        assert_eq!(guest.device.before_sleep(guest.now), Sleep::Until(poll));
    }
    // An event after the deadline does not cancel the poll, either, until the ring is served.
    guest.now = poll.after(Duration::from_micros(1));
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Until(poll));
    let requests = guest.device.stats().requests;
    assert!(guest.put(1, &transfer_at(8, transfer(false, 0, 0, 1), DATA)));
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No, "it has come without a signal");
    guest.device.on_completions(guest.now);
    assert_eq!(guest.device.stats().requests, requests + 1);
}

/// With random loads, no request waits for longer than a millisecond.
#[test]
fn no_request_is_left() {
    for seed in 1..=10 {
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
