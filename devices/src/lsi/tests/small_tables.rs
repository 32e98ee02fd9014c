//! Random requests and resets with few task numbers, and with stalled disks.

use super::*;
use crate::testing::initiator::{Initiator, LEN, Manage, Outcome, at};
use crate::testing::{broken_queues, small_tables};

const TARGETS: [u8; 2] = [0, 3];
/// First context of the requests.
const FIRST: u32 = 0x100;
/// Context and frame of task management.
const MANAGEMENT: (u32, u64) = (0x00aa_0000, 200);

/// A driver that waits for the reply to task management before it sends the next one.
struct Driver {
    guest: Guest,
    managing: bool,
    resets: u32,
}

impl Owner for Driver {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.guest.memory
    }
}

impl Driver {
    fn post(&mut self, frame: u64, request: &[u8], list: &[u8]) {
        let address = FRAMES + frame * 128;
        let bytes = [request, list].concat();
        self.guest.memory.write_slice(&bytes, GuestAddress(address)).unwrap();
        self.guest.write(reg::REQUEST_FIFO, address as u32 | 3);
    }
}

impl Initiator for Driver {
    /// All credits but one.
    const SLOTS: u64 = 31;
    const RESET_WAITS: bool = false;
    const POLLS_FOR_SPACE: bool = true;

    fn hold(&self) -> &Hold {
        &self.guest.hold
    }

    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time) {
        (&mut self.guest.device, &mut self.guest.now)
    }

    fn start(&mut self, slot: u64, unit: usize, write: bool) {
        let mut request = self.guest.transfer(write, slot as u32 * 4, 4);
        request.target_id = TARGETS[unit];
        request.msg_context = (FIRST + slot as u32).into();
        self.post(slot, request.as_bytes(), &simple(LEN as u32, at(slot)));
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        let mut ended = Vec::new();
        for reply in self.guest.replies() {
            let (context, outcome) = match reply {
                Taken::Context(context) => (context, Outcome::Good),
                Taken::Frame(bytes) => {
                    let context = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                    let outcome = match u16::from_le_bytes([bytes[14], bytes[15]]) {
                        ioc_status::SUCCESS | ioc_status::SCSI_DATA_UNDERRUN => {
                            Outcome::of_scsi(bytes[12], &self.guest.bytes(SENSE, 18))
                        }
                        _ => Outcome::Other,
                    };
                    (context, outcome)
                }
            };
            if context == MANAGEMENT.0 {
                assert!(std::mem::take(&mut self.managing));
            } else {
                ended.push((u64::from(context - FIRST), outcome));
            }
        }
        ended
    }

    fn manage(&mut self, manage: Manage) {
        if std::mem::replace(&mut self.managing, true) {
            return;
        }
        let mut request = TaskMgmtRequest::new_zeroed();
        request.function = function::SCSI_TASK_MGMT;
        request.msg_context = MANAGEMENT.0.into();
        match manage {
            Manage::Abort { slot, unit } => {
                request.task_type = task_type::ABORT_TASK;
                request.target_id = TARGETS[unit];
                request.task_msg_context = (FIRST + slot as u32).into();
            }
            Manage::ResetUnit(unit) => {
                request.task_type = task_type::TARGET_RESET;
                request.target_id = TARGETS[unit];
            }
            Manage::ResetBus => request.task_type = task_type::RESET_BUS,
        }
        self.post(MANAGEMENT.1, request.as_bytes(), &[]);
    }

    fn begin_reset(&mut self) {
        self.resets += 1;
        self.managing = false;
        if self.resets.is_multiple_of(3) {
            self.guest.unlock();
            self.guest.write(reg::HOST_DIAGNOSTIC, diag::DRWE | diag::RESET_ADAPTER);
        } else {
            self.guest.write(reg::DOORBELL, u32::from(doorbell_fn::MESSAGE_UNIT_RESET) << 24);
        }
    }

    fn reset_is_over(&mut self) -> bool {
        self.guest.state() == IocState::Ready as u32
    }

    fn bring_up(&mut self) {
        self.guest.write(reg::WRITE_SEQUENCE, u32::MAX);
        self.guest.bring_up(64);
        self.guest.write(reg::INT_MASK, int::DOORBELL);
    }
}

fn driver(tasks: u32) -> Driver {
    let guest = Guest::with(tasks, Personality::Spi1030);
    let mut driver = Driver { guest, managing: false, resets: 0 };
    driver.bring_up();
    driver
}

#[test]
fn broken_queues() {
    broken_queues::play(|| driver(64), true);
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        let mut driver = driver(tasks);
        small_tables::play(&mut driver, tasks.into(), 4000);
    }
}

#[test]
fn a_unit_is_detached_while_its_disk_does_not_complete() {
    small_tables::detach_stalled(&mut driver(64), Address { target: TARGETS[0], lun: 0 });
}

#[test]
fn requests_in_the_backlog_of_a_detached_unit_are_answered() {
    small_tables::detach_with_backlog(&mut driver(4), Address { target: TARGETS[1], lun: 0 });
}

#[test]
fn a_disk_that_does_not_complete_leaves_tasks_to_the_others() {
    for tasks in [2, 4, 64] {
        let address = Address { target: TARGETS[1], lun: 0 };
        small_tables::stall_one_disk(&mut driver(tasks), 40, 1, address);
    }
}
