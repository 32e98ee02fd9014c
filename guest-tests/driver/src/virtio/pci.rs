//! The transport (VIRTIO 1.2, 3.1 and 4.1): structures, device status, features, queues, interrupts, doorbells.

use super::queue::{Shape, Virtqueue};
use super::spec::*;
use super::{Options, Step, failed};
use crate::adapter::Counters;
use crate::pci::{Function, InterruptMode, find_capability_where};
use crate::platform::Platform;
use crate::workload::Fault;

/// A device must have reset within so many reads of its status.
const RESET_READS: u32 = 100_000;

/// Where a structure is.
#[derive(Clone, Copy, Debug)]
struct Place {
    bar: u8,
    offset: u64,
}

/// What a device is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Device type.
    pub device_type: u16,
    /// Features of its own that the driver has use for.
    pub features: u64,
    /// Queues that have a vector of their own with MSI-X, where there are enough.
    pub queues: u16,
}

/// The transport of one device.
#[derive(Debug)]
pub struct Transport {
    wanted: Wanted,
    function: Function,
    interrupts: InterruptMode,
    event_index: bool,
    indirect: bool,
    common: Place,
    notify: Place,
    /// Bytes from one doorbell to the next.
    multiplier: u32,
    isr: Place,
    device: Place,
    features: u64,
    /// Vectors that arrive.
    vectors: u16,
    counters: Counters,
}

impl Transport {
    /// Find the device, reset it, and agree on features. Queues come next, then [`go`](Self::go).
    pub fn start<P: Platform>(platform: &mut P, options: &Options, wanted: Wanted) -> Result<Self, Fault> {
        let id = (VENDOR, DEVICE_BASE + wanted.device_type);
        let function = Function::enable(platform, id, 0x1000).map_err(|_| failed(Step::Function))?;
        let place = |platform: &mut P, kind| structure(platform, kind).ok_or(failed(Step::Capabilities));
        let (common, _) = place(platform, CAP_COMMON)?;
        let (notify, at) = place(platform, CAP_NOTIFY)?;
        let (isr, _) = place(platform, CAP_ISR)?;
        let (device, _) = place(platform, CAP_DEVICE)?;
        let mut transport = Self {
            wanted,
            function,
            interrupts: options.interrupts,
            event_index: options.event_index,
            indirect: options.indirect,
            common,
            notify,
            multiplier: platform.config_read(at + 16),
            isr,
            device,
            features: 0,
            vectors: 0,
            counters: Counters::default(),
        };
        transport.restart(platform)?;
        Ok(transport)
    }

    /// Reset the device and agree on features again.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.reset(platform)?;
        self.add_status(platform, STATUS_ACKNOWLEDGE);
        self.add_status(platform, STATUS_DRIVER);
        let optional = [(self.event_index, F_EVENT_IDX), (self.indirect, F_INDIRECT_DESC)];
        let rings =
            optional.iter().filter(|(wanted, _)| *wanted).fold(F_RING_RESET, |all, (_, bit)| all | bit);
        self.features = self.offered(platform) & (F_VERSION_1 | rings | self.wanted.features);
        for half in [0, 1] {
            self.write(platform, DRIVER_FEATURE_SELECT, 4, half);
            self.write(platform, DRIVER_FEATURE, 4, (self.features >> (32 * half)) as u32);
        }
        self.add_status(platform, STATUS_FEATURES_OK);
        if self.features & F_VERSION_1 == 0 || self.status(platform) & STATUS_FEATURES_OK == 0 {
            return Err(failed(Step::Features));
        }
        self.set_interrupts(platform)
    }

    fn set_interrupts<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        let wanted = self.wanted.queues.saturating_add(1);
        let refused = failed(Step::Interrupts);
        self.vectors = self.function.set_vectors(platform, self.interrupts, wanted).map_err(|_| refused)?;
        if self.interrupts == InterruptMode::MsiX {
            self.write(platform, CONFIG_VECTOR, 2, 0);
            if self.read(platform, CONFIG_VECTOR, 2) != 0 {
                return Err(refused);
            }
        }
        Ok(())
    }

    /// The driver is ready: the device may take requests.
    pub fn go<P: Platform>(&mut self, platform: &mut P) {
        self.add_status(platform, STATUS_DRIVER_OK);
    }

    /// Reset the device. When this returns, it writes to memory no more.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] where it does not reset.
    pub fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.write(platform, DEVICE_STATUS, 1, 0);
        let reset = (0..RESET_READS).any(|_| self.status(platform) == 0);
        if reset { Ok(()) } else { Err(failed(Step::Reset)) }
    }

    /// Whether both sides have agreed on all of these features.
    #[must_use]
    pub const fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Whether the event index is in use.
    #[must_use]
    pub const fn event_index(&self) -> bool {
        self.has(F_EVENT_IDX)
    }

    /// Whether requests go through indirect descriptors.
    #[must_use]
    pub const fn indirect(&self) -> bool {
        self.has(F_INDIRECT_DESC)
    }

    /// Whether the device interrupts by a line, which reading the ISR status acknowledges.
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.interrupts == InterruptMode::Intx
    }

    /// Registers touched since the driver came up.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Entries of a queue, as many as it has but no more than `most`.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] where there is no such queue.
    pub fn queue_size<P: Platform>(&mut self, platform: &mut P, index: u16, most: u16) -> Result<u16, Fault> {
        self.write(platform, QUEUE_SELECT, 2, index.into());
        let size = (self.read(platform, QUEUE_SIZE, 2) as u16).min(most);
        if size.is_power_of_two() { Ok(size) } else { Err(failed(Step::Queue)) }
    }

    /// Make a queue and take it into use.
    pub fn make_queue<P: Platform>(
        &mut self,
        platform: &mut P,
        index: u16,
        shape: Shape,
    ) -> Result<Virtqueue, Fault> {
        let mut queue = Virtqueue::new(platform, shape).ok_or(failed(Step::Memory))?;
        self.enable_queue(platform, index, &mut queue)?;
        Ok(queue)
    }

    /// Take a queue into use. With MSI-X it gets a vector of its own, the last one where there are too few.
    pub fn enable_queue<P: Platform>(
        &mut self,
        platform: &mut P,
        index: u16,
        queue: &mut Virtqueue,
    ) -> Result<(), Fault> {
        self.write(platform, QUEUE_SELECT, 2, index.into());
        self.write(platform, QUEUE_SIZE, 2, queue.shape().size.into());
        for (register, address) in [QUEUE_DESC, QUEUE_DRIVER, QUEUE_DEVICE].into_iter().zip(queue.addresses())
        {
            self.write(platform, register, 4, address as u32);
            self.write(platform, register + 4, 4, (address >> 32) as u32);
        }
        if self.interrupts == InterruptMode::MsiX {
            let vector = (index + 1).min(self.vectors - 1);
            self.write(platform, QUEUE_VECTOR, 2, vector.into());
            if self.read(platform, QUEUE_VECTOR, 2) != u32::from(vector) {
                return Err(failed(Step::Interrupts));
            }
        }
        let doorbell = self.read(platform, QUEUE_NOTIFY_OFF, 2);
        queue.doorbell = self.notify.offset + u64::from(self.multiplier) * u64::from(doorbell);
        self.write(platform, QUEUE_ENABLE, 2, 1);
        if self.read(platform, QUEUE_ENABLE, 2) == 1 { Ok(()) } else { Err(failed(Step::Queue)) }
    }

    /// Reset one queue. When this returns, the device touches its memory no more.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] where the device does not offer that, or does not do it.
    pub fn reset_queue<P: Platform>(&mut self, platform: &mut P, index: u16) -> Result<(), Fault> {
        if !self.has(F_RING_RESET) {
            return Err(failed(Step::Features));
        }
        self.write(platform, QUEUE_SELECT, 2, index.into());
        self.write(platform, QUEUE_RESET, 2, 1);
        let reset = (0..RESET_READS).any(|_| self.read(platform, QUEUE_RESET, 2) == 0);
        if reset { Ok(()) } else { Err(failed(Step::Reset)) }
    }

    /// Ring a queue's doorbell.
    #[inline]
    pub fn notify<P: Platform>(&mut self, platform: &mut P, index: u16, queue: &Virtqueue) {
        self.counters.doorbells += 1;
        platform.write(self.notify.bar, queue.doorbell, 2, index.into());
    }

    /// Read, and so clear, the ISR status.
    #[inline]
    pub fn read_isr<P: Platform>(&mut self, platform: &mut P) -> u8 {
        self.counters.registers += 1;
        platform.read(self.isr.bar, self.isr.offset, 1) as u8
    }

    /// Read a field of the device-specific configuration, 1 to 8 bytes.
    pub fn config<P: Platform>(&mut self, platform: &mut P, offset: u64, len: usize) -> u64 {
        let Place { bar, offset: base } = self.device;
        loop {
            let generation = self.read(platform, CONFIG_GENERATION, 1);
            let low = platform.read(bar, base + offset, len.min(4));
            let high = if len == 8 { platform.read(bar, base + offset + 4, 4) } else { 0 };
            // Fields of several registers are not read at once (2.5.1).
            if self.read(platform, CONFIG_GENERATION, 1) == generation {
                return u64::from(low) | u64::from(high) << 32;
            }
        }
    }

    /// Write a field of the device-specific configuration, 1, 2 or 4 bytes.
    pub fn set_config<P: Platform>(&mut self, platform: &mut P, offset: u64, len: usize, value: u32) {
        self.counters.registers += 1;
        platform.write(self.device.bar, self.device.offset + offset, len, value);
    }

    /// Device status.
    pub fn status<P: Platform>(&mut self, platform: &mut P) -> u8 {
        self.read(platform, DEVICE_STATUS, 1) as u8
    }

    fn add_status<P: Platform>(&mut self, platform: &mut P, bit: u8) {
        let status = self.status(platform) | bit;
        self.write(platform, DEVICE_STATUS, 1, status.into());
    }

    fn offered<P: Platform>(&mut self, platform: &mut P) -> u64 {
        [0, 1].into_iter().fold(0, |offered, half| {
            self.write(platform, DEVICE_FEATURE_SELECT, 4, half);
            offered | u64::from(self.read(platform, DEVICE_FEATURE, 4)) << (32 * half)
        })
    }

    fn read<P: Platform>(&mut self, platform: &mut P, register: u64, len: usize) -> u32 {
        self.counters.registers += 1;
        platform.read(self.common.bar, self.common.offset + register, len)
    }

    fn write<P: Platform>(&mut self, platform: &mut P, register: u64, len: usize, value: u32) {
        self.counters.registers += 1;
        platform.write(self.common.bar, self.common.offset + register, len, value);
    }
}

/// Where a structure is, by the first capability of its type (4.1.4), and where that capability is.
fn structure<P: Platform>(platform: &mut P, kind: u8) -> Option<(Place, u16)> {
    let suits = |platform: &mut P, at, id| id == CAP_VENDOR && (platform.config_read(at) >> 24) as u8 == kind;
    let at = find_capability_where(platform, suits)?;
    let bar = platform.config_read(at + 4) as u8;
    let offset = platform.config_read(at + 8).into();
    (bar < 6).then_some((Place { bar, offset }, at))
}
