//! The virtio SCSI host device (VIRTIO 1.2, 5.6), in front of the SCSI target.
//!
//! - `spec`: its constants and structures,
//! - `lun`: how it addresses logical units,
//! - `answer`: where the answer to a chain goes,
//! - `request`: a chain becomes a task, a task's end becomes an answer,
//! - `host`: requests on their way through the target,
//! - `control`: the control queue: task management,
//! - `events`: the event queue; hot-plug.

mod answer;
mod control;
mod events;
mod host;
mod lun;
mod request;
pub mod spec;

use vm_memory::GuestAddressSpace;

pub use self::host::Host;
use self::spec::{REQUEST_QUEUES, ScsiFeatures};
use super::device::Device;
use super::pci::{DeviceKind, MAX_QUEUES, Transport};
use super::spec::DEVICE_TYPE_SCSI_HOST;
use crate::InterruptSink;
use crate::moderation::Coalescing;
use crate::pci::LayoutError;
use crate::scsi::Bus;

/// Request queues at the most.
pub const MAX_REQUEST_QUEUES: u16 = MAX_QUEUES - REQUEST_QUEUES as u16;

/// Entries of a queue at the most.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Targets at the most.
pub const MAX_TARGETS: u16 = 256;

/// How a SCSI host device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Request queues, 1 to [`MAX_REQUEST_QUEUES`].
    pub queues: u16,
    /// Entries of each queue at the most, 4 to [`MAX_QUEUE_SIZE`], rounded up to a power of two.
    pub queue_size: u16,
    /// Targets that the guest is told to look for, 1 to [`MAX_TARGETS`].
    pub targets: u16,
    /// Requests in flight at the most; the bus must have been made for at least as many. Further requests wait in the
    /// guest's rings.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { coalescing: Coalescing::default(), queues: 1, queue_size: 256, targets: 64, tasks: 1024 }
    }
}

/// A virtio SCSI host device: a virtio device in front of a SCSI target.
pub type VirtioScsi<A> = Device<A, Host>;

impl<A: GuestAddressSpace> VirtioScsi<A> {
    /// A device in front of `bus`.
    ///
    /// # Errors
    /// [`LayoutError`] never, as its layout is constant: the function's builder tells.
    pub fn new(
        memory: A,
        bus: Bus,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, LayoutError> {
        let queues = config.queues.clamp(1, MAX_REQUEST_QUEUES);
        let queue_size = config.queue_size.clamp(4, MAX_QUEUE_SIZE).next_power_of_two();
        let kind = DeviceKind {
            device_type: DEVICE_TYPE_SCSI_HOST,
            // Mass storage, SCSI.
            class: [0x01, 0x00, 0x00],
            features: (ScsiFeatures::HOTPLUG | ScsiFeatures::CHANGE).bits(),
            queues: REQUEST_QUEUES as u16 + queues,
            queue_size,
        };
        let transport = Transport::new(&kind, interrupts, config.coalescing)?;
        let host = Host::new(bus, Config { queues, queue_size, ..config });
        Ok(Self::with(memory, transport, host))
    }
}

#[cfg(test)]
mod tests;
