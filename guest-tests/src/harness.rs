//! The in-process harness: the guest's driver calls the device on the same thread. No virtual CPU, no exits, no KVM.
//!
//! It is for tests, fuzzing, and the cost of the device model alone. Under KVM the device runs in parallel with the guest; here the two
//! take turns (see [`Delivery`]).

mod cpu;
mod machine;
mod processor;
mod stopwatch;
mod synic;

use std::sync::Arc;
use std::time::Instant;

use guest_driver::adapter::Adapter;
use guest_driver::driver::Start;
use guest_driver::{LoadGenerator, Platform, Pvscsi, Report, Storvsc, Workload, vmbus};
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{InterruptSink, IoDevice, PciDevice};
use paradisk_vmm::Built;
use vm_memory::GuestMemoryMmap;

use crate::rig::{Measurement, Rig, RigError};

pub use machine::{Delivery, HarnessConfig, Machine};
pub use stopwatch::Meter;

/// A report at the start of a cache line. Each access adds to two of its sums. If these are on two cache lines, which on the stack is a
/// matter of chance, that costs 30 cycles.
#[repr(align(64))]
struct Aligned(Report);

/// A driver, a load generator and the device they drive, on one thread.
pub struct Harness<A = Pvscsi, D: ?Sized + IoDevice = dyn PciDevice> {
    machine: Machine<D>,
    adapter: A,
    generator: Box<LoadGenerator>,
}

impl<A: Start> Harness<A> {
    /// A harness with a PCI function. `build` makes the device; the driver brings it up.
    ///
    /// # Errors
    /// [`RigError::Os`] without guest memory, [`RigError::Device`] from `build`, [`RigError::Guest`] if the driver does not come up.
    pub fn start(
        config: &HarnessConfig,
        options: A::Options,
        build: impl FnOnce(Arc<GuestMemoryMmap>, Box<dyn InterruptSink>) -> Built<dyn PciDevice>,
    ) -> Result<Self, RigError> {
        Self::on(Machine::new(config, build)?, options)
    }
}

impl Harness<Storvsc, dyn VmbusDevice> {
    /// A harness with a VMBus. `build` makes it; the driver brings its SCSI controller up.
    ///
    /// # Errors
    /// As [`start`](Harness::start).
    pub fn storvsc(
        config: &HarnessConfig,
        options: vmbus::Options,
        build: impl FnOnce(Arc<GuestMemoryMmap>, Box<dyn Synic>) -> Built<dyn VmbusDevice>,
    ) -> Result<Self, RigError> {
        Self::on(Machine::with_vmbus(config, build)?, options)
    }
}

impl<A: Start, D: ?Sized + IoDevice> Harness<A, D>
where
    Machine<D>: Platform,
{
    fn on(mut machine: Machine<D>, options: A::Options) -> Result<Self, RigError> {
        let failed = |fault| RigError::Guest(format!("the driver did not come up: {fault:?}"));
        let adapter = A::start(&mut machine, options).map_err(failed)?;
        Ok(Self { machine, adapter, generator: Box::default() })
    }

    /// Machine and driver, for tests that call them directly.
    pub fn parts(&mut self) -> (&mut Machine<D>, &mut A) {
        (&mut self.machine, &mut self.adapter)
    }
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
