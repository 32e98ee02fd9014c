//! The virtio block device in the harness: data by every way that a driver may choose, what only it has (discards, writes of
//! zeros, its serial number), and recovery.

use guest_driver::adapter::Buffer;
use guest_driver::virtio::{Options, spec};
use guest_driver::{KickPolicy, Layout, Mode, Platform, VirtioBlk, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Harness, HarnessConfig};

use crate::common::{
    DiskSpec, JOB, blk_harness, churn, churn_every_way, every_block_size_on_every_disk, run_clean,
    virtio_resets, warm_up,
};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;

fn make(options: Options, spec: DiskSpec) -> Harness<VirtioBlk> {
    blk_harness(&HarnessConfig::default(), options, spec)
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    let options = [
        (Layout::Contiguous, true),
        (Layout::Contiguous, false),
        (Layout::Scattered, true),
        (Layout::Scattered, false),
    ]
    .map(|(layout, indirect)| Options { layout, indirect, ..Options::default() });
    every_block_size_on_every_disk(CAPACITY, &options, make);
}

/// Every way in which driver and device may tell each other of requests, with one queue and with several.
#[test]
fn churn_keeps_every_generation_however_requests_arrive() {
    let (each, batch) = (KickPolicy::PerRequest, KickPolicy::PerBatch);
    let kicks = [(each, true), (each, false), (batch, true), (batch, false)];
    churn_every_way(|config, options| blk_harness(config, options, DiskSpec::Ram(CAPACITY)), &kicks);
}

#[test]
fn churn_on_every_disk_over_several_queues() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options { queues: 4, ..Options::default() }, spec);
        churn(&mut harness, 8 << 20, 5000);
    }
}

#[test]
fn rings_of_every_size_wrap() {
    for (queue_size, queues, indirect, in_flight) in [
        (4, 1, true, 4),
        (4, 1, false, 1),
        (256, 1, true, 256),
        (128, 2, false, 84),
        (1024, 1, true, 1024u32),
    ] {
        let options = Options { queues, queue_size, indirect, ..Options::default() };
        let mut harness = make(options, DiskSpec::Ram(CAPACITY));
        // Enough requests for the 16-bit indices to wrap.
        let job = Workload { queue_depth: 256, span: 1 << 20, block_size: 512, ios: 140_000, ..JOB };
        for mode in [Mode::Fill, Mode::Measure] {
            let workers = in_flight.div_ceil(256);
            let report = run_clean(&mut harness, &Workload { mode, workers, ..job }).report;
            assert_eq!(report.in_flight, in_flight, "the ring is full");
        }
    }
}

/// With the event index, both sides suppress notifications while there is work.
#[test]
fn doorbells_and_interrupts_are_few() {
    crate::common::doorbells_and_interrupts_are_few(&mut make(Options::default(), DiskSpec::Ram(CAPACITY)));
}

#[test]
fn discards_zeros_flushes_and_the_serial_number() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        run_clean(&mut harness, &JOB);
        let discards = spec.disk().info().discard.is_some();
        let (machine, driver) = harness.parts();
        assert_eq!(driver.transport().has(spec::BLK_F_DISCARD), discards);
        let memory = machine.dma(BLOCK, BLOCK).unwrap();
        let buffer = |len| Buffer::contiguous(memory.address(), len);
        let range = |at: usize, sector: u64, sectors: u32, unmap: u32| {
            memory.write(at, sector);
            memory.write(at + 8, u64::from(sectors) | u64::from(unmap) << 32);
        };

        // Sectors 8 to 15 and 20 become zeros, their neighbours stay.
        range(0, 8, 8, 0);
        range(16, 20, 1, 1);
        assert_eq!(driver.execute(machine, spec::BLK_T_WRITE_ZEROES, 0, &buffer(32)), Ok((0, 1)));
        for (sector, zero) in [(7, false), (8, true), (15, true), (16, false), (20, true), (21, false)] {
            assert_eq!(driver.execute(machine, spec::BLK_T_IN, sector, &buffer(512)), Ok((0, 513)));
            let is_zero = (0..512).step_by(8).all(|at| memory.read::<u64>(at) == 0);
            assert_eq!(is_zero, zero, "{spec:?}, sector {sector}");
        }

        range(0, 0, 2048, 0);
        let discarded = driver.execute(machine, spec::BLK_T_DISCARD, 0, &buffer(16));
        assert_eq!(discarded, Ok((if discards { 0 } else { 2 }, 1)), "{spec:?}");
        // Beyond the end.
        range(0, CAPACITY / 512 - 1, 2, 0);
        assert_eq!(driver.execute(machine, spec::BLK_T_WRITE_ZEROES, 0, &buffer(16)), Ok((1, 1)));
        assert_eq!(driver.execute(machine, spec::BLK_T_FLUSH, 0, &Buffer::NONE), Ok((0, 1)));

        let told = driver.execute(machine, spec::BLK_T_GET_ID, 0, &buffer(spec::BLK_ID_BYTES));
        assert_eq!(told, Ok((0, spec::BLK_ID_BYTES + 1)));
        let serial: Vec<u8> = (0..20).map(|at| memory.read(at)).collect();
        assert_eq!(serial, *b"paradisk test\0\0\0\0\0\0\0");
        // A type that there is not.
        assert_eq!(driver.execute(machine, 99, 0, &Buffer::NONE), Ok((2, 1)));
    }
}

#[test]
fn nothing_is_written_to_memory_after_a_reset() {
    virtio_resets::nothing_is_written_to_memory_after_a_reset(make);
}

#[test]
fn a_queue_is_reset_alone() {
    virtio_resets::a_queue_is_reset_alone(make);
}

#[test]
fn a_driver_can_be_shut_down_and_started_again() {
    virtio_resets::a_driver_can_be_shut_down_and_started_again(make);
}

/// The tests above can fail.
#[test]
fn a_check_of_other_data_fails() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    warm_up(&mut harness);
    let errors = harness.run(&Workload { mode: Mode::Check, generation: 99, ..JOB }).unwrap().report.errors;
    assert_eq!(errors, CAPACITY / 4096);
    assert!(harness.run(&Workload { target: 1, ..JOB }).unwrap().report.errors > 0, "there is one disk");
}
