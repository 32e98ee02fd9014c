//! Jobs over disks in memory and in files.

use std::sync::Arc;

use guest_driver::Shape;
use paradisk_disk_formats::{OpenOptions, RamDisk, SectorSize};

use super::*;
use crate::bed;

const JOB: Workload = Workload {
    mode: Mode::Measure,
    read_percent: 100,
    queue_depth: 8,
    workers: 2,
    seed: 1,
    generation: 0,
    ios: 1000,
    ..Workload::FILL
};

fn native(disk: Arc<dyn paradisk_disk_formats::Disk>) -> Native {
    Native::new(bed::subject(disk, None))
}

fn ram() -> Native {
    native(Arc::new(RamDisk::new(1 << 20, SectorSize::B512).unwrap()))
}

#[test]
fn a_job_makes_its_accesses_and_accounts_for_all_cpu_time() {
    let mut native = ram();
    for (job, bytes) in [(JOB, 4_096_000), (Workload { block_size: 512, read_percent: 30, ..JOB }, 512_000)] {
        let Measurement { report, cpu, .. } = native.run(&job).unwrap();
        assert_eq!((report.ios, report.bytes, report.errors, report.in_flight), (1000, bytes, 0, 16));
        assert_eq!((report.latency.count, report.capacity, report.sector), (1000, 1 << 20, 512));
        assert!(cpu.total > 0 && cpu.device + cpu.kernel == cpu.total);
    }
}

#[test]
fn a_job_ends_by_time() {
    let ticks = to_ticks(std::time::Duration::from_millis(20));
    // How many accesses fit depends on what else the processor does.
    let report = ram().run(&Workload { ios: 0, ticks, ..JOB }).unwrap().report;
    assert!(report.ticks >= ticks && report.ios > 0, "{} {}", report.ticks, report.ios);
}

#[test]
fn bursts_are_apart() {
    let think = to_ticks(std::time::Duration::from_millis(10));
    let shape = Shape { burst: 100, think, ..Shape::PLAIN };
    let Measurement { report, .. } = ram().run(&Workload { shape, ..JOB }).unwrap();
    assert_eq!((report.ios, report.errors), (1000, 0));
    assert!(report.ticks > 9 * think, "{} {think}", report.ticks);
    let ios = ram().run(&Workload { ios: 0, ticks: 5 * think / 2, shape, ..JOB }).unwrap().report.ios;
    assert!(ios.is_multiple_of(100) && (100..=300).contains(&ios), "at most three bursts fit: {ios}");
}

#[test]
fn sequential_writes_cover_the_span_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    std::fs::write(&path, vec![0xaa; 64 << 10]).unwrap();
    let job = Workload {
        random_percent: 0,
        read_percent: 0,
        start: 16 << 10,
        span: 32 << 10,
        ios: 8,
        queue_depth: 2,
        ..JOB
    };
    let done = native(OpenOptions::new(&path).open().unwrap()).run(&job).unwrap();
    assert_eq!((done.report.ios, done.report.errors), (8, 0));
    let data = std::fs::read(&path).unwrap();
    for (number, block) in data.chunks(4096).enumerate() {
        let old = block.iter().filter(|byte| **byte == 0xaa).count();
        let zeros = block.iter().filter(|byte| **byte == 0).count();
        let written = (4..12).contains(&number);
        assert!(if written { old < 100 && zeros < 100 } else { old == 4096 }, "{number}: {old} {zeros}");
    }
}

#[test]
fn failed_accesses_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    std::fs::write(&path, [0; 8192]).unwrap();
    let disk = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
    let report = native(disk).run(&Workload { read_percent: 0, ios: 20, ..JOB }).unwrap().report;
    assert_eq!((report.ios, report.errors, report.bytes, report.fault.kind), (20, 20, 0, Fault::STATUS));
}

#[test]
fn jobs_that_make_no_sense_are_refused() {
    for job in [
        Workload { mode: Mode::Fill, ..JOB },
        Workload { block_size: 0, ..JOB },
        Workload { block_size: 1000, ..JOB },
        Workload { block_size: 2 << 20, ..JOB },
        Workload { queue_depth: 0, ..JOB },
        Workload { queue_depth: u32::MAX, ..JOB },
        Workload { workers: 0, ..JOB },
        Workload { ios: 0, ..JOB },
        Workload { start: 1 << 20, ..JOB },
    ] {
        assert!(ram().run(&job).is_err(), "{job:?}");
    }
}
