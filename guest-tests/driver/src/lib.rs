//! Guest drivers and the load generator. `no_std`, no dependencies, generic over [`Platform`]: the same code runs in
//! the bare-metal guest under KVM and on a host thread in the harness.
#![no_std]

/// The steps of a driver's bring-up, and the fault of one that failed.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $number:literal,)+) => {
        /// At which step the bring-up failed: [`Fault::found`](crate::workload::Fault) with `BRING_UP`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u64)]
        pub enum Step {
            $($(#[$doc])* $step = $number,)+
        }

        /// The fault of a bring-up that failed at this step.
        pub(super) const fn failed(step: Step) -> $crate::workload::Fault {
            use $crate::workload::Fault;
            Fault { kind: Fault::BRING_UP, found: step as u64, ..Fault::EMPTY }
        }
    };
}
pub(crate) use steps;

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
pub use workload::{Histogram, Mode, Report, Shape, Workload};
