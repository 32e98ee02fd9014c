//! Fewer task numbers than requests, disks whose I/O does not complete, and resets at random.

use super::*;
use crate::testing::broken_queues;
use crate::testing::small_tables::{self, Initiator, Manage, Outcome};

const UNITS: [Address; 2] = [HERE, THERE];

/// A driver that waits for the answer to a function before it sends more of them.
struct Initiating {
    guest: Guest,
    managing: bool,
}

impl Owner for Initiating {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.guest.memory
    }
}

impl Initiator for Initiating {
    /// Each request has three of the 64 descriptors.
    const SLOTS: u64 = 21;
    const RESET_WAITS: bool = false;

    fn hold(&self) -> &Hold {
        &self.guest.hold
    }

    fn start(&mut self, slot: u64, unit: usize, write: bool, data: u64) {
        let len = small_tables::LEN as u32;
        let data = if write { reads(data, len) } else { writes(data, len) };
        let cdb = transfer(write, slot as u32 * 4, 4);
        let pieces = self.guest.pieces(slot, UNITS[unit], &cdb, &[data]);
        self.guest.put_at(FIRST + slot as u16 % 2, 3 * slot as u16, &pieces);
    }

    fn serve(&mut self) -> Vec<(u64, Outcome)> {
        let ended = self.guest.serve(&[FIRST, FIRST + 1]);
        if !self.guest.completions(CONTROL).is_empty() {
            assert!(std::mem::take(&mut self.managing));
        }
        let slots = ended.iter().map(|head| u64::from(head / 3));
        slots
            .map(|slot| {
                let Answered { response, status, sense, .. } = self.guest.answered(slot);
                (slot, if response == 0 { Outcome::of_scsi(status, &sense) } else { Outcome::Other })
            })
            .collect()
    }

    fn manage(&mut self, manage: Manage) {
        if std::mem::replace(&mut self.managing, true) {
            return;
        }
        match manage {
            Manage::Abort { slot, unit } => self.guest.manage(tmf::ABORT_TASK, lun::lun(UNITS[unit]), slot),
            Manage::ResetUnit(unit) => self.guest.manage(tmf::LOGICAL_UNIT_RESET, lun::lun(UNITS[unit]), 0),
            Manage::ResetBus => self.guest.manage(tmf::I_T_NEXUS_RESET, lun::lun(UNITS[0]), 0),
        };
    }

    fn begin_reset(&mut self) {
        self.managing = false;
        self.guest.write(DEVICE_STATUS, 1, 0);
    }

    fn reset_is_over(&mut self) -> bool {
        self.guest.status().is_empty()
    }

    fn bring_up(&mut self) {
        self.guest.bring_up(ALL, 64);
    }
}

#[test]
fn broken_queues() {
    let make = || {
        let mut guest = Guest::powered(Config { queues: 2, ..batch() });
        guest.bring_up(ALL, 64);
        Initiating { guest, managing: false }
    };
    broken_queues::play(make, true);
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        let mut guest = Guest::powered(Config { queues: 2, tasks, ..batch() });
        guest.bring_up(ALL, 64);
        small_tables::play(&mut Initiating { guest, managing: false }, tasks.into(), 4000);
    }
}

/// Completions that `uses_memory` reaps raise no event: the requests that wait for their task numbers, in the ring or the backlog, are
/// started all the same.
#[test]
fn requests_that_wait_for_a_task_go_on_after_an_unmap() {
    for (tasks, count) in [(1, 4), (2, 6), (4, 21)] {
        let guest = Guest::with(ALL, Config { queues: 2, tasks, ..batch() });
        guest.hold.set(true);
        let mut driver = Initiating { guest, managing: false };
        for slot in 0..count {
            driver.start(slot, slot as usize % 2, false, DATA + 4096 * slot);
        }
        assert_eq!(driver.serve(), []);
        let mut guest = driver.guest;
        guest.hold.set(false);
        let mut ended = 0;
        for _ in 0..count {
            let unused = u64::MAX - 4096..u64::MAX;
            guest.device.uses_memory(std::slice::from_ref(&unused), guest.now);
            ended += guest.completions(FIRST).len() + guest.completions(FIRST + 1).len();
            if guest.device.before_sleep(guest.now) != Sleep::No {
                break;
            }
            guest.device.on_completions(guest.now);
            ended += guest.completions(FIRST).len() + guest.completions(FIRST + 1).len();
        }
        assert_eq!(ended as u64, count, "{tasks}");
    }
}

#[test]
fn a_unit_is_detached_while_its_disk_does_not_complete() {
    let mut guest = Guest::powered(Config { queues: 2, ..batch() });
    guest.bring_up(ALL, 64);
    let mut driver = Initiating { guest, managing: false };
    small_tables::detach_stalled(&mut driver, |driver| &mut driver.guest.device, HERE);
}
