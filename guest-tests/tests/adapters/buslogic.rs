//! BusLogic in the harness: data, recovery, and what drivers read of the adapter.

use guest_driver::adapter::{Completion, Op};
use guest_driver::buslogic::Options;
use guest_driver::{BusLogic, KickPolicy, Layout, Mode, Platform, Workload};
use guest_tests::{Harness, HarnessConfig};

use crate::common::{
    DiskSpec, JOB, any_adapter, buslogic_harness, collect, every_block_size_on_every_disk,
    nothing_comes_after, run_clean, service, submit, warm_up,
};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// Status of an aborted request (its completion code), of a request that a reset has ended, and of one to a target that is not there.
const ABORTED: u32 = 0x102 << 8;
const RESET: u32 = 0x25 << 8;
const NO_TARGET: u32 = 0x11 << 8;

fn make(options: Options, spec: DiskSpec) -> Harness<BusLogic> {
    buslogic_harness(&HarnessConfig::default(), options, &[spec])
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    let options = [
        (Layout::Contiguous, false),
        (Layout::Contiguous, true),
        (Layout::Scattered, false),
        (Layout::Scattered, true),
    ]
    .map(|(layout, residual)| Options { layout, residual, ..Options::default() });
    every_block_size_on_every_disk(CAPACITY, &options, make);
}

#[test]
fn churn_keeps_every_generation_however_requests_arrive() {
    let options =
        [KickPolicy::PerRequest, KickPolicy::PerBatch].map(|kick| Options { kick, ..Options::default() });
    any_adapter::churn_keeps_every_generation(&options, |config, options, spec| {
        buslogic_harness(config, options, &[spec])
    });
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
            service(machine);
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
            nothing_comes_after(&mut harness, service, |machine, driver| {
                driver.reset_adapter(machine).unwrap();
            });
        }
        warm_up(&mut harness);
    }
}

#[test]
fn commands_of_other_kinds() {
    for residual in [false, true] {
        let mut harness = make(Options { residual, ..Options::default() }, DiskSpec::Ram(CAPACITY));
        // The second target is the adapter's own.
        let moved = any_adapter::commands_of_other_kinds(&mut harness, &[3, 7], NO_TARGET);
        assert!(if residual { (36..512).contains(&moved) } else { moved == 512 }, "{moved}");
    }
}

#[test]
fn a_reset_of_the_machine_and_a_new_driver() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    any_adapter::a_reset_of_the_machine_and_a_new_driver(&mut harness, [Options::default(); 2]);
}
