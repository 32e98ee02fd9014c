//! The synthetic SCSI controller on the VMBus, under its guest driver in the harness: data, resets, rings of every size.

mod common;

use common::{DiskSpec, JOB, TASKS, every_block_size, run_clean};
use guest_driver::adapter::{Adapter, Buffer, Op, Request};
use guest_driver::{KickPolicy, Layout, Mode, Platform, Storvsc, Workload, vmbus};
use guest_tests::{Delivery, Harness, HarnessConfig};
use paradisk_devices::vmbus::VmbusDevice;
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment, build_vmbus};
use paradisk_disk_formats::EngineKind;

const CAPACITY: u64 = 32 << 20;

/// A controller with these disks as logical units 0, 1 ...
fn harness(
    config: &HarnessConfig,
    options: vmbus::Options,
    disks: &[DiskSpec],
) -> Harness<Storvsc, dyn VmbusDevice> {
    let disks: Vec<_> = disks
        .iter()
        .zip(0..)
        .map(|(spec, unit)| {
            let engine = if let DiskSpec::Raw(_, engine) = spec { *engine } else { EngineKind::default() };
            (unit, Attachment { engine, ..Attachment::new(spec.disk()) })
        })
        .collect();
    let adapter = AdapterConfig { tasks: TASKS, ..AdapterConfig::new(AdapterKind::Storvsc) };
    Harness::storvsc(config, options, |memory, synic| Ok(build_vmbus(memory, synic, adapter, &disks)?))
        .unwrap()
}

#[test]
fn every_block_size_on_every_disk() {
    for spec in DiskSpec::all(CAPACITY).into_iter().chain([DiskSpec::Ram4096(CAPACITY)]) {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            let options = vmbus::Options { layout, ..Default::default() };
            every_block_size(&mut harness(&HarnessConfig::default(), options, &[spec]), spec, CAPACITY);
        }
    }
}

#[test]
fn churn_keeps_every_generation_however_signals_come() {
    for delivery in [Delivery::AtWait, Delivery::After(3), Delivery::Immediate] {
        for kick in [KickPolicy::PerRequest, KickPolicy::PerBatch] {
            let options = vmbus::Options { kick, ..Default::default() };
            let config = HarnessConfig { delivery, ..HarnessConfig::default() };
            let mut harness = harness(&config, options, &[DiskSpec::Ram(CAPACITY)]);
            for (block_size, workers) in [(512, 4), (4096, 16), (65536, 1)] {
                let job = Workload { block_size, workers, span: 8 << 20, ios: 5000, ..JOB };
                for mode in [Mode::Fill, Mode::Churn] {
                    run_clean(&mut harness, &Workload { mode, ..job });
                }
            }
        }
    }
}

/// The smallest rings hold few packets: most requests wait for space.
#[test]
fn rings_of_every_size_wrap() {
    for ring_pages in [2, 3, 32, 256] {
        let options = vmbus::Options { ring_pages, slots: 256, ..Default::default() };
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
    let mut harness = harness(&HarnessConfig::default(), vmbus::Options::default(), &disks);
    for (target, capacity) in [(0, CAPACITY), (1, CAPACITY / 2)] {
        let job = Workload { target, generation: target + 1, ..JOB };
        assert_eq!(run_clean(&mut harness, &job).report.capacity, capacity);
    }
    for target in [0, 1] {
        let job = Workload { target, generation: target + 1, mode: Mode::Check, ..JOB };
        run_clean(&mut harness, &job);
    }
}

/// Closing the channel ends all requests: nothing of them comes when it is opened again.
#[test]
fn a_channel_is_closed_with_requests_in_flight() {
    let spec = DiskSpec::Raw(CAPACITY, EngineKind::default());
    let mut harness = harness(&HarnessConfig::default(), vmbus::Options::default(), &[spec]);
    run_clean(&mut harness, &JOB);
    for _ in 0..20 {
        let (machine, driver) = harness.vmbus_parts();
        let buffers = machine.dma(16 << 12, 4096).unwrap();
        for tag in 0..16 {
            let data = Buffer::contiguous(buffers.address() + u64::from(tag) * 4096, 4096);
            let request = Request { tag, target: 0, op: Op::Read, lba: u64::from(tag) * 8, blocks: 8, data };
            assert!(driver.submit(machine, &request));
        }
        driver.kick(machine);
        let now = machine.now();
        machine.device().on_doorbell(0, now);
        driver.reset(machine).unwrap();
        for offset in (0..buffers.len()).step_by(8) {
            buffers.write(offset, 0x5a5a_5a5a_5a5a_5a5au64);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        let now = machine.now();
        machine.device().on_completions(now);
        assert_eq!(driver.poll(machine), None, "a completion of a request from before the close");
        assert!((0..buffers.len()).step_by(8).all(|at| buffers.read::<u64>(at) == 0x5a5a_5a5a_5a5a_5a5a));
    }
    run_clean(&mut harness, &Workload { mode: Mode::Check, ..JOB });
}
