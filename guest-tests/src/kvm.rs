//! The rig on a KVM machine: the bare-metal guest drives the device from a virtual CPU.

mod guest;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use facts::tsc::to_ticks;
use guest_driver::workload::Fault;
use guest_driver::{Workload, driver};
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{InterruptSink, PciDevice, Stats};
use paradisk_vmm::{
    Built, Config, CpuClocks, DeviceId, GuestMemory, Host, IoThreadOptions, Machine, MsiDelivery,
};

use crate::rig::{Measurement, Rig, RigError};

pub use guest::{Guest, SelfTest};

/// Without a completion for this long, the driver reports a time-out.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a KVM rig.
#[derive(Clone, Copy, Debug)]
pub struct KvmConfig {
    /// Bytes of guest memory: whole pages, at most 3 GiB. Unused memory costs nothing.
    pub memory: u64,
    /// The driver, and its options.
    pub driver: driver::Options,
    /// How interrupt messages are delivered to the guest.
    pub msi: MsiDelivery,
    /// How long KVM polls before the thread of a halted virtual CPU sleeps; `None`: the host's default. The default is
    /// 0, because polling uses CPU time that no I/O needs.
    pub halt_poll: Option<Duration>,
    /// How long the I/O thread polls the device before it sleeps. The default is 0, because polling uses CPU time, too.
    pub poll: Duration,
    /// Longest wait for the guest, in addition to a job's time.
    pub timeout: Duration,
}

impl Default for KvmConfig {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            driver: driver::Options::default(),
            msi: MsiDelivery::default(),
            halt_poll: Some(Duration::ZERO),
            poll: Duration::ZERO,
            timeout: Duration::from_secs(600),
        }
    }
}

/// A machine with one device and the bare-metal guest.
pub struct KvmRig {
    guest: Guest,
    machine: Machine,
    device: DeviceId,
}

impl KvmRig {
    /// Boot a guest with the device that `build` makes, and bring its driver up.
    ///
    /// # Errors
    /// As [`boot`](Self::boot); [`RigError::Guest`] if the driver does not come up.
    pub fn start(
        host: &Host,
        config: &KvmConfig,
        build: impl FnOnce(GuestMemory, Box<dyn InterruptSink>) -> Built<dyn PciDevice>,
    ) -> Result<Self, RigError> {
        Self::boot(host, config, build)?.brought_up(config)
    }

    /// Boot a guest with the VMBus that `build` makes, and bring its driver up.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_vmbus(
        host: &Host,
        config: &KvmConfig,
        build: impl FnOnce(GuestMemory, Box<dyn Synic>) -> Built<dyn VmbusDevice>,
    ) -> Result<Self, RigError> {
        Self::boot_with(host, config, |machine| machine.add_vmbus(build))?.brought_up(config)
    }

    /// Boot a guest with the device that `build` makes, without bringing its driver up.
    ///
    /// # Errors
    /// [`RigError::Machine`] without machine or device, [`RigError::Guest`] if the guest does not start.
    pub fn boot(
        host: &Host,
        config: &KvmConfig,
        build: impl FnOnce(GuestMemory, Box<dyn InterruptSink>) -> Built<dyn PciDevice>,
    ) -> Result<Self, RigError> {
        Self::boot_with(host, config, |machine| machine.add_device(build))
    }

    fn brought_up(mut self, config: &KvmConfig) -> Result<Self, RigError> {
        let report = self.guest.bring_up(&config.driver)?;
        if report.fault.kind != Fault::NONE {
            return Err(RigError::Guest(format!("the driver did not come up: {:?}", report.fault)));
        }
        Ok(self)
    }

    fn boot_with(
        host: &Host,
        config: &KvmConfig,
        add_device: impl FnOnce(&mut Machine) -> Result<DeviceId, paradisk_vmm::Error>,
    ) -> Result<Self, RigError> {
        let machine_config = Config {
            memory: config.memory,
            cpus: 1,
            halt_poll: config.halt_poll,
            msi: config.msi,
            io_thread: IoThreadOptions { poll: config.poll },
        };
        let (mut guest, handler, events) = Guest::new(config.timeout);
        let told = events.clone();
        let mut machine = Machine::new(
            host,
            machine_config,
            Arc::new(move |event| {
                // The rig may have been dropped.
                let _ = told.send(guest::Told::Ended(event.to_string()));
            }),
        )?;
        machine.add_mmio(guest::control_range(), handler);
        let device = add_device(&mut machine)?;
        guest.load(&mut machine, DRIVER_TIMEOUT)?;
        Ok(Self { guest, machine, device })
    }

    /// The machine, for tests beside jobs.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// The device's slot.
    #[must_use]
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// The guest, for tests of the machine itself.
    pub fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }

    fn device_stats(&self) -> Result<Stats, RigError> {
        let gone = || RigError::Guest("the device's thread has ended".to_owned());
        let mailbox = self.machine.device(self.device).ok_or_else(gone)?;
        mailbox.call(|device, _| device.stats()).map_err(|_| gone())
    }

    /// Number of exits: all of them if KVM counts, else those to this process; and whether it includes doorbells.
    fn exits(&self) -> (u64, bool) {
        let exits = self.machine.exits();
        let all = exits.iter().map(|exits| exits.kvm).sum::<Option<u64>>();
        (all.unwrap_or_else(|| exits.iter().map(paradisk_vmm::Exits::to_user).sum()), all.is_some())
    }

    /// Sleeps of the I/O thread that ended.
    #[must_use]
    pub fn wakeups(&self) -> u64 {
        let counters = self.machine.io_thread_counters(self.device);
        counters.map_or(0, |counters| counters.wakeups.load(Ordering::Relaxed))
    }
}

impl Rig for KvmRig {
    fn run(&mut self, workload: &Workload) -> Result<Measurement, RigError> {
        let clocks = |rig: &Self| CpuClocks::now(&rig.machine, &[rig.device]);
        let os = |source| RigError::Os { what: "CPU time of threads", source };
        let (before, exits) = (self.device_stats()?, self.exits());
        let spent = clocks(self).map_err(os)?;
        let wall = Instant::now();
        let report = self.guest.run(workload)?;
        let wall = wall.elapsed();
        let spent = clocks(self).map_err(os)?.since(&spent);
        let (after, (left, counted)) = (self.device_stats()?, self.exits());
        let doorbells = after.doorbells - before.doorbells;
        let exits = left - exits.0 + if counted { 0 } else { report.doorbells };
        Ok(Measurement {
            cpu: spent.split(after.submit_ticks - before.submit_ticks, to_ticks),
            report,
            exits,
            interrupts: after.interrupts - before.interrupts,
            doorbells,
            wall,
        })
    }
}
