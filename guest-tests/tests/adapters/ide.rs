//! The IDE function in the harness: data by the bus master and by the data port, on each drive, and recovery.

use guest_driver::adapter::{Adapter, Buffer, Completion, Op, Request};
use guest_driver::ide::Options;
use guest_driver::{DmaRegion, Ide, Layout, Mode, Platform, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Harness, HarnessConfig, Machine};
use paradisk_devices::ide as device;

use crate::common::{
    DiskSpec, JOB, collect, every_block_size, fill_and_check_span, ide_harness, nothing_comes, run_clean,
};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;
const MODES: [device::Mode; 2] = [device::Mode::Native, device::Mode::Compatibility];

fn make(options: Options, disks: &[DiskSpec]) -> Harness<Ide> {
    in_mode(device::Mode::Native, options, disks)
}

fn in_mode(mode: device::Mode, options: Options, disks: &[DiskSpec]) -> Harness<Ide> {
    ide_harness(&HarnessConfig::default(), options, mode, disks)
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    let others = [DiskSpec::Ram4096(CAPACITY), DiskSpec::Direct(CAPACITY)];
    for spec in DiskSpec::all(CAPACITY).into_iter().chain(others) {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            every_block_size(&mut make(Options { dma: true, layout }, &[spec]), spec, CAPACITY);
        }
    }
}

/// In fewer blocks: each access to the port is a call of the device.
#[test]
fn blocks_of_every_kind_by_the_data_port() {
    for spec in [DiskSpec::Ram(CAPACITY), DiskSpec::Ram4096(CAPACITY), DiskSpec::Vhd(CAPACITY)] {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            let mut harness = make(Options { dma: false, layout }, &[spec]);
            let smallest = spec.disk().info().logical_sector.bytes();
            for block_size in [smallest, 8192, 12_288, 131_072, 1 << 20] {
                let span = u64::from(block_size) * if block_size < 131_072 { 8 } else { 1 };
                let job = Workload { block_size, span, generation: block_size.into(), ..JOB };
                fill_and_check_span(&mut harness, spec, CAPACITY, &job);
            }
        }
    }
}

#[test]
fn churn_keeps_every_generation() {
    for (spec, mode) in DiskSpec::all(CAPACITY).into_iter().flat_map(|spec| MODES.map(|mode| (spec, mode))) {
        for dma in [true, false] {
            let mut harness = in_mode(mode, Options { dma, ..Options::default() }, &[spec]);
            let (block_sizes, ios) =
                if dma { (&[512, 4096, 65536][..], 1000) } else { (&[512, 2048][..], 100) };
            for &block_size in block_sizes {
                let job = Workload { block_size, span: u64::from(block_size) * 64, ios, ..JOB };
                for mode in [Mode::Fill, Mode::Churn] {
                    let report = run_clean(&mut harness, &Workload { mode, ..job }).report;
                    assert_eq!(report.in_flight, 1);
                    assert!(report.interrupts >= report.ios && report.doorbells >= report.ios);
                }
            }
        }
    }
}

#[test]
fn four_drives_keep_their_own_data() {
    for ports in MODES {
        let mut harness = in_mode(ports, Options::default(), &[DiskSpec::Ram(1 << 20); 4]);
        for mode in [Mode::Fill, Mode::Check] {
            for target in 0..4 {
                run_clean(&mut harness, &Workload { mode, target, generation: target.into(), ..JOB });
            }
        }
        // The tests above can fail.
        let other = Workload { mode: Mode::Check, target: 1, generation: 0, ..JOB };
        assert_eq!(harness.run(&other).unwrap().report.errors, 256);
        let mut two = in_mode(ports, Options::default(), &[DiskSpec::Ram(1 << 20); 2]);
        assert!(two.run(&Workload { target: 2, ..JOB }).unwrap().report.errors > 0, "there is no such drive");
    }
}

/// What a driver does for each request: registers touched, as a limit for what it costs under a hypervisor.
#[test]
fn a_transfer_takes_few_registers() {
    for mode in MODES {
        let mut harness = in_mode(mode, Options::default(), &[DiskSpec::Ram(CAPACITY)]);
        let done = run_clean(&mut harness, &Workload { mode: Mode::Measure, ios: 1000, ..JOB });
        assert!(done.report.registers <= 15 * 1000, "{}", done.report.registers);
        assert_eq!((done.report.doorbells, done.interrupts), (1000, 1000));
    }
}

fn submit(machine: &mut Machine, driver: &mut Ide, op: Op, buffers: &DmaRegion) {
    let data = match op {
        Op::Flush => Buffer::NONE,
        _ => Buffer::contiguous(buffers.address(), buffers.len() as u32),
    };
    let blocks = data.len / 512;
    assert!(driver.submit(machine, &Request { tag: 0, target: 0, op, lba: 0, blocks, data }));
    assert!(
        !driver.submit(machine, &Request { tag: 0, target: 0, op, lba: 0, blocks, data }),
        "one at a time"
    );
}

#[test]
fn flushes_end() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), &[spec]);
        let (machine, driver) = harness.parts();
        let memory = machine.dma(BLOCK, BLOCK).unwrap();
        for op in [Op::Write, Op::Flush, Op::Read, Op::Flush] {
            submit(machine, driver, op, &memory);
            let ended: Vec<_> = collect(machine, driver, 1).into_values().collect();
            let transferred = if op == Op::Flush { 0 } else { BLOCK as u64 };
            assert_eq!(ended, [Completion { tag: 0, status: 0, transferred }], "{op:?}");
        }
    }
}

#[test]
fn nothing_is_written_to_memory_after_a_reset() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), &[spec]);
        for _ in 0..20 {
            let (machine, driver) = harness.parts();
            let buffers = machine.dma(64 * BLOCK, BLOCK).unwrap();
            submit(machine, driver, Op::Read, &buffers);
            driver.reset(machine).unwrap();
            nothing_comes(machine, driver, &buffers);
        }
        for mode in [Mode::Fill, Mode::Check] {
            run_clean(&mut harness, &Workload { mode, span: 1 << 20, ..JOB });
        }
    }
}

#[test]
fn a_driver_can_be_started_again() {
    for mode in MODES {
        let mut harness = in_mode(mode, Options::default(), &[DiskSpec::Ram(CAPACITY); 3]);
        for dma in [false, true, false] {
            let options = Options { dma, ..Options::default() };
            let (machine, driver) = harness.parts();
            *driver = Ide::start(machine, options).unwrap();
            assert!(driver.drive(2).is_some() && driver.drive(3).is_none());
            run_clean(&mut harness, &Workload { span: 1 << 20, ..JOB });
            let (machine, driver) = harness.parts();
            machine.reset();
            *driver = Ide::start(machine, options).unwrap();
            run_clean(&mut harness, &Workload { mode: Mode::Check, span: 1 << 20, ..JOB });
        }
    }
}
