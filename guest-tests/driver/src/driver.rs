//! The drivers there are, for a guest that is told at run time which one to use.

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

/// Which driver, and how it sets its adapter up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Options {
    /// VMware's paravirtual SCSI adapter.
    Pvscsi(pvscsi::Options),
    /// LSI Logic.
    Lsi(lsi::Options),
    /// PCI IDE function in native mode.
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

/// A driver that is up.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Driver {
    /// VMware's paravirtual SCSI adapter.
    Pvscsi(Pvscsi),
    /// LSI Logic.
    Lsi(Lsi),
    /// PCI IDE function in native mode.
    Ide(Ide),
    /// BusLogic.
    BusLogic(BusLogic),
    /// Virtio block device.
    VirtioBlk(VirtioBlk),
    /// Virtio SCSI host device.
    VirtioScsi(VirtioScsi),
    /// Hyper-V's synthetic SCSI controller.
    Storvsc(Storvsc),
}

impl Driver {
    /// Find the adapter and bring it up.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] with the step that failed.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        match options {
            Options::Pvscsi(options) => Pvscsi::start(platform, options).map(Self::Pvscsi),
            Options::Lsi(options) => Lsi::start(platform, options).map(Self::Lsi),
            Options::Ide(options) => Ide::start(platform, options).map(Self::Ide),
            Options::BusLogic(options) => BusLogic::start(platform, options).map(Self::BusLogic),
            Options::VirtioBlk(options) => VirtioBlk::start(platform, options).map(Self::VirtioBlk),
            Options::VirtioScsi(options) => VirtioScsi::start(platform, options).map(Self::VirtioScsi),
            Options::Storvsc(options) => Storvsc::start(platform, options).map(Self::Storvsc),
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
            Self::Pvscsi(driver) => generator.run(driver, platform, workload, report),
            Self::Lsi(driver) => generator.run(driver, platform, workload, report),
            Self::Ide(driver) => generator.run(driver, platform, workload, report),
            Self::BusLogic(driver) => generator.run(driver, platform, workload, report),
            Self::VirtioBlk(driver) => generator.run(driver, platform, workload, report),
            Self::VirtioScsi(driver) => generator.run(driver, platform, workload, report),
            Self::Storvsc(driver) => generator.run(driver, platform, workload, report),
        }
    }
}
