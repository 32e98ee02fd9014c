//! Fewer task numbers than requests, disks whose I/O does not complete, and resets at random.

use super::*;
use crate::testing::initiator::{Initiator, LEN, Manage, Outcome, at};
use crate::testing::{broken_queues, small_tables};
use crate::time::Time;

/// Two units, and the address of one that a test adds.
const UNITS: [Address; 3] = [HERE, THERE, Address { target: 5, lun: 0 }];

/// A driver that waits for the answer to a function before it sends more of them.
struct Initiating {
    guest: Guest,
    queue_size: u16,
    managing: bool,
}

impl Initiating {
    /// With so many task numbers, and this size of each of its two request queues.
    fn new(tasks: u32, queue_size: u16) -> Self {
        let guest = Guest::powered(Config { queues: 2, tasks, ..batch() });
        let mut driver = Self { guest, queue_size, managing: false };
        driver.bring_up();
        driver
    }
}

impl Owner for Initiating {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.guest.memory
    }
}

impl Initiator for Initiating {
    /// Each request has three of 64 descriptors.
    const SLOTS: u64 = 21;
    const RESET_WAITS: bool = false;

    fn hold(&self) -> &Hold {
        &self.guest.hold
    }

    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time) {
        (&mut self.guest.device, &mut self.guest.now)
    }

    fn start(&mut self, slot: u64, unit: usize, write: bool) {
        let data = if write { reads(at(slot), LEN as u32) } else { writes(at(slot), LEN as u32) };
        let cdb = transfer10(write, slot as u32 * 4, 4);
        let pieces = self.guest.pieces(slot, UNITS[unit], &cdb, &[data]);
        self.guest.put_at(FIRST + slot as u16 % 2, 3 * slot as u16, &pieces);
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        let ended = [FIRST, FIRST + 1].map(|queue| self.guest.completions(queue)).concat();
        if !self.guest.completions(CONTROL).is_empty() {
            assert!(std::mem::take(&mut self.managing));
        }
        let outcome = |slot| match self.guest.answered(slot) {
            Answered { response: 0, status, sense, .. } => Outcome::of_scsi(status, &sense),
            _ => Outcome::Other,
        };
        let slots = ended.iter().map(|(head, _)| u64::from(head / 3));
        slots.map(|slot| (slot, outcome(slot))).collect()
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
        self.guest.bring_up(ALL, self.queue_size);
    }
}

#[test]
fn broken_queues() {
    broken_queues::play(|| Initiating::new(64, 64), true);
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        small_tables::play(&mut Initiating::new(tasks, 64), tasks.into(), 4000);
    }
}

#[test]
fn requests_that_wait_for_a_task_go_on_after_an_unmap() {
    small_tables::unmap_while_requests_wait(|tasks| Initiating::new(tasks, 64));
}

#[test]
fn a_unit_is_detached_while_its_disk_does_not_complete() {
    small_tables::detach_stalled(&mut Initiating::new(64, 64), HERE);
}

#[test]
fn requests_in_the_backlog_of_a_detached_unit_are_answered() {
    small_tables::detach_with_backlog(&mut Initiating::new(4, 256), THERE);
}

#[test]
fn a_disk_that_does_not_complete_leaves_tasks_to_the_others() {
    for tasks in [2, 3, 8, 64] {
        small_tables::stall_one_disk(&mut Initiating::new(tasks, 256), 50, 1, THERE);
    }
    // With a third unit, which needs a task number of its own.
    for tasks in [3, 8, 64] {
        small_tables::stall_one_disk(&mut Initiating::new(tasks, 256), 50, 2, UNITS[2]);
    }
}
