//! Interrupts: line and vectors, the guest's suppression, and signals that moderation holds back.

use std::time::Duration;

use super::*;
use crate::device::Sleep;
use crate::testing::Random;

const WITHOUT_EVENT_INDEX: u64 = !Features::RING_EVENT_IDX.bits();

fn held(features: u64, policy: Policy) -> Guest {
    let mut guest = Guest::held(Config { coalescing: Coalescing::policy(policy), ..Config::default() });
    guest.enable_msix();
    guest.bring_up(features, 64);
    guest
}

/// Make this many flushes available. The disk completes them at once unless it is held.
fn flushes(guest: &mut Guest, queue: u16, count: u64) {
    for n in 0..count {
        guest.request(queue, n, VIRTIO_BLK_T_FLUSH, 0, &[]);
    }
    guest.kick(queue);
}

/// Read completions, and set the event index to the next one, as drivers do.
fn read_and_arm(guest: &mut Guest, queue: u16) -> usize {
    let count = guest.completions(queue).len();
    let next = guest.rings[usize::from(queue)].used;
    guest.set_used_event(queue, next);
    count
}

#[test]
fn the_line_is_up_until_isr_is_read() {
    let mut guest = Guest::new();
    flushes(&mut guest, 0, 3);
    assert!(guest.counts.line());
    assert_eq!(guest.read(ISR, 1), 1);
    assert!(!guest.counts.line());
    assert_eq!(guest.read(ISR, 1), 0);
    assert_eq!(guest.counts.messages(), 0);
    assert_eq!(guest.device.stats().interrupts, 1);
}

#[test]
fn each_queue_has_its_vector() {
    let mut guest = Guest::held(Config { queues: 2, ..batch() });
    guest.enable_msix();
    guest.bring_up(WITHOUT_EVENT_INDEX, 64);
    for queue in [0, 1, 1, 0] {
        flushes(&mut guest, queue, 1);
        assert_eq!(guest.counts.vectors(), [u32::from(queue) + 1]);
    }
    // Both queues have the same vector.
    guest.write(QUEUE_SELECT, 2, 0);
    guest.write(QUEUE_MSIX_VECTOR, 2, 2);
    flushes(&mut guest, 0, 1);
    flushes(&mut guest, 1, 1);
    assert_eq!(guest.counts.vectors(), [2, 2]);
    // The queue has no vector.
    guest.write(QUEUE_SELECT, 2, 0);
    guest.write(QUEUE_MSIX_VECTOR, 2, VIRTIO_MSI_NO_VECTOR.into());
    flushes(&mut guest, 0, 1);
    assert!(guest.counts.vectors().is_empty());
    assert!(!guest.counts.line());
    assert_eq!(guest.read(ISR, 1), 0);
    // The vector of the configuration.
    guest.put(1, &[reads(REQUESTS, 16)]);
    guest.write(CONFIG_MSIX_VECTOR, 2, 0);
    guest.kick(1);
    assert_eq!(guest.counts.vectors(), [0]);
    assert!(guest.status().contains(DeviceStatus::DEVICE_NEEDS_RESET));
}

#[test]
fn policies_differ_in_signals() {
    for features in [ALL, WITHOUT_EVENT_INDEX] {
        let mut guest = held(features, Policy::Batch);
        flushes(&mut guest, 0, 16);
        assert_eq!(guest.counts.messages(), 1);
        assert_eq!(read_and_arm(&mut guest, 0), 16);
        guest.device.set_coalescing(Coalescing::policy(Policy::Off));
        assert_eq!(guest.counts.messages(), 0);
        flushes(&mut guest, 0, 16);
        // Each completion signals. With the event index, only the completion at that index does.
        let expected = if features == ALL { 1 } else { 16 };
        assert_eq!(guest.counts.messages(), expected);
    }
}

#[test]
fn the_flag_says_no() {
    let mut guest = held(WITHOUT_EVENT_INDEX, Policy::Batch);
    let flags = GuestAddress(guest.rings_at(0) + DRIVER);
    guest.memory.write_obj(VIRTQ_AVAIL_F_NO_INTERRUPT, flags).unwrap();
    flushes(&mut guest, 0, 8);
    assert_eq!(guest.counts.messages(), 0);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    guest.memory.write_obj(0u16, flags).unwrap();
    flushes(&mut guest, 0, 1);
    assert_eq!(guest.counts.messages(), 1);
}

#[test]
fn the_event_index_says_when() {
    let mut guest = held(ALL, Policy::Batch);
    guest.set_used_event(0, 5);
    for n in 1..=12 {
        flushes(&mut guest, 0, 1);
        // The sixth completion is entry 5.
        assert_eq!(guest.counts.messages(), u32::from(n == 6), "{n}");
    }
    // Across the wrap of the index.
    for _ in 0..0x10010 / 16 {
        flushes(&mut guest, 0, 16);
        assert_eq!(read_and_arm(&mut guest, 0) % 4, 0);
    }
    assert_eq!(guest.counts.messages(), 0x10010 / 16 - 1);
}

/// The disk holds some requests, and others complete one at a time, at a high rate, until `oio` holds signals back.
fn until_held_back(guest: &mut Guest) {
    guest.hold.set(true);
    for n in 0..40 {
        guest.put(0, &[reads(REQUESTS + 64 * n, 16), writes(REQUESTS + 64 * n + 32, 1)]);
        guest.header(n, VIRTIO_BLK_T_FLUSH, 0);
    }
    guest.kick(0);
    for _ in 0..40_000 {
        one_more(guest);
        if guest.counts.messages() == 0 {
            return;
        }
        guest.set_used_event(0, guest.rings[0].used);
    }
    panic!("nothing is held back");
}

/// 10 us later, one request completes at once. The guest reads the completion and leaves its event index unchanged.
fn one_more(guest: &mut Guest) {
    guest.now.0 += 10_000;
    guest.request(0, 50, 99, 0, &[]);
    guest.kick(0);
    assert_eq!(guest.completions(0).len(), 1);
}

/// The device has no deadline, apart from one poll for requests without a notification.
fn nothing_is_held_back(guest: &mut Guest, now: Time) {
    let messages = guest.counts.messages();
    if let Sleep::Until(time) = guest.device.before_sleep(now) {
        guest.device.on_completions(time);
    }
    assert_eq!(guest.device.before_sleep(now), Sleep::Forever);
    assert_eq!(guest.counts.messages(), messages);
}

#[test]
fn what_is_held_back_has_a_backstop() {
    for features in [ALL, WITHOUT_EVENT_INDEX] {
        let mut guest = held(features, Policy::OioIops);
        until_held_back(&mut guest);
        let Sleep::Until(deadline) = guest.device.before_sleep(guest.now) else { panic!("no deadline") };
        assert!(deadline <= guest.now.after(Duration::from_millis(1)));
        guest.device.on_completions(Time(deadline.0 - 1));
        assert_eq!(guest.counts.messages(), 0);
        guest.device.on_completions(deadline);
        assert_eq!(guest.counts.messages(), 1);
        nothing_is_held_back(&mut guest, deadline);
        // The last completion always signals.
        guest.set_used_event(0, guest.rings[0].used);
        guest.hold.set(false);
        guest.device.on_completions(deadline);
        assert_eq!((guest.completions(0).len(), guest.counts.messages()), (40, 1));
    }
}

/// Rule 1: completions for which the guest wants no signal have no deadline.
#[test]
fn what_was_read_meanwhile_is_not_signalled() {
    let mut guest = held(ALL, Policy::OioIops);
    until_held_back(&mut guest);
    let Sleep::Until(deadline) = guest.device.before_sleep(guest.now) else { panic!("no deadline") };
    guest.set_used_event(0, guest.rings[0].used);
    guest.device.on_completions(guest.now);
    let now = guest.now;
    nothing_is_held_back(&mut guest, now);
    guest.device.on_completions(deadline);
    assert_eq!(guest.counts.messages(), 0);
}

/// Requests that wait in another queue complete by another vector. They do not count as outstanding for this one.
#[test]
fn a_busy_queue_does_not_delay_another() {
    let coalescing = Coalescing::policy(Policy::Oio);
    let mut guest = Guest::held(Config { queues: 2, coalescing, ..Config::default() });
    guest.enable_msix();
    // Longer than an epoch.
    for round in 0..400 {
        guest.now.0 += 1_000_000;
        guest.hold.set(true);
        guest.set_used_event(0, guest.rings[0].used);
        guest.request(0, 0, VIRTIO_BLK_T_FLUSH, 0, &[]);
        guest.kick(0);
        for request in 1..=20 {
            guest.request(1, request, VIRTIO_BLK_T_FLUSH, 0, &[]);
        }
        guest.hold.set(false);
        guest.counts.vectors();
        guest.device.on_completions(guest.now);
        assert!(guest.counts.vectors().contains(&1), "round {round}");
        assert_eq!((guest.completions(0).len(), guest.completions(1).len()), (1, 20));
    }
}

#[test]
fn what_is_held_back_when_vectors_change_goes_out_by_the_new_one() {
    let mut guest = held(ALL, Policy::OioIops);
    until_held_back(&mut guest);
    guest.write(QUEUE_SELECT, 2, 0);
    guest.write(QUEUE_MSIX_VECTOR, 2, 0);
    guest.counts.vectors();
    let Sleep::Until(deadline) = guest.device.before_sleep(guest.now) else { panic!("no deadline") };
    assert!(deadline <= guest.now.after(Duration::from_millis(1)));
    guest.device.on_completions(deadline);
    assert_eq!(guest.counts.vectors(), [0]);
}

/// Rule 2: a signal that the guest did not want is sent for the next completion that it wants one for.
#[test]
fn a_signal_that_was_not_wanted_is_there_for_the_first_that_is() {
    let mut guest = held(ALL, Policy::OioIops);
    until_held_back(&mut guest);
    guest.counts.messages();
    // The guest polls, for far longer than a period of moderation.
    let far = guest.rings[0].used.wrapping_add(0x7000);
    guest.set_used_event(0, far);
    (0..50).for_each(|_| one_more(&mut guest));
    assert_eq!(guest.counts.messages(), 0);
    guest.set_used_event(0, guest.rings[0].used);
    one_more(&mut guest);
    assert_eq!(guest.counts.messages(), 1);
}

/// Rule 3: a guest whose event index is a later completion is signalled at once for that one.
#[test]
fn a_guest_that_moderates_is_not_moderated_again() {
    let mut guest = held(ALL, Policy::OioIops);
    until_held_back(&mut guest);
    for _ in 0..200 {
        guest.set_used_event(0, guest.rings[0].used.wrapping_add(3));
        for n in 0..4 {
            one_more(&mut guest);
            assert_eq!(guest.counts.messages(), u32::from(n == 3));
        }
    }
}

/// Rule 4: a guest whose event index is the next completion is signalled as moderation says.
#[test]
fn a_guest_that_asks_for_the_next_is_moderated() {
    let mut guest = held(ALL, Policy::OioIops);
    until_held_back(&mut guest);
    let mut signals = 0;
    for _ in 0..1000 {
        one_more(&mut guest);
        let sent = guest.counts.messages();
        signals += sent;
        // An interrupt makes the guest read completions and set its event index.
        if sent > 0 {
            guest.set_used_event(0, guest.rings[0].used);
        }
    }
    assert!((100..700).contains(&signals), "{signals} of 1000");
}

/// A guest that sleeps until it is signalled, with random loads, event indices and policies: a completion for which it wants a signal never
/// waits longer than the backstop.
#[test]
fn nobody_sleeps_forever() {
    for seed in 1..=40 {
        let mut random = Random::new(seed);
        let policy = random.policy();
        let mut guest = held(if seed % 4 == 0 { WITHOUT_EVENT_INDEX } else { ALL }, policy);
        let mut asked = 0u16;
        for _ in 0..2000 {
            guest.hold.set(random.below(3) > 0);
            let outstanding = guest.rings[0].next_desc.wrapping_sub(guest.rings[0].used.wrapping_mul(2));
            let free = u64::from((64u16.saturating_sub(outstanding)) / 2);
            let count = random.below(9).min(free);
            flushes(&mut guest, 0, count);
            guest.now.0 += random.below(200_000);
            let mut told = guest.counts.messages() > 0;
            // Sleep as the owner's thread does.
            for _ in 0..3 {
                match guest.device.before_sleep(guest.now) {
                    Sleep::Until(deadline) => {
                        assert!(deadline <= guest.now.after(Duration::from_millis(1)));
                        guest.now = guest.now.max(deadline);
                    }
                    Sleep::No => {}
                    Sleep::Forever => break,
                }
                guest.device.on_completions(guest.now);
                told |= guest.counts.messages() > 0;
            }
            let posted = guest.used_index(0).wrapping_sub(guest.rings[0].used);
            let wanted = if guest.accepted & Features::RING_EVENT_IDX.bits() == 0 {
                posted > 0
            } else {
                asked.wrapping_sub(guest.rings[0].used) < posted
            };
            assert!(told || !wanted, "seed {seed}: {posted} posted, asked for {asked}");
            if told || random.below(4) == 0 {
                guest.completions(0);
                asked = guest.rings[0].used.wrapping_add(random.below(3) as u16 * random.below(5) as u16);
                guest.set_used_event(0, asked);
            }
        }
    }
}

/// Notifications are wanted only while the device's thread sleeps.
#[test]
fn the_guest_notifies_who_sleeps() {
    let mut guest = held(ALL, Policy::Batch);
    let event = GuestAddress(guest.rings_at(0) + DEVICE + 4 + 8 * 64);
    flushes(&mut guest, 0, 5);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    assert_eq!(guest.memory.read_obj::<u16>(event).unwrap(), 5);
    // A request without a notification came before the event index was written.
    flushes(&mut guest, 0, 1);
    guest.request(0, 0, VIRTIO_BLK_T_FLUSH, 0, &[]);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(0).len(), 7);

    let mut guest = held(WITHOUT_EVENT_INDEX, Policy::Batch);
    let flags = GuestAddress(guest.rings_at(0) + DEVICE);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    flushes(&mut guest, 0, 5);
    assert_eq!(guest.memory.read_obj::<u16>(flags).unwrap(), 1);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::Forever);
    assert_eq!(guest.memory.read_obj::<u16>(flags).unwrap(), 0);
    // A request came before the flag was cleared: the thread does not sleep.
    flushes(&mut guest, 0, 1);
    guest.request(0, 0, VIRTIO_BLK_T_FLUSH, 0, &[]);
    assert_eq!(guest.device.before_sleep(guest.now), Sleep::No);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.memory.read_obj::<u16>(flags).unwrap(), 1);
    assert_eq!(guest.completions(0).len(), 7);
}
