//! The transport: register space, capabilities, device status and interrupts (VIRTIO 1.2, 4.1).
//!
//! It turns register accesses into [`Event`]s for the device, and completions into interrupts.

mod capabilities;
mod common;
mod interrupts;
mod layout;

use self::capabilities::ConfigAccess;
use self::layout::*;
use super::queue::RingSetup;
use super::spec::{
    DeviceStatus, Features, Isr, PCI_DEVICE_ID_BASE, PCI_SUBSYSTEM_ID, PCI_VENDOR_ID_VIRTIO,
    VIRTIO_MSI_NO_VECTOR,
};
use crate::device::{Bar, BarKind, Doorbell};
use crate::dma::Spans;
use crate::interrupt::InterruptSink;
use crate::pci::{BusMaster, Function, Identity, LayoutError};

/// Maximum number of queues.
pub const MAX_QUEUES: u16 = 64;

/// The identity of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceKind {
    /// Device type.
    pub(super) device_type: u16,
    /// PCI class, sub-class and programming interface.
    pub(super) class: [u8; 3],
    /// Device-specific features.
    pub(super) features: u64,
    /// Queues, 1 to [`MAX_QUEUES`].
    pub(super) queues: u16,
    /// Maximum number of entries of a queue; a power of two.
    pub(super) queue_size: u16,
}

/// What an access asks the device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing: the transport has done it.
    None,
    /// A write to configuration space.
    BusMaster(BusMaster),
    /// Device reset: call [`Transport::begin_reset`], and [`Transport::reset`] when nothing is in flight.
    Reset,
    /// These status bits were set. With DRIVER_OK, requests may wait already.
    Status(DeviceStatus),
    /// Queue reset: call [`Transport::begin_queue_reset`], and [`Transport::reset_queue`] when nothing of the queue is in flight.
    ResetQueue(usize),
    /// A queue's doorbell.
    Notify(usize),
    /// A write to the device-specific configuration.
    Config { offset: u64, value: u64, len: usize },
}

/// The registers of a queue.
struct QueueRegisters {
    rings: RingSetup,
    /// Vector, [`VIRTIO_MSI_NO_VECTOR`] for none.
    vector: u16,
    enabled: bool,
    /// A reset of the queue waits for requests that the disks have.
    resetting: bool,
}

impl QueueRegisters {
    /// After a reset. `size`: maximum number of entries.
    const fn new(size: u16) -> Self {
        let rings =
            RingSetup { size, descriptors: 0, available: 0, used: 0, next_avail: None, event_index: false };
        Self { rings, vector: VIRTIO_MSI_NO_VECTOR, enabled: false, resetting: false }
    }
}

/// The transport of one device.
pub(super) struct Transport {
    function: Function,
    config_access: ConfigAccess,
    offered: u64,
    accepted: u64,
    device_feature_select: u32,
    driver_feature_select: u32,
    status: DeviceStatus,
    /// A device reset waits for requests that the disks have. Until it completes, the status reads as before (2.4.2: a driver
    /// considers a reset complete when the status reads 0), and register writes are ignored.
    resetting: bool,
    config_vector: u16,
    /// Counts the changes of the device-specific configuration by the device, wrapping.
    config_generation: u8,
    /// The configuration changed while the driver was not ready: it may have read the old one.
    config_unreported: bool,
    queue_select: u16,
    isr: Isr,
    /// Maximum number of entries of a queue.
    queue_size: u16,
    queues: Box<[QueueRegisters]>,
    doorbells: Box<[Doorbell]>,
    interrupts: u64,
}

impl Transport {
    pub(super) fn new(kind: &DeviceKind, interrupts: Box<dyn InterruptSink>) -> Result<Self, LayoutError> {
        let identity = Identity {
            vendor: PCI_VENDOR_ID_VIRTIO,
            device: PCI_DEVICE_ID_BASE + kind.device_type,
            revision: 1,
            class: kind.class,
            subsystem_vendor: PCI_VENDOR_ID_VIRTIO,
            subsystem: PCI_SUBSYSTEM_ID,
        };
        let count = kind.queues.clamp(1, MAX_QUEUES);
        let function = Function::new(&identity, interrupts)
            .with_bar(BAR, BarKind::Memory32, BAR_SIZE)?
            .with_intx(1)
            .with_msix(count + 1, BAR, MSIX_TABLE, MSIX_PBA)?;
        let (function, config_access) = capabilities::add(function)?;
        let doorbell =
            |queue: u16| Doorbell { bar: BAR, offset: NOTIFY + u64::from(queue) * NOTIFY_MULTIPLIER, len: 2 };
        Ok(Self {
            function,
            config_access,
            offered: kind.features | Features::all().bits(),
            accepted: 0,
            device_feature_select: 0,
            driver_feature_select: 0,
            status: DeviceStatus::empty(),
            resetting: false,
            config_vector: VIRTIO_MSI_NO_VECTOR,
            config_generation: 0,
            config_unreported: false,
            queue_select: 0,
            isr: Isr::empty(),
            queue_size: kind.queue_size,
            queues: (0..count).map(|_| QueueRegisters::new(kind.queue_size)).collect(),
            doorbells: (0..count).map(doorbell).collect(),
            interrupts: 0,
        })
    }

    pub(super) fn bars(&self) -> Vec<Bar> {
        self.function.bars()
    }

    pub(super) fn doorbells(&self) -> &[Doorbell] {
        &self.doorbells
    }

    pub(super) const fn bus_master(&self) -> bool {
        self.function.bus_master()
    }

    /// Whether the driver has accepted all of these features.
    pub(super) const fn negotiated(&self, features: u64) -> bool {
        self.status.contains(DeviceStatus::FEATURES_OK) && self.accepted & features == features
    }

    /// The features that the driver has accepted, as they stand.
    pub(super) const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Whether requests may be taken.
    pub(super) fn live(&self) -> bool {
        let stopped = DeviceStatus::DEVICE_NEEDS_RESET | DeviceStatus::FAILED;
        self.status.contains(DeviceStatus::DRIVER_OK)
            && !self.resetting
            && !self.status.intersects(stopped)
            && self.function.bus_master()
    }

    /// The queues that are enabled and not being reset.
    pub(super) fn enabled_queues(&self) -> impl Iterator<Item = (usize, RingSetup)> {
        let queues = self.queues.iter().enumerate().filter(|(_, queue)| queue.enabled && !queue.resetting);
        queues.map(|(index, queue)| (index, queue.rings))
    }

    /// Read configuration space.
    pub(super) fn config_read(&mut self, offset: u16, data: &mut [u8], config: &[u8]) {
        match self.config_access.window(&self.function, offset, data.len()) {
            Some((bar, offset)) => self.bar_read(bar, offset, data, config),
            None => self.function.config_read(offset, data),
        }
    }

    /// Write configuration space.
    pub(super) fn config_write<M: Spans>(&mut self, offset: u16, data: &[u8], memory: &M) -> Event {
        if let Some((bar, offset)) = self.config_access.window(&self.function, offset, data.len()) {
            return self.bar_write(bar, offset, data, memory);
        }
        Event::BusMaster(self.function.config_write(offset, data))
    }

    /// Read from a base address register's space; `config` is the device-specific configuration.
    pub(super) fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], config: &[u8]) {
        if self.function.msix_read(bar, offset, data) {
            return;
        }
        data.fill(0);
        if bar != BAR {
            return;
        }
        match offset {
            0..ISR => self.common_read(offset, data),
            ISR => {
                if let Some(first) = data.first_mut() {
                    *first = std::mem::take(&mut self.isr).bits();
                    self.update_line();
                }
            }
            DEVICE_CFG.. => copy(config, offset - DEVICE_CFG, data),
            _ => {}
        }
    }

    /// Write to a base address register's space.
    pub(super) fn bar_write<M: Spans>(&mut self, bar: u8, offset: u64, data: &[u8], memory: &M) -> Event {
        if self.function.msix_write(bar, offset, data) || bar != BAR || self.resetting {
            return Event::None;
        }
        let mut bytes = [0; 8];
        let Some(start) = bytes.get_mut(..data.len()) else { return Event::None };
        start.copy_from_slice(data);
        let value = u64::from_le_bytes(bytes);
        match offset {
            0..ISR => self.common_write(offset, value, data.len(), memory),
            DEVICE_CFG..NOTIFY => Event::Config { offset: offset - DEVICE_CFG, value, len: data.len() },
            NOTIFY.. => {
                let queue = (offset - NOTIFY) / NOTIFY_MULTIPLIER;
                let known = queue < self.queues.len() as u64 && offset.is_multiple_of(NOTIFY_MULTIPLIER);
                if known { Event::Notify(queue as usize) } else { Event::None }
            }
            _ => Event::None,
        }
    }

    /// The device is broken: it sets DEVICE_NEEDS_RESET, and reports it if a driver is ready (2.1.2).
    #[cold]
    pub(super) fn needs_reset(&mut self) {
        if self.status.contains(DeviceStatus::DEVICE_NEEDS_RESET) {
            return;
        }
        tracing::warn!("virtio driver broke a ring: DEVICE_NEEDS_RESET");
        self.status |= DeviceStatus::DEVICE_NEEDS_RESET;
        if self.status.contains(DeviceStatus::DRIVER_OK) {
            self.notify_config();
        }
    }

    /// The device-specific configuration has changed: notify the guest, as soon as its driver is ready (2.5, 4.1.4.3.1).
    pub(super) fn config_changed(&mut self) {
        self.config_generation = self.config_generation.wrapping_add(1);
        self.config_unreported = true;
        self.notify_if_changed();
    }

    /// Notify the guest of a changed configuration, if its driver is ready.
    fn notify_if_changed(&mut self) {
        if self.config_unreported && self.status.contains(DeviceStatus::DRIVER_OK) && !self.resetting {
            self.config_unreported = false;
            self.notify_config();
        }
    }

    /// A device reset begins, and waits for requests that the disks have. Until it completes, nothing is posted or signalled.
    pub(super) fn begin_reset(&mut self) {
        self.resetting = true;
        self.isr = Isr::empty();
        self.update_line();
    }

    /// A queue's reset begins, and waits for requests that the disks have.
    pub(super) fn begin_queue_reset(&mut self, index: usize) {
        if let Some(queue) = self.queues.get_mut(index) {
            queue.resetting = true;
        }
    }

    /// Whether a device reset is pending.
    pub(super) const fn resetting(&self) -> bool {
        self.resetting
    }

    /// The queues whose reset is pending.
    pub(super) fn resetting_queues(&self) -> Vec<usize> {
        (0..self.queues.len()).filter(|index| self.queues[*index].resetting).collect()
    }

    /// Whether any reset is pending.
    pub(super) fn any_resetting(&self) -> bool {
        self.resetting || self.queues.iter().any(|queue| queue.resetting)
    }

    /// Device reset: everything but configuration space and the table of vectors.
    pub(super) fn reset(&mut self) {
        self.resetting = false;
        self.accepted = 0;
        self.device_feature_select = 0;
        self.driver_feature_select = 0;
        self.status = DeviceStatus::empty();
        self.config_unreported = false;
        self.config_vector = VIRTIO_MSI_NO_VECTOR;
        self.queue_select = 0;
        self.isr = Isr::empty();
        self.update_line();
        self.queues.fill_with(|| QueueRegisters::new(self.queue_size));
    }

    /// Reset of one queue. None of its requests may be in flight.
    pub(super) fn reset_queue(&mut self, index: usize) {
        if let Some(queue) = self.queues.get_mut(index) {
            *queue = QueueRegisters::new(self.queue_size);
        }
    }

    /// Power-on.
    pub(super) fn power_on(&mut self) {
        self.reset();
        self.function.reset();
    }
}

/// Copy the bytes of a structure from `offset` on, up to its end.
fn copy(structure: &[u8], offset: u64, data: &mut [u8]) {
    let from = usize::try_from(offset).ok().and_then(|offset| structure.get(offset..)).unwrap_or_default();
    for (to, &byte) in data.iter_mut().zip(from) {
        *to = byte;
    }
}
