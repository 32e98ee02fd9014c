//! The virtio block device in the harness: data, and recovery.

mod common;

use common::{DiskSpec, JOB, blk_harness, run_clean};
use guest_driver::virtio::Options;
use guest_driver::{Layout, Mode, VirtioBlk, Workload};
use guest_tests::{Harness, HarnessConfig};

const CAPACITY: u64 = 16 << 20;

fn make(options: Options, spec: DiskSpec) -> Harness<VirtioBlk> {
    blk_harness(&HarnessConfig::default(), options, spec)
}

#[test]
fn every_power_of_two_from_512_bytes_to_1_mib_on_every_disk() {
    for spec in DiskSpec::all(CAPACITY).into_iter().chain([DiskSpec::Ram4096(CAPACITY)]) {
        let smallest = spec.disk().info().logical_sector.shift();
        for (layout, indirect) in [
            (Layout::Contiguous, true),
            (Layout::Contiguous, false),
            (Layout::Scattered, true),
            (Layout::Scattered, false),
        ] {
            let mut harness = make(Options { layout, indirect, ..Options::default() }, spec);
            for shift in smallest..=20 {
                let span = (1u64 << shift) * if shift < 16 { 256 } else { 16 };
                let job = Workload {
                    block_size: 1 << shift,
                    span: span.min(CAPACITY),
                    generation: shift.into(),
                    ..JOB
                };
                for mode in [Mode::Fill, Mode::Check] {
                    let report = run_clean(&mut harness, &Workload { mode, ..job }).report;
                    assert_eq!((report.capacity, report.bytes), (CAPACITY, job.span), "{spec:?} {shift}");
                }
            }
        }
    }
}
