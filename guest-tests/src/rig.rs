//! A rig: one adapter with its disks, and a guest that drives it, under KVM or in the harness.

use std::time::Duration;

use guest_driver::{Report, Workload};
pub use paradisk_vmm::CpuSplit;

/// The measurement of a job.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The guest's report.
    pub report: Report,
    /// CPU time.
    pub cpu: CpuSplit,
    /// Exits from the guest; 0 without a virtual CPU.
    pub exits: u64,
    /// Interrupts that the adapter signalled.
    pub interrupts: u64,
    /// Doorbell events that the adapter took.
    pub doorbells: u64,
    /// Wall-clock time.
    pub wall: Duration,
}

/// Why a job could not run. (A job that ran and failed reports this in its report.)
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// The host refused an operation.
    #[error("{what}: {source}")]
    Os {
        /// The attempted operation.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The guest stopped unexpectedly.
    #[error("guest stopped: {0}")]
    Guest(String),
    /// The device could not be made.
    #[error("device: {0}")]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// The machine could not be made.
    #[error(transparent)]
    Machine(#[from] paradisk_vmm::Error),
    /// A disk could not be used.
    #[error(transparent)]
    Disk(#[from] paradisk_disk_formats::OpenError),
}

/// An adapter, its disks, and a guest that drives them. The driver is brought up once; jobs run one after another.
pub trait Rig {
    /// Run one job.
    ///
    /// # Errors
    /// [`RigError`] if the guest could not run.
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError>;
}
