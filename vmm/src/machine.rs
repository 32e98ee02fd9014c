//! A KVM machine: its memory, virtual CPUs, interrupt routing and devices, from creation to stop.

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_bindings::{CpuId, KVM_CAP_HALT_POLL, KVM_PIT_SPEAKER_DUMMY, kvm_enable_cap, kvm_pit_config};
use kvm_ioctls::VcpuFd;
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{InterruptSink, PciDevice};

use crate::bus::{Bus, BusHandler, Handlers};
use crate::capabilities::Host;
use crate::console::Console;
use crate::error::Error;
use crate::hyperv::{self, Controllers, Hyperv};
use crate::interrupts::{MsiDelivery, Router};
use crate::io_thread::{BusDevice, Counters, DeviceHandle, IoThread, Options};
use crate::mailbox::Mailbox;
use crate::memory::GuestMemory;
use crate::memory::{self, Vm};
use crate::pci_root::PciRoot;
use crate::power::{KeyboardController, PowerManagement, ResetControl};
use crate::rtc::Rtc;
use crate::thread_time::ThreadTime;
use crate::vcpu::{Exits, StopReason, Vcpu, VcpuError};
use crate::{cpuid, layout};

/// Maximum number of entries in KVM's CPUID table.
const CPUID_ENTRIES: usize = kvm_bindings::KVM_MAX_CPUID_ENTRIES;

/// Configuration of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of RAM.
    pub memory: u64,
    /// Virtual CPUs, each on a thread.
    pub cpus: u8,
    /// How long KVM polls for an interrupt before the thread of a halted virtual CPU sleeps; `None`: the host's default. Polling uses CPU
    /// time without doing work.
    pub halt_poll: Option<Duration>,
    /// How interrupt messages are delivered to the guest.
    pub msi: MsiDelivery,
    /// How I/O threads wait.
    pub io_thread: Options,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            cpus: 1,
            halt_poll: None,
            msi: MsiDelivery::default(),
            io_thread: Options::default(),
        }
    }
}

/// A virtual CPU or device that has ended without being stopped.
#[derive(Debug)]
pub enum Event {
    /// A virtual CPU.
    Vcpu {
        /// Which.
        id: usize,
        /// How.
        outcome: Result<StopReason, VcpuError>,
    },
    /// A device's thread.
    Device {
        /// Which.
        id: DeviceId,
        /// Why.
        cause: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpu { id, outcome: Ok(reason) } => write!(f, "virtual CPU {id} ended: {reason}"),
            Self::Vcpu { outcome: Err(error), .. } => error.fmt(f),
            Self::Device { id, cause } => write!(f, "I/O thread of {id}: {cause}"),
        }
    }
}

/// A device of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    index: u8,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Slot(u8),
    Vmbus,
}

impl DeviceId {
    /// Slot on PCI bus 0, 1 to 31; `None`: it is the VMBus.
    #[must_use]
    pub const fn slot(self) -> Option<u8> {
        match self.place {
            Place::Slot(slot) => Some(slot),
            Place::Vmbus => None,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Slot(slot) => write!(f, "slot {slot}"),
            Place::Vmbus => f.write_str("the VMBus"),
        }
    }
}

/// Receives events, on the thread that ends.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// A new device, or the reason why it could not be made.
pub type Built<D> = Result<Box<D>, Box<dyn StdError + Send + Sync>>;

/// A KVM machine. Dropping it stops its virtual CPUs, then resets its devices and ends their threads.
pub struct Machine {
    // Dropped in this order.
    vcpus: Vec<Vcpu>,
    devices: Vec<IoThread>,
    parked: Vec<VcpuFd>,
    /// KVM's supported CPUID. Each virtual CPU has its own table made from it.
    cpuid: CpuId,
    tsc_is_clock: bool,
    bus: Arc<Bus>,
    hyperv: Option<Arc<Hyperv>>,
    router: Arc<Router>,
    vm: Arc<Vm>,
    config: Config,
    origin: Instant,
    tsc_hz: u64,
    events: EventSink,
}

impl Machine {
    /// Make a machine without devices. `events` receives virtual CPUs and devices that end without being stopped.
    ///
    /// # Errors
    /// The host lacks memory, or KVM refuses.
    pub fn new(host: &Host, config: Config, events: EventSink) -> Result<Self, Error> {
        let fd = host.create_vm()?;
        fd.set_identity_map_address(layout::IDENTITY_MAP).map_err(Error::kvm("KVM_SET_IDENTITY_MAP_ADDR"))?;
        fd.set_tss_address(layout::TSS as usize).map_err(Error::kvm("KVM_SET_TSS_ADDR"))?;
        fd.create_irq_chip().map_err(Error::kvm("KVM_CREATE_IRQCHIP"))?;
        // Includes the port that Linux reads when it measures the time-stamp counter by the timer.
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        fd.create_pit2(pit).map_err(Error::kvm("KVM_CREATE_PIT2"))?;
        if let Some(poll) = config.halt_poll {
            let mut cap = kvm_enable_cap { cap: KVM_CAP_HALT_POLL, ..Default::default() };
            cap.args[0] = u64::try_from(poll.as_nanos()).unwrap_or(u64::MAX);
            fd.enable_cap(&cap).map_err(Error::kvm("KVM_CAP_HALT_POLL"))?;
        }
        let vm = Arc::new(Vm::new(fd, memory::allocate(config.memory)?)?);
        let cpuid =
            host.kvm.get_supported_cpuid(CPUID_ENTRIES).map_err(Error::kvm("KVM_GET_SUPPORTED_CPUID"))?;
        let mut parked = Vec::new();
        let cpus = config.cpus.max(1);
        for id in 0..cpus {
            let vcpu = vm.fd.create_vcpu(id.into()).map_err(Error::kvm("KVM_CREATE_VCPU"))?;
            vcpu.set_cpuid2(&cpuid::of_cpu(&cpuid, id, cpus)).map_err(Error::kvm("KVM_SET_CPUID2"))?;
            parked.push(vcpu);
        }
        let khz = parked.first().map_or(Ok(0), VcpuFd::get_tsc_khz).map_err(Error::kvm("KVM_GET_TSC_KHZ"))?;
        tracing::info!(
            memory = config.memory,
            cpus,
            native_kernel_mode = host.native_kernel_mode,
            "machine created"
        );
        let bus = Bus { pci: PciRoot::new(Arc::clone(&vm)), memory: Handlers::new(), io: Handlers::new() };
        Ok(Self {
            vcpus: Vec::new(),
            devices: Vec::new(),
            parked,
            cpuid,
            tsc_is_clock: host.tsc_is_clock,
            bus: Arc::new(bus),
            hyperv: None,
            router: Arc::new(Router::new(Arc::clone(&vm), config.msi)?),
            vm,
            config,
            origin: Instant::now(),
            tsc_hz: u64::from(khz) * 1000,
            events,
        })
    }

    /// Guest memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        &self.vm.memory
    }

    /// Ticks of the guest's time-stamp counter in a second.
    #[must_use]
    pub const fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }

    /// Add registers of the user in memory space, preferably in [`layout::USER_MMIO`]. Call this before [`start`](Self::start).
    pub fn add_mmio(&mut self, range: Range<u64>, handler: Arc<dyn BusHandler>) {
        if let Some(bus) = Arc::get_mut(&mut self.bus) {
            bus.memory.push((range, handler));
        }
    }

    /// Add registers of the user in I/O space. Call this before [`start`](Self::start).
    pub fn add_pio(&mut self, range: Range<u16>, handler: Arc<dyn BusHandler>) {
        if let Some(bus) = Arc::get_mut(&mut self.bus) {
            bus.io.push((range.start.into()..range.end.into(), handler));
        }
    }

    /// Virtual CPUs.
    #[must_use]
    pub fn cpus(&self) -> u8 {
        self.config.cpus.max(1)
    }

    /// Add the devices of a PC that are not PCI: a serial port, whose own thread writes to `output`, a clock, power-off and reset. Call
    /// this before [`start`](Self::start).
    ///
    /// # Errors
    /// The host cannot provide a thread.
    pub fn add_pc(&mut self, output: impl Write + Send + 'static) -> Result<Console, Error> {
        let router = Arc::clone(&self.router);
        let console = Console::new(output, move || router.pulse(layout::SERIAL_IRQ))?;
        self.add_pio(layout::SERIAL, console.handler());
        self.add_pio(layout::RTC, Arc::new(Rtc::default()));
        self.add_pio(layout::KEYBOARD_CONTROLLER, Arc::new(KeyboardController));
        self.add_pio(
            layout::POWER_EVENTS.start..layout::POWER_CONTROL.end,
            Arc::new(PowerManagement::default()),
        );
        self.add_pio(layout::RESET_CONTROL..layout::RESET_CONTROL + 1, Arc::new(ResetControl::default()));
        Ok(console)
    }

    /// Make a device and give it an I/O thread and the next slot.
    ///
    /// # Errors
    /// `build`'s, no slot left, no thread.
    pub fn add_device<F>(&mut self, build: F) -> Result<DeviceId, Error>
    where
        F: FnOnce(GuestMemory, Box<dyn InterruptSink>) -> Built<dyn PciDevice>,
    {
        let slot = self.bus.pci.next_slot()?;
        let id = self.next_device(Place::Slot(slot));
        let device = build(Arc::clone(&self.vm.memory), self.router.sink(slot)).map_err(Error::Device)?;
        self.bus.pci.check_fixed_ports(slot, &device.bars())?;
        let (thread, handle) = self.start_thread(format!("io{slot}"), id, device)?;
        self.bus.pci.add(handle).map_err(|_| Error::DeviceGone(slot))?;
        self.devices.push(thread);
        tracing::info!(slot, "adapter added");
        Ok(id)
    }

    /// Make a Hyper-V VMBus and give it an I/O thread. The guest then finds Hyper-V instead of KVM. A machine has at most one VMBus. Call
    /// this before [`start`](Self::start).
    ///
    /// # Errors
    /// `build`'s, a second VMBus, a machine that has started, a KVM without MSRs in user space, no thread.
    pub fn add_vmbus<F>(&mut self, build: F) -> Result<DeviceId, Error>
    where
        F: FnOnce(GuestMemory, Box<dyn Synic>) -> Built<dyn VmbusDevice>,
    {
        if self.hyperv.is_some() {
            return Err(Error::SecondVmbus);
        }
        if self.parked.is_empty() {
            return Err(Error::Started);
        }
        let id = self.next_device(Place::Vmbus);
        let controllers = Controllers::new(Arc::clone(&self.vm.memory), self.cpus());
        // It only sends messages: the line (slot 0) stays low.
        let synic = controllers.synic(self.router.sink(0));
        let device = build(Arc::clone(&self.vm.memory), synic).map_err(Error::Device)?;
        let (thread, handle) = self.start_thread("vmbus".to_owned(), id, device)?;
        let tables = (0..self.cpus()).map(|cpu| cpuid::of_cpu(&self.cpuid, cpu, self.cpus()));
        hyperv::advertise(&self.vm, self.cpus(), self.tsc_is_clock, self.parked.iter().zip(tables))?;
        handle.doorbells.moved(&self.vm, &[]);
        let hyperv = Arc::new(Hyperv::new(controllers, handle, self.tsc_hz, self.origin));
        self.add_pio(layout::SIGNAL_EVENT..layout::HYPERCALL, Arc::clone(&hyperv) as Arc<dyn BusHandler>);
        self.hyperv = Some(hyperv);
        self.devices.push(thread);
        tracing::info!("VMBus added");
        Ok(id)
    }

    /// Whether there is a VMBus.
    pub(crate) const fn has_vmbus(&self) -> bool {
        self.hyperv.is_some()
    }

    /// The ID of the next device.
    fn next_device(&self, place: Place) -> DeviceId {
        DeviceId { index: self.devices.len() as u8, place }
    }

    fn start_thread<D: BusDevice + ?Sized>(
        &self,
        name: String,
        id: DeviceId,
        device: Box<D>,
    ) -> Result<(IoThread, DeviceHandle<D>), Error> {
        let events = Arc::clone(&self.events);
        let ended = move |cause| {
            tracing::error!(device = %id, %cause, "I/O thread ended");
            events(Event::Device { id, cause });
        };
        IoThread::start(name, device, self.config.io_thread, self.origin, ended)
    }

    fn device_thread(&self, id: DeviceId) -> Option<&IoThread> {
        self.devices.get(usize::from(id.index))
    }

    /// The mailbox to call a device on its thread.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&Mailbox> {
        self.device_thread(id).map(|thread| &thread.mailbox)
    }

    /// Counters of a device's I/O thread.
    #[must_use]
    pub fn io_thread_counters(&self, id: DeviceId) -> Option<&Counters> {
        self.device_thread(id).map(|thread| &*thread.counters)
    }

    /// CPU time of a device's thread.
    ///
    /// # Errors
    /// It has ended, or the kernel does not tell.
    pub fn io_thread_time(&self, id: DeviceId) -> io::Result<ThreadTime> {
        self.device_thread(id).map_or_else(|| Err(io::ErrorKind::NotFound.into()), IoThread::time)
    }

    /// Thread IDs of the virtual CPUs; empty before [`start`](Self::start).
    #[must_use]
    pub fn vcpu_tids(&self) -> Vec<u32> {
        self.vcpus.iter().map(|vcpu| vcpu.tid).collect()
    }

    /// CPU time of all virtual CPUs, including those that have ended; zero before [`start`](Self::start).
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn vcpu_time(&self) -> io::Result<ThreadTime> {
        self.vcpus.iter().try_fold(ThreadTime::default(), |sum, vcpu| Ok(sum.and(&vcpu.time()?)))
    }

    /// Exits of each virtual CPU; empty before [`start`](Self::start).
    #[must_use]
    pub fn exits(&self) -> Vec<Exits> {
        self.vcpus.iter().map(Vcpu::exits).collect()
    }

    /// Assign base address registers, set the virtual CPUs' registers by `boot`, and run them.
    ///
    /// # Errors
    /// `boot`'s, no space for a base address register, no thread.
    pub fn start(&mut self, mut boot: impl FnMut(usize, &VcpuFd) -> Result<(), Error>) -> Result<(), Error> {
        self.bus.pci.assign()?;
        for (id, vcpu) in self.parked.iter().enumerate() {
            boot(id, vcpu)?;
        }
        for (id, vcpu) in std::mem::take(&mut self.parked).into_iter().enumerate() {
            let events = Arc::clone(&self.events);
            let ended = move |outcome| {
                tracing::info!(id, ?outcome, "virtual CPU ended");
                events(Event::Vcpu { id, outcome });
            };
            let memory = Arc::clone(&self.vm.memory);
            let (bus, hyperv) = (Arc::clone(&self.bus), self.hyperv.clone());
            self.vcpus.push(Vcpu::start(id, vcpu, bus, hyperv, memory, ended)?);
        }
        tracing::info!(cpus = self.vcpus.len(), "machine started");
        Ok(())
    }

    /// Whether all virtual CPUs are halted with interrupts off, so that only a non-maskable interrupt can wake one. KVM does not report
    /// this state, so it is no [`Event`]: poll it. Each call makes all virtual CPUs exit.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        !self.vcpus.is_empty() && self.vcpus.iter().all(Vcpu::is_halted)
    }

    /// Stop the virtual CPUs and wait for them. A bus handler that blocks must return first.
    pub fn stop(&mut self) {
        self.vcpus.iter().for_each(Vcpu::stop);
        self.vcpus.iter_mut().for_each(Vcpu::join);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}
