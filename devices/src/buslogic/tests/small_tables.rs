//! Fewer task numbers than requests, disks whose I/O does not complete, and resets at random.

use super::*;
use crate::testing::initiator::{Initiator, Manage, Outcome, at};
use crate::testing::{broken_queues, small_tables};

/// Two units, and a target without one.
const TARGETS: [u8; 3] = [0, 3, 1];
pub(super) const ABSENT: usize = 2;
/// Addresses of the slots' CCBs.
const SLOT_CCBS: u64 = 0x8_0000;
/// The slot of resets of targets.
const MANAGEMENT: u64 = 1000;

/// A driver that sends the next reset of a target after the completion of the last.
pub(super) struct Driver {
    pub(super) guest: Guest,
    managing: bool,
    resets: u32,
}

impl Owner for Driver {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.guest.memory
    }
}

const fn ccb_of(slot: u64) -> u64 {
    SLOT_CCBS + slot * 256
}

impl Driver {
    pub(super) const fn new(guest: Guest) -> Self {
        Self { guest, managing: false, resets: 0 }
    }

    fn post(&mut self, slot: u64, ccb: &Ccb) {
        self.guest.memory.write_slice(ccb.as_bytes(), GuestAddress(ccb_of(slot))).unwrap();
        self.guest.put_mailbox(ccb_of(slot), action::START);
        self.guest.ring();
    }

    /// Whether the next outgoing mailbox is free: a driver waits until it is.
    fn has_mailbox(&self) -> bool {
        self.guest.bytes(MAILBOXES + u64::from(self.guest.out_next) * 8 + 7, 1) == [action::FREE]
    }
}

impl Initiator for Driver {
    const SLOTS: u64 = 31;
    const RESET_WAITS: bool = true;
    const POLLS_FOR_SPACE: bool = true;

    fn hold(&self) -> &Hold {
        &self.guest.hold
    }

    fn device(&mut self) -> (&mut dyn IoDevice, &mut Time) {
        (&mut self.guest.device, &mut self.guest.now)
    }

    fn start(&mut self, slot: u64, unit: usize, write: bool) {
        let mut ccb = self.guest.transfer(write, slot as u32 * 4, 4);
        ccb.target = TARGETS[unit];
        ccb.sense_address = (ccb_of(slot) as u32 + 64).into();
        ccb.data_address = (at(slot) as u32).into();
        self.post(slot, &ccb);
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        let mut ended = Vec::new();
        let incoming = self.guest.incoming();
        if self.guest.line() {
            self.guest.interrupt();
            self.guest.acknowledge();
        }
        for end in incoming {
            let slot = (u64::from(end.ccb) - SLOT_CCBS) / 256;
            let outcome = match (end.code, end.adapter_status) {
                // An abort of a completed request.
                (completion::ABORT_NOT_FOUND, _) => continue,
                (_, adapter_status::NORMAL) => {
                    let sense = self.guest.bytes(ccb_of(slot) + 64, 18);
                    Outcome::of_scsi(end.target_status, &sense)
                }
                _ => Outcome::Other,
            };
            assert_eq!(outcome == Outcome::Good, end.code == completion::GOOD, "{end:?}");
            if slot == MANAGEMENT {
                assert!(std::mem::take(&mut self.managing));
            } else {
                ended.push((slot, outcome));
            }
        }
        ended
    }

    fn manage(&mut self, manage: Manage) {
        match manage {
            Manage::Abort { slot, .. } if self.has_mailbox() => {
                self.guest.put_mailbox(ccb_of(slot), action::ABORT);
                self.guest.ring();
            }
            Manage::ResetUnit(unit) if !std::mem::replace(&mut self.managing, true) => {
                let opcode = ccb_opcode::BUS_DEVICE_RESET;
                let reset = Ccb { opcode, target: TARGETS[unit], ..self.guest.ccb(&[]) };
                self.post(MANAGEMENT, &reset);
            }
            Manage::ResetBus => self.guest.write(reg::STATUS_CONTROL, Control::RESET_BUS.bits()),
            Manage::Abort { .. } | Manage::ResetUnit(_) => {}
        }
    }

    /// The driver considers its requests ended when the write returns.
    fn begin_reset(&mut self) {
        self.resets += 1;
        self.managing = false;
        let control = if self.resets.is_multiple_of(3) { Control::HARD_RESET } else { Control::SOFT_RESET };
        self.guest.reset(control);
        let size = usize::from(self.guest.count) * 16;
        self.guest.memory.write_slice(&vec![0; size], GuestAddress(MAILBOXES)).unwrap();
        (self.guest.out_next, self.guest.in_next) = (0, 0);
    }

    fn reset_is_over(&mut self) -> bool {
        true
    }

    fn bring_up(&mut self) {
        self.guest.bring_up();
    }
}

fn driver(tasks: u32, count: u8) -> Driver {
    let mut guest = Guest::up(Config { tasks, ..Config::default() });
    guest.count = count;
    guest.bring_up();
    Driver::new(guest)
}

#[test]
fn small_tables() {
    for tasks in [1, 2, 3, 4, 7] {
        // As few mailboxes as there are requests, and more.
        for count in [32, COUNT] {
            let mut driver = driver(tasks, count);
            small_tables::play(&mut driver, tasks.into(), 4000);
        }
    }
}

#[test]
fn broken_queues() {
    broken_queues::play(|| driver(64, COUNT), true);
}

#[test]
fn a_unit_is_detached_while_its_disk_does_not_complete() {
    small_tables::detach_stalled(&mut driver(64, COUNT), Address { target: TARGETS[0], lun: 0 });
}

#[test]
fn requests_in_the_backlog_of_a_detached_unit_are_answered() {
    small_tables::detach_with_backlog(&mut driver(4, COUNT), Address { target: TARGETS[1], lun: 0 });
}

#[test]
fn a_disk_that_does_not_complete_leaves_tasks_to_the_others() {
    for tasks in [2, 3, 8, 256] {
        let address = Address { target: TARGETS[1], lun: 0 };
        small_tables::stall_one_disk(&mut driver(tasks, COUNT), 100, 1, address);
    }
}
