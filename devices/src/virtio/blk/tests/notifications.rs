//! For which requests the guest notifies the device.

use std::time::Duration;

use super::*;
use crate::device::Sleep;
use crate::testing::Random;

/// The available index for which the device wants a notification.
fn event(guest: &Guest, queue: u16) -> u16 {
    let size = u64::from(guest.rings[usize::from(queue)].size);
    guest.memory.read_obj(GuestAddress(guest.rings_at(queue) + DEVICE + 4 + 8 * size)).unwrap()
}

/// Make flushes available, with the heads of the requests that completed longest ago, of `depth`. Notify the device if it wants that. True:
/// it was notified.
fn put(guest: &mut Guest, queue: u16, depth: u16, count: u16) -> bool {
    let old = guest.rings[usize::from(queue)].avail;
    for _ in 0..count {
        let slot = guest.rings[usize::from(queue)].avail % depth;
        guest.rings[usize::from(queue)].next_desc = 2 * slot;
        let request = u64::from(queue) * 100 + u64::from(slot);
        guest.request(queue, request, VIRTIO_BLK_T_FLUSH, 0, &[]);
    }
    let new = guest.rings[usize::from(queue)].avail;
    let wanted = crate::virtio::suppression::need_event(event(guest, queue), new, old);
    if wanted {
        guest.kick(queue);
    }
    wanted
}

/// Run the owner's loop until the device sleeps.
fn sleep(guest: &mut Guest) -> Sleep {
    for _ in 0..10 {
        match guest.device.before_sleep(guest.now) {
            Sleep::No => guest.device.on_completions(guest.now),
            sleep => return sleep,
        }
    }
    panic!("the device does not sleep")
}

#[test]
fn of_many_requests_one_is_notified_of() {
    let mut guest = Guest::new();
    let mut notified = 0;
    for _ in 0..100 {
        sleep(&mut guest);
        notified = (0..32).filter(|_| put(&mut guest, 0, 32, 1)).count();
        guest.device.on_completions(guest.now);
        assert_eq!(guest.completions(0).len(), 32);
        guest.now.0 += 10_000;
    }
    assert_eq!(notified, 1);

    // Fewer requests than expected wait for the poll. From then on the guest notifies the device of each.
    let Sleep::Until(time) = sleep(&mut guest) else { panic!("no time to look at") };
    assert_eq!(time, guest.now.after(Duration::from_micros(100)));
    assert!(!put(&mut guest, 0, 32, 20));
    assert_eq!(guest.used_index(0), guest.rings[0].used);
    guest.now = time;
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions(0).len(), 20);
    for _ in 0..50 {
        assert_eq!(sleep(&mut guest), Sleep::Forever);
        assert!(put(&mut guest, 0, 32, 1));
        assert_eq!(guest.completions(0).len(), 1);
    }
}

#[test]
fn a_guest_with_one_request_at_a_time_notifies_of_each() {
    for depth in [1, 7] {
        let mut guest = Guest::new();
        for _ in 0..200 {
            assert_eq!(sleep(&mut guest), Sleep::Forever);
            assert!(put(&mut guest, 0, depth, depth));
            assert_eq!(guest.completions(0).len(), usize::from(depth));
        }
    }
}

/// Completions of other requests make the device poll before its deadline. A guest that waits for each of its requests must seldom wait for
/// such a poll.
#[test]
fn a_request_beside_slow_ones_seldom_waits_for_them() {
    let mut guest = Guest::held(batch());
    let mut left = 0;
    for _ in 0..400 {
        guest.hold.set(true);
        put(&mut guest, 0, 32, 10);
        guest.kick(0);
        sleep(&mut guest);
        let notified = put(&mut guest, 0, 32, 1);
        left += u32::from(!notified);
        // One of the ten requests completes.
        guest.now.0 += 300_000;
        guest.device.on_completions(guest.now);
        guest.hold.set(false);
        guest.device.on_completions(guest.now);
        assert_eq!(guest.completions(0).len(), 11);
    }
    assert!((1..=20).contains(&left), "{left} of 400");
}

/// With random loads on two queues, no request waits for longer than a millisecond.
#[test]
fn no_request_is_left() {
    for seed in 1..=40 {
        let mut random = Random::new(seed);
        let mut guest = Guest::held(Config { queues: 2, ..batch() });
        let (mut unnotified, mut taken) = (0, 0);
        for _ in 0..1000 {
            guest.hold.set(random.below(4) == 0);
            let queue = random.below(2) as u16;
            let depth = random.pick(&[1, 2, 9, 16, 30]);
            let ring = guest.rings[usize::from(queue)];
            let free = depth.min(32u16.saturating_sub(ring.avail.wrapping_sub(ring.used)));
            let before = guest.device.stats().requests;
            let count = random.below(u64::from(free) + 1) as u16;
            unnotified += u32::from(!put(&mut guest, queue, 32, count) && count > 0);
            let (limit, all) = (guest.now.after(Duration::from_millis(1)), before + u64::from(count));
            let slept = sleep(&mut guest);
            if guest.device.stats().requests < all {
                let Sleep::Until(time) = slept else { panic!("seed {seed}: a request is left") };
                assert!(time <= limit, "seed {seed}");
                guest.now = time;
                guest.device.on_completions(guest.now);
                taken += 1;
            }
            assert_eq!(guest.device.stats().requests, all, "seed {seed}");
            if random.below(3) == 0 {
                guest.hold.set(false);
                guest.device.on_completions(guest.now);
                guest.completions(0);
                guest.completions(1);
            }
            if random.below(3) > 0 {
                guest.now.0 += random.below(100_000);
                sleep(&mut guest);
            }
        }
        assert!(unnotified > 0 && taken > 0, "seed {seed}: {unnotified}, {taken}");
    }
}
