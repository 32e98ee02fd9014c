//! The family "small tables": a driver that keeps to the rules, in front of an adapter with fewer task numbers than it has requests,
//! over disks whose I/O does not complete at times. It aborts and resets at random.
//!
//! What must hold:
//! - A request ends once, by a completion or by the reset of the adapter. After that, nothing is written to its memory.
//! - When the disks complete their I/O again, every request ends.
//! - Nothing blocks the thread, except a reset if [`Initiator::RESET_WAITS`].

use super::initiator::{Initiator, LEN, Manage, Outcome, SLOT, at};
use super::{Hold, Owner, Random, unit};
use crate::device::Sleep;
use crate::scsi::Address;
use crate::time::Time;

#[derive(Default)]
struct Slot {
    /// The unit that its request is for.
    busy: Option<usize>,
    /// The content of its memory while it has no request.
    pattern: Vec<u8>,
}

/// Play this number of steps, then let the disks complete.
pub(crate) fn play<I: Initiator>(guest: &mut I, seed: u64, steps: u32) {
    let mut random = Random::new(seed);
    let mut slots: Vec<Slot> = (0..I::SLOTS).map(|_| Slot::default()).collect();
    (0..).zip(&mut slots).for_each(|(number, slot)| free(guest, number, slot, &mut random));
    let (mut ended, mut resets, mut waits) = (0, 0, 0);
    for _ in 0..steps {
        let number = random.below(I::SLOTS);
        let slot = &mut slots[number as usize];
        match (random.below(100), slot.busy) {
            (0..60, None) => {
                assert!(
                    guest.bytes(at(number), SLOT) == slot.pattern,
                    "slot {number} was written after its end"
                );
                let unit = random.below(2) as usize;
                slot.busy = Some(unit);
                guest.start(number, unit, random.below(2) == 0);
            }
            (60..80, _) => guest.hold().set(random.below(3) != 0),
            (80..88, Some(unit)) => guest.manage(Manage::Abort { slot: number, unit }),
            (88..91, _) => guest.manage(Manage::ResetUnit(random.below(2) as usize)),
            (91..93, _) => guest.manage(Manage::ResetBus),
            (93..95, _) => {
                resets += 1;
                reset(guest, &mut random);
                (0..).zip(&mut slots).for_each(|(number, slot)| free(guest, number, slot, &mut random));
                // The disks complete the requests that they still have.
                guest.hold().set(false);
                assert!(guest.serve().is_empty());
                for (number, slot) in (0..).zip(&slots) {
                    assert!(guest.bytes(at(number), SLOT) == slot.pattern, "written after the reset");
                }
                if I::RESET_WAITS {
                    waits = guest.hold().waits();
                }
                guest.bring_up();
            }
            _ => {}
        }
        ended += take_ended(guest, &mut slots, &mut random);
        assert_eq!(guest.hold().waits(), waits, "the thread was blocked");
    }
    guest.hold().set(false);
    for _ in 0..100 {
        ended += take_ended(guest, &mut slots, &mut random);
    }
    for (number, slot) in (0..).zip(&slots) {
        assert_eq!(slot.busy, None, "request {number} has not ended");
        assert!(guest.bytes(at(number), SLOT) == slot.pattern, "slot {number} was written after its end");
    }
    assert!(
        ended > steps / 50 && resets > steps / 100,
        "the test lost its guest: {ended} ended, {resets} resets"
    );
}

/// Detach the first unit while its disk does not complete its requests: nothing waits for them, and they end when the disk
/// completes them.
pub(crate) fn detach_stalled<I: Initiator>(guest: &mut I, address: Address) {
    guest.clear_attention([0, 1]);
    guest.hold().set(true);
    (0..5).for_each(|slot| guest.start(slot, usize::from(slot == 4), false));
    assert_eq!(guest.serve(), []);
    let (device, _) = guest.device();
    let fds = device.completion_events().len();
    let now = Time(1 << 40);
    assert!(device.hot_plug().unwrap().detach(address, now));
    assert!(!device.hot_plug().unwrap().detach(address, now));
    assert_eq!((guest.serve(), guest.hold().waits()), (vec![], 0), "nothing waits");
    let (device, _) = guest.device();
    assert!(device.hot_plug().unwrap().detaching(address));
    assert_eq!(device.completion_events().len(), fds);
    assert_eq!(guest.run_slot(5, 0, false), Outcome::Other, "there is no such unit");
    guest.hold().set(false);
    let mut ended = guest.serve();
    ended.sort_unstable_by_key(|(slot, _)| *slot);
    let outcomes = [Outcome::Other, Outcome::Other, Outcome::Other, Outcome::Other, Outcome::Good];
    assert_eq!(ended, (0..).zip(outcomes).collect::<Vec<_>>());
    let (device, _) = guest.device();
    assert!(!device.hot_plug().unwrap().detaching(address));
    assert_eq!(device.completion_events().len(), fds - 1);
}

/// A unit is detached while its requests wait in the backlog, and no disk completes anything: they are answered without another event.
/// `address` is that of the second unit.
pub(crate) fn detach_with_backlog<I: Initiator>(guest: &mut I, address: Address) {
    const COUNT: u64 = 8;
    guest.clear_attention([0, 1]);
    guest.hold().set(true);
    (0..COUNT).for_each(|slot| guest.start(slot, 1, false));
    assert_eq!(guest.serve(), []);
    let (device, now) = guest.device();
    assert!(device.hot_plug().unwrap().detach(address, *now));
    if device.before_sleep(*now) == Sleep::No {
        device.on_completions(*now);
    }
    let mut ended = guest.ended();
    assert!(!ended.is_empty() && ended.len() < COUNT as usize, "{ended:?}");
    guest.hold().set(false);
    ended.extend(guest.serve());
    ended.sort_unstable_by_key(|(slot, _)| *slot);
    assert_eq!(ended, (0..COUNT).map(|slot| (slot, Outcome::Other)).collect::<Vec<_>>());
}

/// The first unit's disk holds `stalled` requests. Meanwhile requests to the unit `other` complete: it gets a disk of its own, at
/// `address`.
pub(crate) fn stall_one_disk<I: Initiator>(guest: &mut I, stalled: u64, other: usize, address: Address) {
    let (device, now) = guest.device();
    let bus = device.hot_plug().unwrap();
    bus.detach(address, *now);
    bus.attach(address, unit(&Hold::default())).unwrap();
    guest.clear_attention([0, other]);
    guest.hold().set(true);
    (0..stalled).for_each(|slot| guest.start(slot, 0, false));
    for round in 0..10 {
        let data = guest.fill(at(stalled), LEN as usize, round);
        assert_eq!(guest.run_slot(stalled, other, true), Outcome::Good);
        guest.fill(at(stalled), LEN as usize, !round);
        assert_eq!(guest.run_slot(stalled, other, false), Outcome::Good);
        assert_eq!(guest.bytes(at(stalled), LEN as usize), data);
    }
    assert_eq!(guest.hold().waits(), 0, "the thread was blocked");
    guest.hold().set(false);
    let mut ended = Vec::new();
    (0..stalled).for_each(|_| ended.extend(guest.serve()));
    assert_all_good(ended, stalled);
}

/// Completions that [`uses_memory`](crate::device::IoDevice::uses_memory) reaps raise no event: requests that wait for their task numbers,
/// in the driver's queue or the backlog, are started all the same. `make`: a guest with this many task numbers.
pub(crate) fn unmap_while_requests_wait<I: Initiator>(make: impl Fn(u32) -> I) {
    for (tasks, count) in [(1, 4), (2, 6), (4, I::SLOTS)] {
        for units in [1, 2] {
            let mut guest = make(tasks);
            guest.clear_attention([0, 1]);
            guest.hold().set(true);
            (0..count).for_each(|slot| guest.start(slot, (slot % units) as usize, false));
            assert_eq!(guest.serve(), []);
            guest.hold().set(false);
            let mut ended = Vec::new();
            for _ in 0..count {
                let (device, now) = guest.device();
                let unused = u64::MAX - 4096..u64::MAX;
                device.uses_memory(std::slice::from_ref(&unused), *now);
                ended.extend(guest.ended());
                let (device, now) = guest.device();
                if device.before_sleep(*now) != Sleep::No {
                    break;
                }
                device.on_completions(*now);
                ended.extend(guest.ended());
            }
            assert_all_good(ended, count);
        }
    }
}

/// These are all requests of the slots below `count`, each once.
#[track_caller]
fn assert_all_good(mut ended: Vec<(u64, Outcome)>, count: u64) {
    ended.sort_unstable_by_key(|(slot, _)| *slot);
    assert_eq!(ended, (0..count).map(|slot| (slot, Outcome::Good)).collect::<Vec<_>>());
}

/// The slot has no request: the driver uses its memory for something else.
fn free(guest: &impl Owner, number: u64, slot: &mut Slot, random: &mut Random) {
    slot.busy = None;
    slot.pattern = guest.fill(at(number), SLOT, random.next() as u8);
}

fn take_ended<I: Initiator>(guest: &mut I, slots: &mut [Slot], random: &mut Random) -> u32 {
    let ended = guest.serve();
    for &(number, _) in &ended {
        let slot = &mut slots[number as usize];
        assert!(slot.busy.is_some(), "request {number} has ended twice");
        free(guest, number, slot, random);
    }
    ended.len() as u32
}

/// Reset the adapter. Until the reset is over, no completion may be posted.
fn reset<I: Initiator>(guest: &mut I, random: &mut Random) {
    guest.begin_reset();
    for round in 0.. {
        assert!(guest.serve().is_empty());
        if guest.reset_is_over() {
            return;
        }
        assert!(round < 20, "the reset does not end");
        if random.below(4) == 0 || round > 10 {
            guest.hold().set(false);
        }
    }
}
