//! Rigs that join guest drivers, adapters and disks, for tests and for the meter.

pub mod harness;
pub mod kvm;
#[cfg(feature = "linux")]
pub mod linux;
#[cfg(feature = "linux")]
pub mod qemu;
pub mod rig;

pub use harness::{Delivery, Harness, HarnessConfig, Machine};
pub use kvm::{KvmConfig, KvmRig};
