//! Guest drivers and the load generator. `no_std`, no dependencies, generic over [`Platform`]: the same code runs in
//! the bare-metal guest under KVM and on a host thread in the harness.
#![no_std]

pub mod platform;
pub mod workload;

pub use platform::{DmaRegion, Platform};
pub use workload::{Histogram, Mode, Report, Workload};
