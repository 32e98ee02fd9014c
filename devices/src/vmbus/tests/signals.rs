//! When each side signals the other: no wake-up is lost, and none is sent that the rule does not require.

use super::*;
use crate::testing::Random;

fn read(transaction: u64) -> Vec<u64> {
    transfer_at(transaction, transfer(false, 0, 0, 1), DATA)
}

/// Complete requests together, without a poll of the ring in between.
fn complete(guest: &mut Guest, count: u64) {
    guest.hold.set(true);
    for transaction in 0..count {
        assert!(guest.put(1, &read(transaction)));
    }
    guest.hold.set(false);
    guest.device.on_completions(guest.now);
}

#[test]
fn a_ring_that_becomes_not_empty_is_signalled_once() {
    let mut guest = Guest::up(config(Policy::Off));
    guest.flags(0);
    let before = guest.device.stats().interrupts;
    complete(&mut guest, 5);
    complete(&mut guest, 5);
    assert_eq!((guest.flags(0), guest.device.stats().interrupts - before), (2, 1));
    assert_eq!(guest.take(1).len(), 10);
    complete(&mut guest, 1);
    assert_eq!((guest.flags(0), guest.device.stats().interrupts - before), (2, 2));
}

#[test]
fn a_guest_that_reads_the_ring_anyway_is_not_signalled() {
    let mut guest = Guest::up(config(Policy::Off));
    let rings = guest.rings[&1].clone();
    guest.flags(0);
    rings.set(&guest.memory, 1, MASK, 1);
    complete(&mut guest, 5);
    assert_eq!((guest.flags(0), guest.take(1).len()), (0, 5));
    rings.set(&guest.memory, 1, MASK, 0);
    complete(&mut guest, 1);
    assert_eq!(guest.flags(0), 2);
}

/// With eight or more requests in flight, completions without a signal are covered by a later signal, or by the backstop.
#[test]
fn a_signal_that_is_held_back_is_owed() {
    let coalescing = Coalescing { epoch: std::time::Duration::ZERO, ..Coalescing::policy(Policy::Oio) };
    let mut guest = Guest::up(Config { coalescing, ..config(Policy::Oio) });
    let busy = Hold::default();
    let at = Address { target: 7, lun: 0 };
    guest.device.hot_plug().unwrap().attach(at, unit(&busy)).unwrap();
    guest.run_all(1);
    guest.clear_unit_attention(&[7, 0, 3]);
    // With requests that stay in flight, a share of the other completions signals.
    busy.set(true);
    for n in 0..64 {
        let packet = transfer_at(1000 + n, transfer(false, 7, 0, 1), DATA);
        assert!(guest.put(1, &packet));
    }
    guest.flags(0);
    let (mut owed, mut signalled) = (0, 0);
    for n in 0..64 {
        guest.now.0 += 1000;
        assert!(guest.put(1, &read(n)));
        guest.device.on_completions(guest.now);
        if guest.flags(0) != 0 {
            signalled += 1;
            assert!(!guest.take(1).is_empty());
            continue;
        }
        owed += 1;
        // The signal is owed until the backstop at the latest.
        let Sleep::Until(deadline) = guest.device.before_sleep(guest.now) else { panic!("it is owed") };
        assert!(deadline > guest.now && deadline <= guest.now.after(coalescing.backstop));
        if n % 5 == 0 {
            guest.now = deadline;
            guest.device.on_completions(guest.now);
            assert_eq!(guest.flags(0), 2);
            assert!(!guest.take(1).is_empty());
        } else if n % 5 == 1 {
            // The guest reads the ring for another reason: nothing is owed any more.
            assert!(!guest.take(1).is_empty());
            guest.now.0 += 10_000_000;
            guest.device.on_completions(guest.now);
            assert_eq!(guest.flags(0), 0);
        }
    }
    assert!(owed > 10 && signalled > 1, "{owed} {signalled}");
    // Another policy: what the old one held back is signalled first.
    assert!(guest.put(1, &read(1)));
    guest.device.set_coalescing(Coalescing::policy(Policy::Off));
    guest.device.on_completions(guest.now);
    assert!(guest.flags(0) != 0 || guest.take(1).is_empty());
    busy.set(false);
    assert!(guest.run_all(1).len() >= 64);
}

#[test]
fn a_full_ring_waits_for_space_and_the_guest_signals_it() {
    for policy in [Policy::Off, Policy::Batch, Policy::OioIops] {
        let mut guest = Guest::up(config(policy));
        let rings = guest.rings[&1].clone();
        let mut sent = 0;
        while rings.get(&guest.memory, 1, PENDING) == 0 {
            assert!(guest.put(1, &in_band(sent, srb(0, &[0; 6], 2, 0))));
            sent += 1;
            assert!(sent < 200);
        }
        // The host takes no more, and sleeps.
        while guest.put(1, &in_band(sent, srb(0, &[0; 6], 2, 0))) {
            sent += 1;
        }
        assert_ne!(guest.device.before_sleep(guest.now), Sleep::No);
        // One packet of space is enough for one; the guest signals it by itself.
        let mut next = 0;
        while next < sent {
            let Some((received, end)) = guest.rings[&1].peek(&guest.memory) else { break };
            assert_eq!((received.transaction, received.end()), (next, (1, 0, 0)));
            next += 1;
            let memory = guest.memory.clone();
            guest.rings.get_mut(&1).unwrap().release(&memory, end);
            guest.kick(1);
        }
        assert_eq!(next, sent, "{policy:?}");
        assert_eq!(rings.get(&guest.memory, 1, PENDING), 0);
        guest.run_all(1);
        guest.check_io(1);
    }
}

/// A guest that does not signal the space is found by a poll, which other events do not put off.
#[test]
fn a_full_ring_is_polled_whatever_else_happens() {
    let mut guest = Guest::new();
    let rings = guest.rings[&1].clone();
    for n in 0..200 {
        if rings.get(&guest.memory, 1, PENDING) == 0 {
            assert!(guest.put(1, &in_band(n, srb(0, &[0; 6], 2, 0))));
        }
    }
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("the ring is full") };
    for _ in 0..5 {
        guest.now = guest.now.after(poll.since(guest.now) / 2);
        guest.post(&[3, 0]);
        guest.received();
        assert_eq!(guest.device.before_sleep(guest.now), Sleep::Until(poll));
    }
    // The guest has read all packets, without a signal.
    let memory = guest.memory.clone();
    let rings = guest.rings.get_mut(&1).unwrap();
    while let Some((_, next)) = rings.peek(&memory) {
        rings.release(&memory, next);
    }
    rings.signal = false;
    guest.now = poll;
    guest.device.on_completions(guest.now);
    assert!(!guest.take(1).is_empty());
    // No packet waits any more, so there is no deadline.
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
}

/// The guest waits for space in its own ring, and is signalled when there is enough.
#[test]
fn space_that_the_guest_waits_for_is_signalled() {
    let mut guest = Guest::up(Config { tasks: 1, ..config(Policy::Off) });
    let rings = guest.rings[&1].clone();
    // The device does not serve the ring, because it is not signalled.
    for transaction in 0.. {
        let words = in_band(transaction, srb(0, &[0; 6], 2, 0));
        let put = guest.rings.get_mut(&1).unwrap().put(&guest.memory, &words);
        if !put {
            break;
        }
    }
    rings.set(&guest.memory, 1, MASK, 1);
    rings.set(&guest.memory, 0, PENDING, 88);
    guest.flags(0);
    guest.device.on_doorbell(0, guest.now);
    assert_eq!(guest.flags(0), 2);
    rings.set(&guest.memory, 0, PENDING, 0);
    guest.run_all(1);
    // There was enough space before: no signal.
    rings.set(&guest.memory, 0, PENDING, 88);
    guest.run(1, &in_band(1, srb(0, &[0; 6], 2, 0)));
    assert_eq!(guest.flags(0), 0);
}

#[test]
fn a_packet_that_came_while_signals_were_masked_is_found_before_the_sleep() {
    let mut guest = Guest::new();
    guest.hold.set(true);
    assert!(guest.put(1, &read(1)));
    guest.device.on_completions(guest.now);
    let rings = guest.rings.get_mut(&1).unwrap();
    assert_eq!(rings.get(&guest.memory, 0, MASK), 1);
    assert!(rings.put(&guest.memory, &read(2)) && !rings.signal);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.hold.set(false);
    assert_eq!(guest.run_all(1).len(), 2);
}

#[test]
fn many_requests_in_flight_suppress_signals_until_a_poll() {
    let mut guest = Guest::new();
    let rings = guest.rings[&1].clone();
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    assert_eq!(rings.get(&guest.memory, 0, MASK), 0);
    guest.hold.set(true);
    (0..16).for_each(|n| assert!(guest.put(1, &read(n))));
    assert!(guest.run_all(1).is_empty());
    let Sleep::Until(poll) = guest.device.before_sleep(guest.now) else { panic!("signals are suppressed") };
    assert_eq!(rings.get(&guest.memory, 0, MASK), 1);
    let doorbells = guest.device.stats().doorbells;
    assert!(guest.put(1, &read(16)));
    assert_eq!(guest.device.stats().doorbells, doorbells);
    guest.now = poll;
    guest.device.on_completions(guest.now);
    assert_eq!(guest.device.stats().requests, 17 + 2, "the poll finds it");
    guest.hold.set(false);
    assert_eq!(guest.run_all(1).len(), 17);
    assert_eq!(rings.get(&guest.memory, 0, MASK), 0);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
}

/// Steps of both sides in random order. The guest sleeps when it has found its ring empty with the mask clear, and then reads only after a
/// signal. The device sleeps as `before_sleep` says. Whenever both sleep, every packet was answered and read.
#[test]
fn no_wake_up_is_lost_in_any_order_of_steps() {
    for (seed, policy) in
        (1..=24).zip([Policy::Off, Policy::Batch, Policy::Oio, Policy::OioIops].into_iter().cycle())
    {
        let mut random = Random::new(seed);
        let mut guest = Guest::up(Config { tasks: [1, 3, 256][seed as usize % 3], ..config(policy) });
        let (mut sent, mut taken, mut slept, mut sending) = (0u64, 0u64, 0, true);
        let (mut awake, mut held, mut device_sleeps, mut read_index) = (true, false, None, None);
        guest.flags(0);
        for _ in 0..20_000 {
            guest.now.0 += random.below(20_000);
            match random.below(10) {
                // The guest puts a packet in; its doorbell wakes the device.
                0..3 if sending && sent - taken < 200 => {
                    let rings = guest.rings.get_mut(&1).unwrap();
                    if rings.put(&guest.memory, &read(sent)) {
                        sent += 1;
                    }
                    if std::mem::take(&mut rings.signal) {
                        guest.device.on_doorbell(0, guest.now);
                        device_sleeps = None;
                    }
                }
                // The guest reads a packet, and frees the space later.
                3..6 if awake => {
                    let memory = guest.memory.clone();
                    let rings = guest.rings.get_mut(&1).unwrap();
                    rings.set(&memory, 1, MASK, 1);
                    let from = read_index.unwrap_or(rings.read);
                    let ahead = Rings { read: from, ..rings.clone() };
                    if let Some((received, next)) = ahead.peek(&memory) {
                        assert_eq!(received.end(), (1, 0, 512));
                        taken += 1;
                        read_index = Some(next);
                    }
                }
                // The guest publishes its read index, clears the mask, and checks the ring once more.
                6 if awake => {
                    let memory = guest.memory.clone();
                    let rings = guest.rings.get_mut(&1).unwrap();
                    if let Some(next) = read_index.take() {
                        rings.release(&memory, next);
                    }
                    rings.set(&memory, 1, MASK, 0);
                    awake = rings.peek(&memory).is_some();
                    if std::mem::take(&mut rings.signal) {
                        guest.device.on_doorbell(0, guest.now);
                        device_sleeps = None;
                    }
                }
                7 => {
                    held = random.below(2) == 0;
                    guest.hold.set(held);
                }
                // The device's turn: a completion has woken it, or its deadline has passed.
                8 if device_sleeps.is_none() => {
                    for _ in 0..16 {
                        guest.device.on_completions(guest.now);
                        device_sleeps = match guest.device.before_sleep(guest.now) {
                            Sleep::No => None,
                            Sleep::Until(time) => Some(time),
                            Sleep::Forever => Some(Time(u64::MAX)),
                        };
                        if device_sleeps.is_some() {
                            break;
                        }
                    }
                }
                9 if random.below(20) == 0 => sending = !sending,
                _ => {}
            }
            awake |= guest.flags(0) != 0;
            // The disk's descriptor is readable as long as it has completions.
            let has_completions = !held && guest.device.engine.in_flight.count() > 0;
            if has_completions || device_sleeps.is_some_and(|time| guest.now >= time) {
                device_sleeps = None;
            }
            if !awake && device_sleeps == Some(Time(u64::MAX)) && !held {
                slept += 1;
                assert_eq!(taken, sent, "seed {seed}: both sleep");
            }
        }
        assert!(sent > 1000 && slept > 10, "seed {seed}: {sent} sent, {slept} times asleep");
    }
}
