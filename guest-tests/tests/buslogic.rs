//! BusLogic in the harness: data, recovery, and what drivers read of the adapter.

mod common;

use common::{
    DiskSpec, JOB, buslogic_harness, churn, collect, every_block_size, nothing_comes_after, run_clean,
    submit, warm_up,
};
use guest_driver::adapter::{Buffer, Completion, Op};
use guest_driver::buslogic::Options;
use guest_driver::scsi::{Cdb, Sense};
use guest_driver::{BusLogic, Initiator, KickPolicy, Layout, Mode, Platform, Workload};
use guest_tests::rig::Rig;
use guest_tests::{Delivery, Harness, HarnessConfig};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// Host statuses of an abort, by its completion code and by its status; of a reset; of a target that is not there.
const ABORTED: u32 = 0x102 << 8;
const RESET: u32 = 0x25 << 8;
const NO_TARGET: u32 = 0x11 << 8;

fn make(options: Options, spec: DiskSpec) -> Harness<BusLogic> {
    buslogic_harness(&HarnessConfig::default(), options, &[spec])
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    for spec in DiskSpec::all(CAPACITY).into_iter().chain([DiskSpec::Ram4096(CAPACITY)]) {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            for residual in [false, true] {
                let mut harness = make(Options { layout, residual, ..Options::default() }, spec);
                every_block_size(&mut harness, spec, CAPACITY);
            }
        }
    }
}

#[test]
fn churn_keeps_every_generation_however_requests_arrive() {
    for spec in DiskSpec::all(CAPACITY) {
        for delivery in [Delivery::AtWait, Delivery::After(5), Delivery::Immediate] {
            for kick in [KickPolicy::PerRequest, KickPolicy::PerBatch] {
                let config = HarnessConfig { delivery, ..Default::default() };
                let options = Options { kick, ..Options::default() };
                let mut harness = buslogic_harness(&config, options, &[spec]);
                churn(&mut harness, 4 << 20, 2000);
            }
        }
    }
}

#[test]
fn mailboxes_of_every_number_wrap() {
    for (mailboxes, most) in [(5, 4), (17, 16), (211, 192), (255, 192)] {
        let mut harness = make(Options { mailboxes, ..Options::default() }, DiskSpec::Ram(CAPACITY));
        let job = Workload { mode: Mode::Measure, queue_depth: 256, workers: 4, ios: 3000, ..JOB };
        let report = run_clean(&mut harness, &job).report;
        assert_eq!(report.in_flight, most, "{mailboxes}");
    }
}

#[test]
fn the_adapter_is_a_bt_958() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    let (_, driver) = harness.parts();
    let facts = driver.facts();
    assert_eq!((&facts.model, &facts.firmware), (b"958  ", b"507B"));
    assert_eq!((facts.sg_limit, facts.id, facts.targets, facts.disconnect), (8192, 7, 1, 0xffff));
}

#[test]
fn aborts_and_bus_resets_end_requests_once() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        for bus in [false, true] {
            warm_up(&mut harness);
            let (machine, driver) = harness.parts();
            let buffers = machine.dma(8 * BLOCK, BLOCK).unwrap();
            submit(machine, driver, Op::Write, &buffers, 8);
            let now = machine.now();
            machine.device().on_completions(now);
            if bus {
                driver.reset_bus(machine);
            } else {
                assert!(driver.abort(machine, 5));
            }
            for (tag, Completion { status, .. }) in collect(machine, driver, 8) {
                let ended = if bus { status == RESET } else { status == ABORTED && tag == 5 };
                assert!(status == 0 || ended, "{spec:?} {bus} {tag}: {status:#x}");
            }
        }
        warm_up(&mut harness);
    }
}

#[test]
fn nothing_is_written_to_memory_after_a_reset() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        for _ in 0..2 {
            nothing_comes_after(
                &mut harness,
                |machine| {
                    let now = machine.now();
                    machine.device().on_completions(now);
                },
                |machine, driver| driver.reset_adapter(machine).unwrap(),
            );
        }
        warm_up(&mut harness);
    }
}

#[test]
fn commands_of_other_kinds() {
    for residual in [false, true] {
        let mut harness = make(Options { residual, ..Options::default() }, DiskSpec::Ram(CAPACITY));
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        let memory = machine.dma(BLOCK, BLOCK).unwrap();
        let data = Buffer::contiguous(memory.address(), 512);
        let end = driver.execute(machine, 0, &Cdb::inquiry(512), &data, false).unwrap();
        assert_eq!(end.completion.status, 0);
        let moved = end.completion.transferred;
        assert!(if residual { (36..512).contains(&moved) } else { moved == 512 }, "{moved}");
        let end = driver.execute(machine, 0, &Cdb::new(&[0xff; 6]), &Buffer::NONE, false).unwrap();
        assert_eq!(driver.sense(&end), Some(Sense { key: 5, asc: 0x20, ascq: 0 }));
        let end = driver.execute(machine, 0, &Cdb::synchronize_cache(), &Buffer::NONE, false).unwrap();
        assert_eq!(end.completion.status, 0);
        // Nobody there; the adapter's own target.
        for target in [3, 7] {
            let end = driver.execute(machine, target, &Cdb::test_unit_ready(), &Buffer::NONE, false).unwrap();
            assert_eq!(end.completion.status, NO_TARGET, "target {target}");
        }
    }
}

#[test]
fn a_reset_of_the_machine_and_a_new_driver() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    for _ in 0..2 {
        warm_up(&mut harness);
        let (machine, driver) = harness.parts();
        machine.reset();
        *driver = BusLogic::start(machine, Options::default()).unwrap();
    }
    // A driver that finds the adapter running resets it.
    let (machine, driver) = harness.parts();
    *driver = BusLogic::start(machine, Options::default()).unwrap();
    warm_up(&mut harness);
    let errors = harness.run(&Workload { mode: Mode::Check, generation: 99, ..JOB }).unwrap().report.errors;
    assert!(errors > 0, "a check of other data fails");
}
