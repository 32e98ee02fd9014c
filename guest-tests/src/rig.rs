//! A rig: one adapter with its disks, and a guest that drives it. KVM and harness offer the same.

use std::time::Duration;

use guest_driver::{Report, Workload};
pub use paradisk_vmm::CpuSplit;

/// What a job took.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What the guest says.
    pub report: Report,
    /// CPU time.
    pub cpu: CpuSplit,
    /// Exits from the guest, where there is a virtual CPU.
    pub exits: u64,
    /// Interrupts that the adapter signalled.
    pub interrupts: u64,
    /// Doorbell events that the adapter took.
    pub doorbells: u64,
    /// Time on the wall.
    pub wall: Duration,
}

/// Why a job could not be run at all (a job that ran badly says so in its report).
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// The host refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The guest stopped in a way that it should not.
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

/// An adapter, its disks, and a guest that drives them. Jobs run one after another on the same bring-up.
pub trait Rig {
    /// Run one job.
    ///
    /// # Errors
    /// [`RigError`] where the guest could not be run.
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError>;
}
