//! Fewer task numbers than requests, a disk whose I/O does not complete, and resets at random.

use super::*;
use crate::testing::initiator::{Initiator, LEN, Manage, Outcome, at};
use crate::testing::{broken_queues, small_tables};

impl Initiator for Guest {
    /// Each request has three of the 64 descriptors.
    const SLOTS: u64 = 21;
    const RESET_WAITS: bool = false;

    fn hold(&self) -> &Hold {
        &self.hold
    }

    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time) {
        (&mut self.device, &mut self.now)
    }

    /// `unit` is the index of a queue.
    fn start(&mut self, slot: u64, unit: usize, write: bool) {
        let request_type = if write { VIRTIO_BLK_T_OUT } else { VIRTIO_BLK_T_IN };
        let data = if write { reads(at(slot), LEN as u32) } else { writes(at(slot), LEN as u32) };
        let status = writes(REQUESTS + 64 * slot + 32, 1);
        let pieces = [self.header(slot, request_type, slot * 4), data, status];
        self.put_at(unit as u16, 3 * slot as u16, &pieces);
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        let slots = [0, 1].into_iter().flat_map(|queue| self.completions(queue));
        let slots: Vec<_> = slots.map(|(head, _)| u64::from(head / 3)).collect();
        let outcome = |slot| match self.status_of(slot) {
            0 => Outcome::Good,
            1 => Outcome::Faulted,
            _ => Outcome::Other,
        };
        slots.into_iter().map(|slot| (slot, outcome(slot))).collect()
    }

    /// A block device has no task management.
    fn manage(&mut self, _manage: Manage) {}

    fn begin_reset(&mut self) {
        self.write(DEVICE_STATUS, 1, 0);
    }

    fn reset_is_over(&mut self) -> bool {
        self.status().is_empty()
    }

    fn bring_up(&mut self) {
        self.bring_up(ALL, 64);
    }
}

#[test]
fn broken_queues() {
    broken_queues::play(|| Guest::held(Config { queues: 2, ..batch() }), false);
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        let mut guest = Guest::held(Config { queues: 2, tasks, ..batch() });
        small_tables::play(&mut guest, tasks.into(), 4000);
    }
}

#[test]
fn requests_that_wait_for_a_task_go_on_after_an_unmap() {
    small_tables::unmap_while_requests_wait(|tasks| Guest::held(Config { queues: 2, tasks, ..batch() }));
}

/// A guest that keeps sending requests does not keep the memory of its rings in use.
#[test]
fn rings_that_are_to_be_unmapped_come_to_an_end() {
    let mut guest = Guest::held(Config { queues: 2, ..batch() });
    guest.hold.set(true);
    let ring = RINGS..RINGS + 1;
    let uses = |guest: &mut Guest| guest.device.uses_memory(std::slice::from_ref(&ring), guest.now);
    assert!(!uses(&mut guest));
    // The data of the requests are in the other region; their status bytes are in that of the rings.
    guest.start(0, 0, false);
    assert!(uses(&mut guest));
    guest.device.refuse_memory(std::slice::from_ref(&ring));
    guest.start(1, 0, false);
    assert_eq!(guest.serve(), []);
    assert_eq!(guest.in_flight(), 1);
    guest.hold.set(false);
    assert!(!uses(&mut guest));
    assert_eq!(guest.completions(0).len(), 1);
    guest.device.memory_replaced(guest.now);
    assert_eq!(guest.serve(), [(1, Outcome::Good)]);
}
