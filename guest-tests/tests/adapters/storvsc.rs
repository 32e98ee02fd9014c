//! The synthetic SCSI controller on the VMBus, under its guest driver in the harness: data, resets, rings of every size.

use guest_driver::adapter::{Adapter, Op};
use guest_driver::{KickPolicy, Layout, Mode, Platform, Storvsc, Workload, vmbus as driver};
use guest_tests::rig::Rig;
use guest_tests::{Delivery, Harness, HarnessConfig};
use paradisk_devices::Time;
use paradisk_devices::scsi::Address;
use paradisk_devices::vmbus::VmbusDevice;
use paradisk_disk_formats::EngineKind;

use crate::common::{
    DiskSpec, JOB, churn, collect, nothing_comes, ring, run_clean, submit, submit_to, vmbus,
};

const CAPACITY: u64 = 32 << 20;

/// A controller with these disks as logical units 0, 1 ...
fn harness(
    config: &HarnessConfig,
    options: driver::Options,
    disks: &[DiskSpec],
) -> Harness<Storvsc, dyn VmbusDevice> {
    Harness::storvsc(config, options, |memory, synic| vmbus(memory, synic, disks)).unwrap()
}

#[test]
fn every_block_size_on_every_disk() {
    let options = [Layout::Contiguous, Layout::Scattered]
        .map(|layout| driver::Options { layout, ..Default::default() });
    crate::common::every_block_size_on_every_disk(CAPACITY, &options, |options, spec| {
        harness(&HarnessConfig::default(), options, &[spec])
    });
}

#[test]
fn churn_keeps_every_generation_however_signals_come() {
    for delivery in [Delivery::AtWait, Delivery::After(3), Delivery::Immediate] {
        for kick in [KickPolicy::PerRequest, KickPolicy::PerBatch] {
            let options = driver::Options { kick, ..Default::default() };
            let config = HarnessConfig { delivery, ..HarnessConfig::default() };
            let mut harness = harness(&config, options, &[DiskSpec::Ram(CAPACITY)]);
            churn(&mut harness, 1 << 20, 2000);
        }
    }
}

/// The smallest rings hold few packets: most requests wait for space.
#[test]
fn rings_of_every_size_wrap() {
    for ring_pages in [2, 3, 32, 256] {
        let options = driver::Options { ring_pages, slots: 256, ..Default::default() };
        let mut harness = harness(&HarnessConfig::default(), options, &[DiskSpec::Ram(CAPACITY)]);
        let job = Workload { queue_depth: 16, span: 16 << 20, ios: 6000, ..JOB };
        for mode in [Mode::Fill, Mode::Churn, Mode::Measure] {
            run_clean(&mut harness, &Workload { mode, ..job });
        }
    }
}

#[test]
fn logical_units_are_apart() {
    let disks = [DiskSpec::Ram(CAPACITY), DiskSpec::Ram(CAPACITY / 2)];
    let mut harness = harness(&HarnessConfig::default(), driver::Options::default(), &disks);
    for (target, capacity) in [(0u32, CAPACITY), (1, CAPACITY / 2)] {
        let job = Workload { target, generation: u64::from(target) + 1, ..JOB };
        assert_eq!(run_clean(&mut harness, &job).report.capacity, capacity);
    }
    for target in [0u32, 1] {
        let job = Workload { target, generation: u64::from(target) + 1, mode: Mode::Check, ..JOB };
        run_clean(&mut harness, &job);
    }
}

/// Closing the channel ends all requests: nothing of them comes when it is opened again.
#[test]
fn a_channel_is_closed_with_requests_in_flight() {
    let spec = DiskSpec::Raw(CAPACITY, EngineKind::default());
    let mut harness = harness(&HarnessConfig::default(), driver::Options::default(), &[spec]);
    run_clean(&mut harness, &JOB);
    for _ in 0..20 {
        let (machine, driver) = harness.parts();
        let buffers = machine.dma(16 << 12, 4096).unwrap();
        submit(machine, driver, Op::Read, &buffers, 16);
        ring(machine, 0);
        driver.reset(machine).unwrap();
        nothing_comes(machine, driver, &buffers);
    }
    run_clean(&mut harness, &Workload { mode: Mode::Check, ..JOB });
}

/// Submit requests to two units in turn, and wait until all have ended. Returns their statuses.
fn requests_of_two(
    harness: &mut Harness<Storvsc, dyn VmbusDevice>,
    between: impl FnOnce(&mut dyn VmbusDevice, Time),
) -> Vec<u32> {
    let (machine, driver) = harness.parts();
    let buffers = machine.dma(32 << 12, 4096).unwrap();
    submit_to(machine, driver, Op::Read, &buffers, &[0, UNIT], 32);
    let now = machine.now();
    between(machine.device(), now);
    collect(machine, driver, 32).into_values().map(|end| end.status).collect()
}

/// The unit that comes and goes.
const UNIT: u32 = 5;

#[test]
fn units_come_and_go_under_load() {
    let raw = DiskSpec::Raw(CAPACITY, EngineKind::default());
    let at = Address { target: UNIT as u8, lun: 0 };
    for spec in [DiskSpec::Ram(CAPACITY), raw] {
        let mut harness = harness(&HarnessConfig::default(), driver::Options::default(), &[spec]);
        run_clean(&mut harness, &JOB);
        for round in 0..20 {
            let device = harness.parts().0.device();
            device.hot_plug().unwrap().attach(at, spec.unit()).unwrap();
            for mode in [Mode::Fill, Mode::Check] {
                run_clean(&mut harness, &Workload { mode, target: UNIT, span: 64 << 10, ..JOB });
            }
            assert_eq!(harness.parts().1.enumerations(), 2 * round + 1);
            // After this, the unit that stays has reported that another unit came.
            run_clean(&mut harness, &Workload { span: 64 << 10, ..JOB });
            assert_eq!(requests_of_two(&mut harness, |_, _| ()), [0; 32], "{spec:?}");
            let both = requests_of_two(&mut harness, |device, now| {
                device.on_doorbell(0, now);
                assert!(device.hot_plug().unwrap().detach(at, now));
            });
            for (tag, status) in both.into_iter().enumerate() {
                // Ended by the reset of the removal, or taken when the unit no longer existed.
                let allowed: &[u32] = if tag % 2 == 0 { &[0] } else { &[0, 0x0e << 8, 0x20 << 8] };
                assert!(allowed.contains(&status), "{spec:?}: tag {tag}: {status:#x}");
            }
            let gone = harness.run(&Workload { target: UNIT, ..JOB }).unwrap().report;
            assert_eq!((gone.errors, gone.fault.status), (1, 0x20 << 8));
            assert_eq!(harness.parts().1.enumerations(), 2 * round + 2);
        }
        run_clean(&mut harness, &Workload { mode: Mode::Check, ..JOB });
    }
}
