//! The virtio SCSI host device in the harness: data by every way that a driver may choose, task management, disks that come
//! and go, and recovery.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use guest_driver::adapter::{Adapter, Buffer, Completion, Op};
use guest_driver::scsi::Cdb;
use guest_driver::virtio::scsi::Event;
use guest_driver::virtio::{Options, spec};
use guest_driver::{Initiator as _, InterruptMode, KickPolicy, Layout, Mode, Platform, VirtioScsi, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::scsi::Bus;
use paradisk_devices::virtio::scsi::VirtioScsi as Device;

use crate::common::hot_plug::{self, Notified, without_disks};
use crate::common::owned::Order;
use crate::common::{
    DiskSpec, JOB, churn_every_way, collect, every_block_size_on_every_disk, ring, run_clean, scsi_config,
    scsi_harness, submit_to, virtio_resets, warm_up,
};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;

fn make(options: Options, disks: &[DiskSpec]) -> Harness<VirtioScsi> {
    scsi_harness(&HarnessConfig::default(), options, disks)
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    let options = [(Layout::Contiguous, false), (Layout::Scattered, true)]
        .map(|(layout, indirect)| Options { layout, indirect, ..Options::default() });
    every_block_size_on_every_disk(CAPACITY, &options, |options, spec| make(options, &[spec]));
}

/// Every way in which driver and device may tell each other of requests, with one queue and with several.
#[test]
fn churn_keeps_every_generation_however_requests_arrive() {
    let kicks = [(KickPolicy::PerRequest, true), (KickPolicy::PerBatch, false)];
    churn_every_way(|config, options| scsi_harness(config, options, &[DiskSpec::Ram(CAPACITY)]), &kicks);
}

#[test]
fn targets_are_told_apart() {
    let disks = [DiskSpec::Ram(CAPACITY), DiskSpec::Ram4096(CAPACITY), DiskSpec::Ram(2 * CAPACITY)];
    let mut harness = make(Options { queues: 2, ..Options::default() }, &disks);
    for mode in [Mode::Fill, Mode::Check] {
        for target in 0..3 {
            let job = Workload { mode, target, generation: 50 + u64::from(target), ..JOB };
            let report = run_clean(&mut harness, &job).report;
            assert_eq!(report.capacity, if target == 2 { 2 * CAPACITY } else { CAPACITY });
        }
    }
    // The tests above can fail.
    let errors = harness.run(&Workload { mode: Mode::Check, generation: 99, ..JOB }).unwrap().report.errors;
    assert_eq!(errors, CAPACITY / 4096);
    let gone = harness.run(&Workload { target: 3, ..JOB }).unwrap().report;
    assert_eq!((gone.errors, gone.fault.status), (1, spec::SCSI_S_BAD_TARGET << 8));
}

/// With the event index, both sides suppress notifications while there is work.
#[test]
fn doorbells_and_interrupts_are_few() {
    crate::common::doorbells_and_interrupts_are_few(&mut make(
        Options::default(),
        &[DiskSpec::Ram(CAPACITY)],
    ));
}

#[test]
fn task_management_ends_requests_and_then_answers() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options { queues: 3, ..Options::default() }, &[spec, DiskSpec::Ram(CAPACITY)]);
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        // Its unit attention is of no concern here.
        driver.geometry(machine, 1).unwrap();
        let buffers = machine.dma(60 * BLOCK, BLOCK).unwrap();
        for (function, ended) in [
            (spec::SCSI_TMF_ABORT_TASK, spec::SCSI_S_ABORTED),
            (spec::SCSI_TMF_ABORT_TASK_SET, spec::SCSI_S_ABORTED),
            (spec::SCSI_TMF_UNIT_RESET, spec::SCSI_S_RESET),
            (spec::SCSI_TMF_NEXUS_RESET, spec::SCSI_S_RESET),
        ] {
            for fetched in [false, true] {
                submit_to(machine, driver, Op::Read, &buffers, &[0, 1], 60);
                if fetched {
                    ring(machine, 2);
                }
                assert_eq!(driver.manage(machine, function, 0, 36), Ok(0));
                // Those that the function is about have ended before its answer came.
                let mut statuses = BTreeMap::new();
                while let Some(end) = driver.poll(machine) {
                    statuses.insert(end.tag, end);
                }
                let about = |tag: u32| match function {
                    spec::SCSI_TMF_ABORT_TASK => tag == 36,
                    _ => tag.is_multiple_of(2),
                };
                assert!((0..60).filter(|tag| about(*tag)).all(|tag| statuses.contains_key(&tag)));
                let left = 60 - statuses.len();
                statuses.extend(collect(machine, driver, left));
                for (tag, Completion { status, .. }) in statuses {
                    let good = status == 0 || about(tag) && status == ended << 8;
                    assert!(good, "{spec:?}, function {function}: tag {tag} ended with {status:#x}");
                }
                // A reset is reported as a unit attention.
                let ready = Cdb::test_unit_ready();
                let end = driver.execute(machine, 0, &ready, &Buffer::NONE, false).unwrap();
                let reset = ended == spec::SCSI_S_RESET;
                assert_eq!(
                    driver.sense(&end).map(|sense| (sense.key, sense.asc)),
                    reset.then_some((6, 0x29))
                );
            }
        }
        warm_up(&mut harness);
    }
}

impl Notified for VirtioScsi {
    type Notice = Event;
    const NO_TARGET: u32 = spec::SCSI_S_BAD_TARGET << 8;
    const RESET: u32 = spec::SCSI_S_RESET << 8;

    fn take_notice(&mut self, machine: &mut Machine) -> Option<Event> {
        self.take_event(machine)
    }

    fn added(target: u8) -> Event {
        let lun = [1, target, 0, 0, 0, 0, 0, 0];
        Event { event: spec::SCSI_T_TRANSPORT_RESET, lun, reason: spec::SCSI_EVT_RESCAN }
    }

    fn removed(target: u8) -> Event {
        Event { reason: spec::SCSI_EVT_REMOVED, ..Self::added(target) }
    }
}

fn empty_host(options: Options) -> (Harness<VirtioScsi>, Sender<Order>) {
    without_disks(options, |memory, interrupts| {
        Device::new(memory, Bus::new(crate::common::TASKS), interrupts, scsi_config(&options))
    })
}

#[test]
fn disks_come_and_go() {
    for interrupts in [InterruptMode::MsiX, InterruptMode::Intx] {
        for event_index in [true, false] {
            let options = Options { interrupts, event_index, ..Options::default() };
            hot_plug::disks_come_and_go(empty_host(options), 10);
        }
    }
}

#[test]
fn events_beyond_the_buffers_are_not_lost() {
    hot_plug::no_notice_is_lost(empty_host(Options::default()));
}

#[test]
fn requests_to_a_removed_disk_end_and_others_go_on() {
    let empty = empty_host(Options { queues: 2, ..Options::default() });
    hot_plug::requests_to_a_removed_disk_end_and_others_go_on(empty, |_| ());
}

#[test]
fn nothing_is_written_to_memory_after_a_reset() {
    virtio_resets::nothing_is_written_to_memory_after_a_reset(|options, disk| make(options, &[disk]));
}

#[test]
fn a_queue_is_reset_alone() {
    virtio_resets::a_queue_is_reset_alone(|options, disk| make(options, &[disk]));
}

#[test]
fn a_driver_can_be_shut_down_and_started_again() {
    virtio_resets::a_driver_can_be_shut_down_and_started_again(|options, disk| make(options, &[disk]));
}
