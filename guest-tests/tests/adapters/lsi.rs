//! LSI Logic in the harness: data, recovery, and what drivers read of the controller.

use std::time::{Duration, Instant};

use guest_driver::adapter::{Adapter, Op};
use guest_driver::lsi::{Model, Options, PageAddress, Reply, TaskManagement, action};
use guest_driver::{InterruptMode, Layout, Lsi, Mode, Platform, Workload};
use guest_tests::{Harness, HarnessConfig, Machine};

use crate::common::{
    DiskSpec, JOB, any_adapter, every_block_size_on_every_disk, lsi_harness, nothing_comes_after, run_clean,
    service, submit, warm_up,
};

const CAPACITY: u64 = 16 << 20;
const BLOCK: usize = 4096;
/// IOCStatus SCSI TASK TERMINATED as host status.
const TERMINATED: u32 = 0x48 << 8;
/// IOCStatus SCSI DEVICE NOT THERE as host status.
const NO_TARGET: u32 = 0x43 << 8;
const ABORT: u8 = 1;
const TARGET_RESET: u8 = 3;
const BUS_RESET: u8 = 4;
const QUERY: u8 = 7;
const OPERATIONAL: u32 = 2;
const FAULT: u32 = 4;

fn make(options: Options, spec: DiskSpec) -> Harness<Lsi> {
    lsi_harness(&HarnessConfig::default(), options, &[spec])
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    let options = [(Layout::Contiguous, true), (Layout::Scattered, true), (Layout::Scattered, false)]
        .map(|(layout, wide)| Options { layout, wide, ..Options::default() });
    every_block_size_on_every_disk(CAPACITY, &options, make);
}

#[test]
fn churn_keeps_every_generation_however_requests_arrive() {
    let options = [InterruptMode::Msi, InterruptMode::Intx]
        .map(|interrupts| Options { interrupts, ..Options::default() });
    any_adapter::churn_keeps_every_generation(&options, |config, options, spec| {
        lsi_harness(config, options, &[spec])
    });
}

#[test]
fn as_many_requests_as_credits() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    let job = Workload { mode: Mode::Measure, queue_depth: 256, workers: 8, ios: 20_000, ..JOB };
    let report = run_clean(&mut harness, &job).report;
    assert!(report.in_flight > 900, "{}", report.in_flight);
}

/// Take completions until the answer to a message comes; their statuses by tag.
fn collect(machine: &mut Machine, driver: &mut Lsi, count: usize) -> (Vec<Option<u32>>, Reply) {
    let mut statuses = vec![None; count];
    let start = Instant::now();
    loop {
        let seen = machine.interrupts();
        while let Some(end) = driver.poll(machine) {
            let before = statuses[end.tag as usize].replace(end.status);
            assert_eq!(before, None, "tag {} completed twice", end.tag);
        }
        if let Some(reply) = driver.take_reply() {
            return (statuses, reply);
        }
        machine.wait_interrupt(seen);
        assert!(start.elapsed() < Duration::from_secs(60), "no answer: {statuses:?}");
    }
}

#[test]
fn task_management_ends_what_it_names_before_it_is_answered() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        for (kind, by_doorbell) in
            [ABORT, TARGET_RESET, BUS_RESET, QUERY].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
        {
            warm_up(&mut harness);
            let (machine, driver) = harness.parts();
            let buffers = machine.dma(8 * BLOCK, BLOCK).unwrap();
            submit(machine, driver, Op::Write, &buffers, 8);
            let management = TaskManagement { kind, target: 0, lun: 0, tag: 5 };
            driver.manage(machine, &management, by_doorbell).unwrap();
            let (mut statuses, reply) = collect(machine, driver, 8);
            assert_eq!(reply.function(), 1, "kind {kind}");
            // The requests that the function does not apply to complete later.
            let start = Instant::now();
            while statuses.iter().any(Option::is_none) {
                assert!(matches!(kind, ABORT | QUERY), "a reset is answered after all it ended");
                if let Some(end) = driver.poll(machine) {
                    statuses[end.tag as usize] = Some(end.status);
                } else {
                    let seen = machine.interrupts();
                    machine.wait_interrupt(seen);
                }
                assert!(start.elapsed() < Duration::from_secs(60));
            }
            for (tag, status) in statuses.into_iter().enumerate() {
                let status = status.unwrap();
                let ended = status == TERMINATED && (tag == 5 || kind != ABORT) && kind != QUERY;
                assert!(status == 0 || ended, "kind {kind}, tag {tag}: {status:#x}");
            }
        }
        warm_up(&mut harness);
    }
}

#[test]
fn nothing_is_written_to_memory_after_a_reset() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = make(Options::default(), spec);
        for hard in [false, true] {
            nothing_comes_after(&mut harness, service, |machine, driver| {
                let reset = if hard { driver.hard_reset(machine) } else { driver.reset_adapter(machine) };
                reset.unwrap();
            });
        }
        warm_up(&mut harness);
    }
}

#[test]
fn a_fault_lasts_until_a_hard_reset() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    warm_up(&mut harness);
    let (machine, driver) = harness.parts();
    assert_eq!(driver.state(machine), OPERATIONAL);
    // A frame far outside memory.
    machine.write32(1, 0x40, 0xffff_ff00);
    service(machine);
    assert_eq!(driver.state(machine), FAULT);
    driver.hard_reset(machine).unwrap();
    assert_eq!(driver.state(machine), OPERATIONAL);
    warm_up(&mut harness);
}

#[test]
fn pages_are_as_long_as_drivers_expect_and_others_are_refused() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    let (machine, driver) = harness.parts();
    for (page, bytes) in [
        (PageAddress::new(9, 0, 0), 76),
        (PageAddress::new(0, 2, 0), 32),
        (PageAddress::new(1, 4, 0), 8),
        (PageAddress::new(3, 2, 0), 76),
        (PageAddress::new(4, 1, 3), 16),
    ] {
        assert_eq!(driver.read_page(machine, page, action::READ_CURRENT), Ok(bytes), "{page:?}");
    }
    // What was negotiated at the bring-up, within what the port can do.
    driver.read_page(machine, PageAddress::new(4, 0, 0), action::READ_CURRENT).unwrap();
    assert_eq!(driver.page_word(4), 0x207f_0807);
    for page in [PageAddress::new(3, 9, 0), PageAddress::new(7, 0, 0), PageAddress::new(4, 0, 16)] {
        assert!(driver.read_page(machine, page, action::READ_CURRENT).is_err(), "{page:?}");
    }
    warm_up(&mut harness);
}

#[test]
fn commands_of_other_kinds() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    // The second target is the controller's own.
    let moved = any_adapter::commands_of_other_kinds(&mut harness, &[3, 7], NO_TARGET);
    assert!((36..512).contains(&moved), "the count of an underrun is {moved}");
}

/// The tests above cover what the SAS controller shares with the parallel SCSI controller. This test checks that
/// its disks are found and work.
#[test]
fn sas_disks_are_found_and_keep_their_data() {
    for interrupts in [InterruptMode::Msi, InterruptMode::Intx] {
        for layout in [Layout::Contiguous, Layout::Scattered] {
            let options = Options { model: Model::Sas1068, interrupts, layout, ..Options::default() };
            let disks = [DiskSpec::Ram(CAPACITY), DiskSpec::Vhd(CAPACITY), DiskSpec::Ram4096(CAPACITY)];
            let mut harness = lsi_harness(&HarnessConfig::default(), options, &disks);
            for target in 0..3 {
                for mode in [Mode::Fill, Mode::Check, Mode::Churn] {
                    run_clean(&mut harness, &Workload { mode, target, ios: 2000, ..JOB });
                }
            }
            let (machine, driver) = harness.parts();
            assert_eq!(driver.disks(), 0b111);
            driver.reset_adapter(machine).unwrap();
            assert_eq!(driver.disks(), 0b111);
            assert_eq!(driver.facts().product_id, 0x2102);
        }
    }
}

#[test]
fn a_reset_of_the_machine_and_a_new_driver() {
    let mut harness = make(Options::default(), DiskSpec::Ram(CAPACITY));
    let options = [InterruptMode::Intx, InterruptMode::Msi]
        .map(|interrupts| Options { interrupts, ..Options::default() });
    any_adapter::a_reset_of_the_machine_and_a_new_driver(&mut harness, options);
}
