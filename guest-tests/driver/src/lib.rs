//! Guest drivers and the load generator. `no_std`, no dependencies, generic over [`Platform`]: the same code runs in
//! the bare-metal guest under KVM and on a host thread in the harness.
#![no_std]

pub mod adapter;
pub mod loadgen;
pub mod pci;
pub mod platform;
pub mod pvscsi;
pub mod scsi;
pub mod workload;

pub use adapter::{Adapter, KickPolicy, Layout};
pub use loadgen::LoadGenerator;
pub use pci::InterruptMode;
pub use platform::{DmaRegion, Platform};
pub use pvscsi::Pvscsi;
pub use workload::{Histogram, Mode, Report, Workload};
