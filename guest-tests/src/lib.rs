//! What runs inside a guest and what checks it: the rigs that join guest drivers, adapters and disks.

pub mod harness;
pub mod kvm;
#[cfg(feature = "linux")]
pub mod linux;
#[cfg(feature = "linux")]
pub mod qemu;
pub mod rig;

pub use harness::{Delivery, Harness, HarnessConfig, Machine};
pub use kvm::{KvmConfig, KvmRig};
