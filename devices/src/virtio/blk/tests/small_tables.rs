//! Fewer task numbers than requests, a disk whose I/O does not complete, and resets at random.

use super::*;
use crate::testing::broken_queues;
use crate::testing::small_tables::{self, Initiator, Manage, Outcome};

impl Initiator for Guest {
    /// Each has three descriptors of its own, of 64.
    const SLOTS: u64 = 21;
    const RESET_WAITS: bool = false;

    fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The unit is a queue.
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

    /// There is nothing but resets.
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
