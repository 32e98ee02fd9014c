//! Harnesses over each kind of disk.
#![allow(dead_code, reason = "each test binary uses a part")]

mod disk;

use std::sync::Arc;

use devices::pvscsi::{Config, Pvscsi};
use devices::scsi::{Address, Bus, Identity, LogicalUnit};
use disk_formats::Disk;

use guest_driver::{Mode, Workload, pvscsi};
use guest_tests::rig::{Measurement, Rig};
use guest_tests::{Harness, HarnessConfig};

/// A job to vary: fills the disk.
pub(crate) const JOB: Workload = Workload {
    mode: Mode::Fill,
    target: 0,
    random: 1,
    read_percent: 50,
    block_size: 4096,
    queue_depth: 32,
    workers: 1,
    seed: 3,
    generation: 1,
    start: 0,
    span: 0,
    ticks: 0,
    ios: 0,
};

/// A disk to make.
#[derive(Clone, Debug)]
pub(crate) enum DiskSpec {
    /// In memory.
    Ram(u64),
}

impl DiskSpec {
    /// One of each kind that keeps data.
    pub(crate) fn all(capacity: u64) -> Vec<Self> {
        vec![Self::Ram(capacity)]
    }

    /// The disk as a logical unit.
    pub(crate) fn unit(&self) -> LogicalUnit {
        let Self::Ram(len) = self;
        let disk: Arc<dyn Disk> = Arc::new(disk::TestDisk::new(*len, disk::Hold::default()));
        let queue = disk.queue(&Default::default()).unwrap();
        LogicalUnit::new(disk, queue, Identity::default())
    }
}

/// PVSCSI with these disks as targets 0, 1 ...
pub(crate) fn harness(config: &HarnessConfig, options: pvscsi::Options, disks: &[DiskSpec]) -> Harness {
    Harness::pvscsi(config, options, |memory, interrupts| {
        let mut bus = Bus::new(1024);
        for (target, spec) in disks.iter().enumerate() {
            let address = Address { target: target as u8, lun: 0 };
            bus.attach(address, spec.unit())?;
        }
        Ok(Box::new(Pvscsi::new(memory, bus, interrupts, Config::default())?))
    })
    .unwrap()
}

/// Run a job in which nothing may go wrong.
pub(crate) fn run_clean(harness: &mut Harness, workload: &Workload) -> Measurement {
    let done = harness.run(workload).unwrap();
    assert_eq!(done.report.errors, 0, "{workload:?}: {:?}", done.report.fault);
    done
}
