//! The in-process harness: the guest's driver calls the device on the same thread. No virtual CPU, no exits, no KVM.
//!
//! For tests, fuzzing, and the cost of the device model alone. Under KVM the device runs beside the guest and takes what
//! the guest has queued meanwhile; here the two take turns (see [`Delivery`]).

mod cpu;
mod machine;
mod processor;
mod synic;

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use guest_driver::adapter::Adapter;
use guest_driver::workload::Fault;
use guest_driver::{
    BusLogic, Ide, LoadGenerator, Lsi, Platform, Pvscsi, Report, Storvsc, VirtioBlk, VirtioScsi, Workload,
    buslogic, ide, lsi, pvscsi, virtio, vmbus,
};
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{InterruptSink, IoDevice, PciDevice};
use vm_memory::GuestMemoryMmap;

use crate::rig::{Measurement, Rig, RigError};

pub use machine::{Delivery, HarnessConfig, Machine, Meter};

/// A report at the start of a cache line. Each access adds to two of its sums at once: where these lie across two lines, which on
/// the stack is a matter of chance, that costs 30 cycles.
#[repr(align(64))]
struct Aligned(Report);

/// A driver, a load generator and the device they drive, on one thread.
pub struct Harness<A = Pvscsi, D: ?Sized + IoDevice = dyn PciDevice> {
    machine: Machine<D>,
    adapter: A,
    generator: Box<LoadGenerator>,
}

impl Harness<Pvscsi> {
    /// A harness with PVSCSI: `build` makes the device, the driver brings it up.
    ///
    /// # Errors
    /// As [`with_driver`](Self::with_driver).
    pub fn pvscsi<F>(config: &HarnessConfig, options: pvscsi::Options, build: F) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        Self::with_driver(config, build, |machine| Pvscsi::start(machine, options))
    }
}

impl Harness<Lsi> {
    /// A harness with LSI Logic: `build` makes the device, the driver brings it up.
    ///
    /// # Errors
    /// As [`with_driver`](Self::with_driver).
    pub fn lsi<F>(config: &HarnessConfig, options: lsi::Options, build: F) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        Self::with_driver(config, build, |machine| Lsi::start(machine, options))
    }
}

impl Harness<Ide> {
    /// A harness with a PCI IDE function in native mode: `build` makes the device, the driver brings it up.
    ///
    /// # Errors
    /// As [`with_driver`](Self::with_driver).
    pub fn ide<F>(config: &HarnessConfig, options: ide::Options, build: F) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        Self::with_driver(config, build, |machine| Ide::start(machine, options))
    }
}

impl Harness<BusLogic> {
    /// A harness with BusLogic: `build` makes the device, the driver brings it up.
    ///
    /// # Errors
    /// As [`with_driver`](Self::with_driver).
    pub fn buslogic<F>(config: &HarnessConfig, options: buslogic::Options, build: F) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        Self::with_driver(config, build, |machine| BusLogic::start(machine, options))
    }
}

impl Harness<VirtioBlk> {
    /// A harness with a virtio block device: `build` makes the device, the driver brings it up.
    ///
    /// # Errors
    /// As [`with_driver`](Self::with_driver).
    pub fn virtio_blk<F>(config: &HarnessConfig, options: virtio::Options, build: F) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        Self::with_driver(config, build, |machine| VirtioBlk::start(machine, options))
    }
}

impl Harness<VirtioScsi> {
    /// A harness with a virtio SCSI host device: `build` makes the device, the driver brings it up.
    ///
    /// # Errors
    /// As [`with_driver`](Self::with_driver).
    pub fn virtio_scsi<F>(
        config: &HarnessConfig,
        options: virtio::Options,
        build: F,
    ) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        Self::with_driver(config, build, |machine| VirtioScsi::start(machine, options))
    }
}

impl<A: Adapter> Harness<A> {
    /// A harness with the device that `build` makes and the driver that `start` brings up.
    ///
    /// # Errors
    /// [`RigError::Os`] without guest memory, [`RigError::Device`] from `build`, [`RigError::Guest`] from `start`.
    pub fn with_driver<F, S>(config: &HarnessConfig, build: F, start: S) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn InterruptSink>,
        ) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
        S: FnOnce(&mut Machine) -> Result<A, Fault>,
    {
        let mut machine = Machine::new(config, build)?;
        let adapter = start(&mut machine).map_err(did_not_come_up)?;
        Ok(Self { machine, adapter, generator: Box::default() })
    }

    /// Machine and driver, for tests that drive them by hand.
    pub fn parts(&mut self) -> (&mut Machine, &mut A) {
        (&mut self.machine, &mut self.adapter)
    }
}

impl Harness<Storvsc, dyn VmbusDevice> {
    /// A harness with a VMBus: `build` makes it, the driver brings its SCSI controller up.
    ///
    /// # Errors
    /// As [`with_driver`](Harness::with_driver).
    pub fn storvsc<F>(config: &HarnessConfig, options: vmbus::Options, build: F) -> Result<Self, RigError>
    where
        F: FnOnce(
            Arc<GuestMemoryMmap>,
            Box<dyn Synic>,
        ) -> Result<Box<dyn VmbusDevice>, Box<dyn Error + Send + Sync>>,
    {
        let mut machine = Machine::with_vmbus(config, build)?;
        let adapter = Storvsc::start(&mut machine, options).map_err(did_not_come_up)?;
        Ok(Self { machine, adapter, generator: Box::default() })
    }

    /// Machine and driver, for tests that drive them by hand.
    pub fn vmbus_parts(&mut self) -> (&mut Machine<dyn VmbusDevice>, &mut Storvsc) {
        (&mut self.machine, &mut self.adapter)
    }
}

fn did_not_come_up(fault: Fault) -> RigError {
    RigError::Guest(format!("the driver did not come up: {fault:?}"))
}

impl<A: Adapter, D: ?Sized + IoDevice> Rig for Harness<A, D>
where
    Machine<D>: Platform,
{
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError> {
        let mut report = Aligned(Report::EMPTY);
        let stats = self.machine.device_stats();
        let meter = self.machine.meter();
        let wall = Instant::now();
        let clocks = cpu::Clocks::now();
        self.generator.run(&mut self.adapter, &mut self.machine, workload, &mut report.0);
        let spent = cpu::Clocks::now().since(&clocks);
        let wall = wall.elapsed();
        let done = self.machine.device_stats();
        let cpu =
            cpu::split(&spent, &self.machine.meter().since(&meter), done.submit_ticks - stats.submit_ticks);
        Ok(Measurement {
            report: report.0,
            cpu,
            exits: 0,
            interrupts: done.interrupts - stats.interrupts,
            doorbells: done.doorbells - stats.doorbells,
            wall,
        })
    }
}
