//! The machine of the harness: guest memory, one device that is called directly, and interrupts that are counted.
#![allow(unsafe_code, reason = "guest memory is handed to the driver as raw DMA memory")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use facts::tsc::{ticks, to_ticks, tsc_hz};
use guest_driver::{DmaRegion, Platform};
use paradisk_devices::event_loop::{EventLoop, Next, Ready, Wait};
use paradisk_devices::vmbus::{Synic, VmbusDevice};
use paradisk_devices::{
    AccessKind, BarKind, Doorbell, InterruptSink, IoDevice, MsiMessage, PciDevice, Sleep, Stats, Time,
};
use paradisk_vmm::Built;
use rustix::mm::{Advice, madvise};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::processor::Processor;
use super::stopwatch::{Meter, Stopwatch};
use super::synic::{self, HypervisorPages, SynicPages};
use crate::rig::RigError;

/// When the device sees a doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// At the guest's next wait, like an I/O thread that runs when the guest sleeps. Doorbells until then are one
    /// event, so the device sees batches as with a guest in parallel. The device did not sleep in between, so with a
    /// request-call threshold the guest may ring less often than it would there.
    #[default]
    AtWait,
    /// After this many doorbells, or when the guest waits.
    After(u32),
    /// At once, so that the device sees each request alone.
    Immediate,
}

/// Options of a harness.
#[derive(Clone, Copy, Debug)]
pub struct HarnessConfig {
    /// Bytes of guest memory: whole pages, at most 3 GiB. Unused memory costs nothing.
    pub memory: usize,
    /// When the device sees a doorbell.
    pub delivery: Delivery,
}

impl Default for HarnessConfig {
    fn default() -> Self {
        Self { memory: 256 << 20, delivery: Delivery::default() }
    }
}

/// Longest sleep. A device that loses a wake-up must not hang the guest, which checks its time-out after each sleep.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Longest sleep if the host cannot wait for the device's descriptors.
const WITHOUT_EVENTS: Duration = Duration::from_millis(1);
/// Without a completion for this long, the driver reports a time-out.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Start of DMA memory: the first megabyte is not used, as in a PC.
const FIRST_DMA: u64 = 1 << 20;
/// Start of base address registers: memory ends below.
const FIRST_BAR: u64 = 0xc000_0000;
const FIRST_PORT: u64 = 0xc000;
/// The message for the processor: local APIC address and any vector.
const MESSAGE: MsiMessage = MsiMessage { address: 0xfee0_0000, data: 0x31 };

/// Receives the device's interrupts for the processor.
struct Arrivals {
    processor: Arc<Processor>,
    /// By vector.
    routed: Vec<bool>,
}

impl InterruptSink for Arrivals {
    fn route(&mut self, vector: u16, message: Option<MsiMessage>) {
        let vector = usize::from(vector);
        if self.routed.len() <= vector {
            self.routed.resize(vector + 1, false);
        }
        self.routed[vector] = message == Some(MESSAGE);
    }

    fn message(&mut self, vector: u16) {
        if self.routed.get(usize::from(vector)).is_some_and(|routed| *routed) {
            self.processor.interrupt();
        }
    }

    fn line(&mut self, asserted: bool) {
        if !self.processor.line.swap(asserted, Ordering::Relaxed) && asserted {
            self.processor.interrupt();
        }
    }

    /// Edge-triggered, as in a PC.
    fn isa_line(&mut self, _irq: u8, asserted: bool) {
        if asserted {
            self.processor.interrupt();
        }
    }
}

/// A machine with one device: a PCI function, or a VMBus.
pub struct Machine<D: ?Sized + IoDevice = dyn PciDevice> {
    device: Box<D>,
    /// The hypervisor's state, for a machine with a VMBus.
    hypervisor: Option<HypervisorPages>,
    memory: Arc<GuestMemoryMmap>,
    next_dma: u64,
    processor: Arc<Processor>,
    delivery: Delivery,
    /// Doorbells of a PCI function.
    doorbells: Vec<Doorbell>,
    /// A bit for each doorbell.
    pending: u64,
    /// A register was written since the device was called last, which gave it work.
    submitted: bool,
    rung: u32,
    /// The device's descriptors.
    events: EventLoop,
    events_stale: bool,
    timeout: u64,
    watch: Stopwatch,
}

impl Machine {
    /// Make memory and device, and assign its base address registers as firmware does.
    ///
    /// # Errors
    /// [`RigError::Os`] without guest memory, [`RigError::Device`] from `build`.
    pub fn new(
        config: &HarnessConfig,
        build: impl FnOnce(Arc<GuestMemoryMmap>, Box<dyn InterruptSink>) -> Built<dyn PciDevice>,
    ) -> Result<Self, RigError> {
        let mut machine = Self::around(config, |memory, processor| {
            let arrivals = Arrivals { processor: Arc::clone(processor), routed: Vec::new() };
            build(Arc::clone(memory), Box::new(arrivals))
        })?;
        machine.doorbells = machine.device.doorbells().to_vec();
        machine.place_bars();
        Ok(machine)
    }

    /// Reset the device as a machine reset does, and assign its base address registers again. Memory that drivers have
    /// allocated stays allocated.
    pub fn reset(&mut self) {
        self.pending = 0;
        self.submitted = false;
        self.events_stale = true;
        let now = self.now();
        self.device.reset(now);
        self.place_bars();
    }

    fn place_bars(&mut self) {
        let (mut memory, mut port) = (FIRST_BAR, FIRST_PORT);
        for bar in self.device.bars().into_iter().filter(|bar| bar.kind != BarKind::FixedIo) {
            let next = if bar.kind == BarKind::Io { &mut port } else { &mut memory };
            let address = next.next_multiple_of(bar.size);
            *next = address + bar.size;
            let register = 0x10 + 4 * u16::from(bar.index);
            self.device.config_write(register, &(address as u32).to_le_bytes());
            if bar.kind == BarKind::Memory64 {
                self.device.config_write(register + 4, &((address >> 32) as u32).to_le_bytes());
            }
        }
    }
}

impl Machine<dyn VmbusDevice> {
    /// Make memory and a VMBus.
    ///
    /// # Errors
    /// [`RigError::Os`] without guest memory, [`RigError::Device`] from `build`.
    pub fn with_vmbus(
        config: &HarnessConfig,
        build: impl FnOnce(Arc<GuestMemoryMmap>, Box<dyn Synic>) -> Built<dyn VmbusDevice>,
    ) -> Result<Self, RigError> {
        let pages = Arc::<SynicPages>::default();
        let mut machine = Self::around(config, |memory, processor| {
            build(Arc::clone(memory), Box::new(pages.synic(Arc::clone(memory), Arc::clone(processor))))
        })?;
        machine.hypervisor = Some(HypervisorPages::new(Arc::clone(&machine.memory), pages));
        Ok(machine)
    }
}

impl<D: ?Sized + IoDevice> Machine<D> {
    /// Make memory, and the device with `build`.
    fn around(
        config: &HarnessConfig,
        build: impl FnOnce(&Arc<GuestMemoryMmap>, &Arc<Processor>) -> Built<D>,
    ) -> Result<Self, RigError> {
        let os = |what| move |source: io::Error| RigError::Os { what, source };
        if config.memory as u64 > FIRST_BAR {
            let source = io::Error::other(format!("{} bytes, expected 3 GiB at the most", config.memory));
            return Err(os("guest memory")(source));
        }
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), config.memory)])
            .map_err(|error| os("guest memory")(io::Error::other(error)))?;
        let memory = Arc::new(memory);
        let processor = Arc::<Processor>::default();
        let device = build(&memory, &processor).map_err(RigError::Device)?;
        let events = EventLoop::new().map_err(os("epoll_create"))?;
        Ok(Self {
            device,
            hypervisor: None,
            doorbells: Vec::new(),
            memory,
            next_dma: FIRST_DMA,
            processor,
            delivery: config.delivery,
            pending: 0,
            submitted: false,
            rung: 0,
            events,
            events_stale: true,
            timeout: to_ticks(DRIVER_TIMEOUT),
            watch: Stopwatch::new(),
        })
    }

    /// Set how long a driver waits for a completion before it reports a time-out. The default is 10 s.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = to_ticks(timeout);
    }

    /// The device's counters.
    #[must_use]
    pub fn device_stats(&self) -> Stats {
        self.device.stats()
    }

    /// The device, for calls that are no bus accesses. Its descriptors may change by such a call.
    pub fn device(&mut self) -> &mut D {
        self.events_stale = true;
        &mut self.device
    }

    /// Ticks spent so far.
    #[must_use]
    pub const fn meter(&self) -> Meter {
        self.watch.meter()
    }

    /// Guest memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// The time that the device gets.
    #[must_use]
    pub fn now(&self) -> Time {
        self.watch.peek()
    }

    /// Call the device, and count the ticks.
    #[inline]
    fn call<R>(&mut self, access: impl FnOnce(&mut D, Time) -> R) -> R {
        let Self { watch, device, .. } = self;
        watch.call(|now| access(device, now))
    }

    fn deliver(&mut self) {
        while self.pending != 0 {
            let index = self.pending.trailing_zeros();
            self.pending &= self.pending - 1;
            self.call(|device, now| device.on_doorbell(index as usize, now));
        }
        if std::mem::take(&mut self.submitted) {
            self.call(|device, now| device.on_completions(now));
        }
        self.rung = 0;
    }

    /// The device must process a write now, or at its next turn.
    fn ring(&mut self) {
        self.rung += 1;
        match self.delivery {
            Delivery::AtWait => {}
            Delivery::After(count) if self.rung < count => {}
            Delivery::After(_) | Delivery::Immediate => self.deliver(),
        }
    }

    /// Sleep until the device has work, at most for `longest`.
    fn sleep(&mut self, mut wait: Wait, longest: Duration) {
        if self.events_stale {
            self.collect_events();
        }
        // Without the device's descriptors there is no wake-up, so sleep only for a short time.
        let longest = if self.events_stale { longest.min(WITHOUT_EVENTS) } else { longest };
        wait.timeout = Some(wait.timeout.map_or(longest, |timeout| timeout.min(longest)));
        let Self { watch, events, .. } = self;
        // The device is called in any case, so an error only ends the sleep early.
        watch.sleep(|| drop(events.wait(wait, &mut Ready::new())));
    }

    fn allocate(&mut self, len: usize, align: usize) -> Option<DmaRegion> {
        let start = self.next_dma.checked_next_multiple_of(align.max(8) as u64)?;
        let end = start.checked_add(len as u64)?;
        let slice = self.memory.get_slice(GuestAddress(start), len).ok()?;
        self.next_dma = end;
        let base = slice.ptr_guard_mut().as_ptr();
        // SAFETY: the slice checked that the memory exists. It stays mapped for ever (`drop` below keeps the mapping),
        // page-aligned at guest address 0 and hence aligned to 8 here; there are no Rust references to guest memory.
        Some(unsafe { DmaRegion::new(base, start, len) })
    }

    fn taken(&self) -> u32 {
        self.processor.taken.load(Ordering::Relaxed)
    }

    /// The I/O thread's turn: doorbells, completions, and sleep as the device allows it.
    fn turn(&mut self, seen: u32) {
        if self.taken() == seen && self.processor.line.load(Ordering::Relaxed) {
            // Level-triggered: a line that is still asserted interrupts again when the processor is ready.
            return self.processor.interrupt();
        }
        let longest = self.watch.now().after(LONGEST_WAIT);
        loop {
            // The device is called below in any case.
            self.submitted = false;
            self.deliver();
            if self.taken() != seen {
                return;
            }
            self.call(|device, now| device.on_completions(now));
            if self.taken() != seen {
                return;
            }
            let sleep = self.call(|device, now| device.before_sleep(now));
            let now = self.watch.now();
            if self.taken() != seen || now >= longest {
                return;
            }
            // No other event waits for this thread, so a busy device is called again at once.
            if sleep != Sleep::No
                && let Next::Wait(wait) = self.events.next(sleep, now)
            {
                self.sleep(wait, longest.since(now));
            }
        }
    }

    fn collect_events(&mut self) {
        let collected = || -> io::Result<EventLoop> {
            let mut events = EventLoop::new()?;
            events.add_completions(&self.device.completion_events())?;
            Ok(events)
        };
        if let Ok(events) = collected() {
            self.events = events;
            self.events_stale = false;
        }
    }
}

/// DMA regions have no lifetime, and a driver may outlive its machine. So the addresses stay mapped, without their
/// pages.
impl<D: ?Sized + IoDevice> Drop for Machine<D> {
    fn drop(&mut self) {
        let now = self.now();
        self.device.reset(now);
        if self.next_dma == FIRST_DMA {
            return;
        }
        for region in self.memory.iter() {
            if let Ok(slice) = region.as_volatile_slice() {
                let (base, len) = (slice.ptr_guard_mut().as_ptr(), slice.len());
                // SAFETY: an anonymous mapping of ours, all of it; it stays valid and reads as zeros. There are no Rust
                // references to guest memory.
                let _ = unsafe { madvise(base.cast(), len, Advice::LinuxDontNeed) };
            }
        }
        std::mem::forget(Arc::clone(&self.memory));
    }
}

/// The platform of every driver: memory, and interrupts to the only processor.
macro_rules! processor_and_memory {
    () => {
        fn dma(&mut self, len: usize, align: usize) -> Option<DmaRegion> {
            self.allocate(len, align)
        }

        fn msi_message(&self) -> (u64, u32) {
            (MESSAGE.address, MESSAGE.data)
        }

        #[inline]
        fn interrupts(&self) -> u32 {
            self.taken()
        }

        fn wait_interrupt(&mut self, seen: u32) {
            self.turn(seen);
        }

        #[inline]
        fn ticks(&self) -> u64 {
            ticks()
        }

        fn timeout_ticks(&self) -> u64 {
            self.timeout
        }

        fn idle(&mut self, ticks: u64) {
            std::thread::sleep(Duration::from_secs_f64(ticks as f64 / tsc_hz() as f64));
        }
    };
}

impl Platform for Machine {
    fn config_read(&mut self, offset: u16) -> u32 {
        let mut data = [0; 4];
        self.call(|device, _| device.config_read(offset, &mut data));
        u32::from_le_bytes(data)
    }

    fn config_write(&mut self, offset: u16, value: u32) {
        self.events_stale = true;
        self.call(|device, _| device.config_write(offset, &value.to_le_bytes()));
    }

    fn read(&mut self, bar: u8, offset: u64, len: usize) -> u32 {
        let mut data = [0; 4];
        let Some(bytes) = data.get_mut(..len) else { return 0 };
        match self.device.access_kind(bar, offset, None) {
            AccessKind::Command => self.call(|device, now| device.bar_read(bar, offset, bytes, now)),
            _ => {
                let Self { watch, device, .. } = self;
                watch.access(|now| device.bar_read(bar, offset, bytes, now));
            }
        }
        u32::from_le_bytes(data)
    }

    fn write(&mut self, bar: u8, offset: u64, len: usize, value: u32) {
        let data = value.to_le_bytes();
        let Some(data) = data.get(..len) else { return };
        let hit = |doorbell: &Doorbell| {
            doorbell.bar == bar && doorbell.offset == offset && usize::from(doorbell.len) == len
        };
        if let Some(index) = self.doorbells.iter().position(hit) {
            self.pending |= 1 << index;
            return self.ring();
        }
        let kind = self.device.access_kind(bar, offset, Some(data));
        if kind == AccessKind::Command {
            self.events_stale = true;
            return self.call(|device, now| device.bar_write(bar, offset, data, now));
        }
        let Self { watch, device, .. } = self;
        watch.access(|now| device.bar_write(bar, offset, data, now));
        if kind == AccessKind::Submission {
            self.submitted = true;
            self.ring();
        }
    }

    processor_and_memory!();

    fn region(&mut self, address: u64, len: usize) -> Option<DmaRegion> {
        let given = FIRST_DMA..self.next_dma;
        if !address.is_multiple_of(8) || !given.contains(&address) || len as u64 > given.end - address {
            return None;
        }
        let slice = self.memory.get_slice(GuestAddress(address), len).ok()?;
        // SAFETY: as in `dma`, of which this is a part.
        Some(unsafe { DmaRegion::new(slice.ptr_guard_mut().as_ptr(), address, len) })
    }
}

impl Platform for Machine<dyn VmbusDevice> {
    fn config_read(&mut self, _offset: u16) -> u32 {
        u32::MAX
    }

    fn config_write(&mut self, _offset: u16, _value: u32) {}

    fn read(&mut self, _bar: u8, _offset: u64, _len: usize) -> u32 {
        u32::MAX
    }

    fn write(&mut self, _bar: u8, _offset: u64, _len: usize, _value: u32) {}

    processor_and_memory!();

    fn msr_write(&mut self, msr: u32, value: u64) {
        let Some(hypervisor) = &self.hypervisor else { return };
        if hypervisor.msr_write(msr, value) {
            self.call(|device, now| device.on_end_of_message(0, now));
        }
    }

    fn hypercall(&mut self, control: u64, input: u64, _output: u64) -> u64 {
        if control == synic::SIGNAL_EVENT {
            if let Some(index) = self.device.connections().iter().position(|id| u64::from(*id) == input) {
                self.pending |= 1 << index;
                self.ring();
            }
            return 0;
        }
        let Some(message) = self.hypervisor.as_ref().and_then(|pages| pages.message(control, input)) else {
            return synic::INVALID_INPUT;
        };
        self.events_stale = true;
        let status = self
            .call(|device, now| device.on_message(message.connection, message.kind, &message.payload, now));
        status as u64
    }
}
