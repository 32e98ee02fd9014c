//! Data written through driver, adapter and disk come back: every disk, every block size.

use guest_driver::{Layout, Mode, Workload, pvscsi};
use guest_tests::HarnessConfig;
use guest_tests::rig::Rig;

use crate::common::{DiskSpec, JOB, churn, fill_and_check_span, harness, run_clean};

const CAPACITY: u64 = 32 << 20;

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    let others = [DiskSpec::Ram4096(CAPACITY), DiskSpec::Direct(CAPACITY)];
    for spec in DiskSpec::all(CAPACITY).into_iter().chain(others) {
        let smallest = spec.disk().info().logical_sector.shift();
        for layout in [Layout::Contiguous, Layout::Scattered] {
            let options = pvscsi::Options { layout, ..Default::default() };
            let mut harness = harness(&HarnessConfig::default(), options, &[spec]);
            for shift in smallest..=20 {
                let block_size = 1 << shift;
                let span = u64::from(block_size) * if shift < 16 { 128 } else { 16 };
                // Every size at another place, the last one up to the end of the disk.
                let start = (CAPACITY - span) / u64::from(block_size) / 21
                    * u64::from(shift + 1)
                    * u64::from(block_size);
                let job = Workload { block_size, span, start, generation: shift.into(), ..JOB };
                fill_and_check_span(&mut harness, spec, CAPACITY, &job);
            }
        }
    }
}

#[test]
fn churn_keeps_every_generation() {
    for spec in DiskSpec::all(CAPACITY) {
        let mut harness = harness(&HarnessConfig::default(), pvscsi::Options::default(), &[spec]);
        churn(&mut harness, 1 << 20, 2000);
    }
}

#[test]
fn rings_of_every_size_wrap() {
    for ring_pages in [1, 2, 8, 32] {
        let options = pvscsi::Options { ring_pages, ..Default::default() };
        let mut harness = harness(&HarnessConfig::default(), options, &[DiskSpec::Ram(CAPACITY)]);
        let job = Workload { queue_depth: 256, workers: 8, span: 16 << 20, ios: 6000, ..JOB };
        for mode in [Mode::Fill, Mode::Churn, Mode::Measure] {
            let report = run_clean(&mut harness, &Workload { mode, ..job }).report;
            assert_eq!(report.in_flight, ring_pages * 32, "the ring is full");
        }
    }
}

/// The tests above can fail: a check detects data of another generation.
#[test]
fn a_check_of_other_data_fails() {
    let mut harness =
        harness(&HarnessConfig::default(), pvscsi::Options::default(), &[DiskSpec::Ram(1 << 20)]);
    let errors = |workload: &Workload, harness: &mut guest_tests::Harness| {
        harness.run(workload).unwrap().report.errors
    };
    assert_eq!(errors(&JOB, &mut harness), 0);
    let check = Workload { mode: Mode::Check, ..JOB };
    assert_eq!(errors(&check, &mut harness), 0);
    assert_eq!(errors(&Workload { generation: JOB.generation + 1, ..check }, &mut harness), 256);
}
