//! Guest drivers and the load generator. `no_std`, no dependencies, generic over [`Platform`]: the same code runs in
//! the bare-metal guest under KVM and on a host thread in the harness.
#![no_std]

pub mod adapter;
pub mod buslogic;
pub mod driver;
pub mod ide;
pub mod initiator;
pub mod loadgen;
pub mod lsi;
pub mod pci;
pub mod platform;
pub mod pvscsi;
pub mod scsi;
pub mod virtio;
pub mod vmbus;
pub mod workload;

pub use adapter::{Adapter, KickPolicy, Layout};
pub use buslogic::BusLogic;
pub use driver::Driver;
pub use ide::Ide;
pub use initiator::Initiator;
pub use loadgen::LoadGenerator;
pub use lsi::Lsi;
pub use pci::InterruptMode;
pub use platform::{DmaRegion, Platform};
pub use pvscsi::Pvscsi;
pub use virtio::blk::VirtioBlk;
pub use virtio::scsi::VirtioScsi;
pub use vmbus::Storvsc;
pub use workload::{Histogram, Mode, Report, Workload};
