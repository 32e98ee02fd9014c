//! The drivers there are, for a guest that is told at run time which one to use.

use crate::adapter::Adapter;
use crate::buslogic::{self, BusLogic};
use crate::ide::{self, Ide};
use crate::loadgen::LoadGenerator;
use crate::lsi::{self, Lsi};
use crate::platform::Platform;
use crate::pvscsi::{self, Pvscsi};
use crate::virtio;
use crate::virtio::blk::VirtioBlk;
use crate::virtio::scsi::VirtioScsi;
use crate::vmbus::{self, Storvsc};
use crate::workload::{Fault, Report, Workload};

/// A driver that can be brought up.
pub trait Start: Adapter + Sized {
    /// How it sets its adapter up.
    type Options;

    /// Find the adapter and bring it up.
    fn start<P: Platform>(platform: &mut P, options: Self::Options) -> Result<Self, Fault>;
}

/// Each driver with its options.
macro_rules! drivers {
    ($($(#[$doc:meta])* $driver:ident($options:ty),)+) => {
        /// Which driver, and how it sets its adapter up.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Options {
            $($(#[$doc])* $driver($options),)+
        }

        /// A driver that is up.
        #[derive(Debug)]
        #[expect(clippy::large_enum_variant, reason = "there is one of it")]
        pub enum Driver {
            $($(#[$doc])* $driver($driver),)+
        }

        $(impl Start for $driver {
            type Options = $options;

            fn start<P: Platform>(platform: &mut P, options: $options) -> Result<Self, Fault> {
                // The driver's inherent function, not this trait's.
                <$driver>::start(platform, options)
            }
        })+

        impl Driver {
            /// Find the adapter and bring it up.
            pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
                match options {
                    $(Options::$driver(options) => $driver::start(platform, options).map(Self::$driver),)+
                }
            }

            /// Run a job. The load loop is compiled for each driver: no choice is made for each I/O.
            pub fn run<P: Platform>(
                &mut self,
                generator: &mut LoadGenerator,
                platform: &mut P,
                workload: &Workload,
                report: &mut Report,
            ) {
                match self {
                    $(Self::$driver(driver) => generator.run(driver, platform, workload, report),)+
                }
            }
        }
    };
}

drivers! {
    /// VMware's paravirtual SCSI adapter.
    Pvscsi(pvscsi::Options),
    /// LSI Logic.
    Lsi(lsi::Options),
    /// PCI IDE function.
    Ide(ide::Options),
    /// BusLogic.
    BusLogic(buslogic::Options),
    /// Virtio block device.
    VirtioBlk(virtio::Options),
    /// Virtio SCSI host device.
    VirtioScsi(virtio::Options),
    /// Hyper-V's synthetic SCSI controller.
    Storvsc(vmbus::Options),
}

impl Default for Options {
    fn default() -> Self {
        Self::Pvscsi(pvscsi::Options::default())
    }
}
