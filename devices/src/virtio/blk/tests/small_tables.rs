//! Fewer task numbers than requests, a disk whose I/O does not complete, and resets at random.

use super::*;
use crate::testing::broken_queues;
use crate::testing::small_tables::{self, Initiator, Manage, Outcome};

impl Initiator for Guest {
    /// Each request has three of the 64 descriptors.
    const SLOTS: u64 = 21;
    const RESET_WAITS: bool = false;

    fn hold(&self) -> &Hold {
        &self.hold
    }

    /// `unit` is the index of a queue.
    fn start(&mut self, slot: u64, unit: usize, write: bool, data: u64) {
        let request_type = if write { VIRTIO_BLK_T_OUT } else { VIRTIO_BLK_T_IN };
        let len = small_tables::LEN as u32;
        let data = if write { reads(data, len) } else { writes(data, len) };
        let status = writes(REQUESTS + 64 * slot + 32, 1);
        let pieces = [self.header(slot, request_type, slot * 4), data, status];
        self.put_at(unit as u16, 3 * slot as u16, &pieces);
    }

    fn serve(&mut self) -> Vec<(u64, Outcome)> {
        let slots = Self::serve(self, &[0, 1]).into_iter().map(|head| u64::from(head / 3));
        slots
            .map(|slot| {
                let outcome = match self.status_of(slot) {
                    0 => Outcome::Good,
                    1 => Outcome::Faulted,
                    _ => Outcome::Other,
                };
                (slot, outcome)
            })
            .collect()
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

/// Completions that `uses_memory` reaps raise no event: the requests that wait for their task numbers are started all the same.
#[test]
fn requests_that_wait_for_a_task_go_on_after_an_unmap() {
    for (tasks, count) in [(1, 4), (2, 6), (4, 21)] {
        let mut guest = Guest::held(Config { queues: 2, tasks, ..batch() });
        guest.hold.set(true);
        for slot in 0..count {
            Initiator::start(&mut guest, slot, 0, false, DATA + 4096 * slot);
        }
        assert_eq!(Initiator::serve(&mut guest), []);
        guest.hold.set(false);
        let mut ended = 0;
        for _ in 0..count {
            let unused = u64::MAX - 4096..u64::MAX;
            guest.device.uses_memory(std::slice::from_ref(&unused), guest.now);
            ended += guest.completions(0).len() as u64;
            if guest.device.before_sleep(guest.now) != crate::device::Sleep::No {
                break;
            }
            guest.device.on_completions(guest.now);
            ended += guest.completions(0).len() as u64;
        }
        assert_eq!(ended, count, "{tasks}");
    }
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
    Initiator::start(&mut guest, 0, 0, false, DATA);
    assert!(uses(&mut guest));
    guest.device.refuse_memory(std::slice::from_ref(&ring));
    Initiator::start(&mut guest, 1, 0, false, DATA + 4096);
    assert_eq!(Initiator::serve(&mut guest), []);
    assert_eq!(guest.in_flight(), 1);
    guest.hold.set(false);
    assert!(!uses(&mut guest));
    assert_eq!(guest.completions(0).len(), 1);
    guest.device.memory_replaced(guest.now);
    assert_eq!(Initiator::serve(&mut guest), [(1, Outcome::Good)]);
}
