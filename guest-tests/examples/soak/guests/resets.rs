//! Aborts and resets with requests in flight, as each adapter has them.

use std::ops::Range;
use std::time::{Duration, Instant};

use guest_driver::driver::Driver;
use guest_driver::lsi::TaskManagement;
use guest_driver::scsi::CHECK_CONDITION;
use guest_driver::virtio::spec::{
    SCSI_S_ABORTED, SCSI_S_RESET, SCSI_TMF_ABORT_TASK, SCSI_TMF_ABORT_TASK_SET, SCSI_TMF_NEXUS_RESET,
    SCSI_TMF_UNIT_RESET,
};
use guest_driver::{Adapter, BusLogic, Lsi, Platform, Pvscsi, VirtioBlk, VirtioScsi};
use guest_tests::Machine;
use paradisk_devices::IoDevice;

use super::QUEUES;
use crate::contested::{Contested, collect};

/// Host statuses of requests that were ended: bus reset, aborted.
const PVSCSI_ENDED: [u32; 2] = [0x25 << 8, 0x26 << 8];
/// Aborted, bus reset.
const BUSLOGIC_ENDED: [u32; 2] = [0x102 << 8, 0x25 << 8];
/// IOCStatus SCSI TASK TERMINATED.
const LSI_ENDED: [u32; 1] = [0x48 << 8];
const VIRTIO_ENDED: [u32; 2] = [SCSI_S_ABORTED << 8, SCSI_S_RESET << 8];
/// Abort task, target reset, bus reset.
const LSI_TYPES: [u8; 3] = [1, 3, 4];
const VIRTIO_FUNCTIONS: [u32; 4] =
    [SCSI_TMF_ABORT_TASK, SCSI_TMF_ABORT_TASK_SET, SCSI_TMF_UNIT_RESET, SCSI_TMF_NEXUS_RESET];
/// The request that is aborted.
const TAG: u32 = 6;
const TIMEOUT: Duration = Duration::from_secs(60);

/// What became of the requests.
enum Effect {
    /// All complete, with success or one of these statuses.
    Completed(&'static [u32]),
    /// Those of one of the queues are gone, the others complete.
    QueueGone,
    AllGone,
}

/// What is disturbed.
pub(super) struct Disturbance<'a> {
    pub(super) contested: &'a Contested,
    /// Chooses what is done.
    pub(super) number: u64,
    /// What the requests write.
    pub(super) generation: u32,
}

impl Disturbance<'_> {
    /// Submit requests, and abort or reset something. True: none of the requests completes, and their memory is not accessed any more.
    pub(super) fn run<D: ?Sized + IoDevice>(&self, machine: &mut Machine<D>, driver: &mut Driver) -> bool
    where
        Machine<D>: Platform,
    {
        let queues = usize::from(QUEUES);
        match driver {
            Driver::Pvscsi(driver) => self.end(machine, driver, 0..1, pvscsi),
            Driver::Lsi(driver) => {
                let gone = self.end(machine, driver, 0..1, lsi);
                if !gone {
                    await_reply(machine, driver);
                }
                gone
            }
            Driver::BusLogic(driver) => self.end(machine, driver, 0..1, buslogic),
            Driver::VirtioBlk(driver) => self.end(machine, driver, 0..queues, blk),
            // The first two queues are not for requests.
            Driver::VirtioScsi(driver) => self.end(machine, driver, 2..2 + queues, scsi),
            Driver::Ide(driver) => {
                self.end(machine, driver, 0..1, |machine, driver, _| reset(machine, driver))
            }
            Driver::Storvsc(driver) => {
                self.end(machine, driver, 0..1, |machine, driver, _| reset(machine, driver))
            }
        }
    }

    fn end<D: ?Sized + IoDevice, A: Adapter>(
        &self,
        machine: &mut Machine<D>,
        adapter: &mut A,
        doorbells: Range<usize>,
        act: impl FnOnce(&mut Machine<D>, &mut A, u64) -> Effect,
    ) -> bool
    where
        Machine<D>: Platform,
    {
        let count = self.contested.begin(adapter, machine, self.generation);
        let taken = self.number.is_multiple_of(2);
        if taken {
            let now = machine.now();
            doorbells.for_each(|index| machine.device().on_doorbell(index, now));
        }
        let (statuses, count) = match act(machine, adapter, self.number / 2) {
            Effect::Completed(statuses) => (statuses, count),
            Effect::QueueGone => (&[][..], count - count / u32::from(QUEUES)),
            Effect::AllGone => (&[][..], 0),
        };
        for end in collect(adapter, machine, count) {
            // Without the doorbell, BusLogic takes the requests only after the reset. The first of them reports the unit attention.
            let attention = !taken && end.status == u32::from(CHECK_CONDITION);
            assert!(end.status == 0 || attention || statuses.contains(&end.status), "{end:?}");
        }
        assert_eq!(adapter.poll(machine), None, "more completions than requests");
        count == 0
    }
}

fn reset(machine: &mut impl Platform, adapter: &mut impl Adapter) -> Effect {
    adapter.reset(machine).unwrap();
    Effect::AllGone
}

fn pvscsi(machine: &mut impl Platform, driver: &mut Pvscsi, which: u64) -> Effect {
    match which % 4 {
        0 => driver.abort(machine, TAG, 0),
        1 => driver.reset_device(machine, 0),
        2 => driver.reset_bus(machine),
        _ => return reset(machine, driver),
    }
    Effect::Completed(&PVSCSI_ENDED)
}

fn buslogic(machine: &mut impl Platform, driver: &mut BusLogic, which: u64) -> Effect {
    match which % 3 {
        0 => assert!(driver.abort(machine, TAG), "no free mailbox"),
        1 => driver.reset_bus(machine),
        _ => return reset(machine, driver),
    }
    Effect::Completed(&BUSLOGIC_ENDED)
}

fn lsi(machine: &mut impl Platform, driver: &mut Lsi, which: u64) -> Effect {
    let (way, round) = (which as usize % (LSI_TYPES.len() + 2), which as usize / (LSI_TYPES.len() + 2));
    match LSI_TYPES.get(way) {
        Some(kind) => {
            let management = TaskManagement { kind: *kind, target: 0, lun: 0, tag: TAG };
            driver.manage(machine, &management, round.is_multiple_of(2)).unwrap();
            Effect::Completed(&LSI_ENDED)
        }
        None if way == LSI_TYPES.len() => {
            driver.hard_reset(machine).unwrap();
            Effect::AllGone
        }
        None => reset(machine, driver),
    }
}

/// Task management is answered.
fn await_reply(machine: &mut impl Platform, driver: &mut Lsi) {
    let begin = Instant::now();
    loop {
        let seen = machine.interrupts();
        driver.interrupted(machine);
        assert_eq!(driver.poll(machine), None, "more completions than requests");
        if let Some(reply) = driver.take_reply() {
            return assert_eq!(reply.function(), 1, "not task management");
        }
        machine.wait_interrupt(seen);
        assert!(begin.elapsed() < TIMEOUT, "task management is not answered");
    }
}

fn blk(machine: &mut impl Platform, driver: &mut VirtioBlk, which: u64) -> Effect {
    if !which.is_multiple_of(2) {
        return reset(machine, driver);
    }
    driver.reset_queue(machine, 1).unwrap();
    Effect::QueueGone
}

fn scsi(machine: &mut impl Platform, driver: &mut VirtioScsi, which: u64) -> Effect {
    let way = which as usize % (VIRTIO_FUNCTIONS.len() + 2);
    match VIRTIO_FUNCTIONS.get(way) {
        Some(function) => {
            assert_eq!(driver.manage(machine, *function, 0, TAG), Ok(0));
            Effect::Completed(&VIRTIO_ENDED)
        }
        None if way == VIRTIO_FUNCTIONS.len() => {
            driver.reset_queue(machine, 1).unwrap();
            Effect::QueueGone
        }
        None => reset(machine, driver),
    }
}
