//! The virtio block device (VIRTIO 1.2, 5.2).
//!
//! - `spec`: its constants and structures,
//! - `config`: features and configuration space,
//! - `request`: a chain is parsed into a request,
//! - `requests`: the requests in flight,
//! - `block`: the back-end of the PCI device,
//! - `ring`: one queue without the PCI function, for `threaded` and for other transports such as vhost-user,
//! - `threaded`: the PCI device with its own threads for the queues.

mod block;
mod config;
mod request;
mod requests;
mod ring;
pub mod spec;
#[cfg(feature = "event-loop")]
mod threaded;

use std::sync::Arc;

use paradisk_disk_formats::{Disk, DiskInfo, DiskQueue};
use vm_memory::GuestAddressSpace;

pub use self::block::Block;
pub use self::config::Configuration;
use self::requests::Requests;
pub use self::ring::{Ring, RingConfig, RingSetup, Track};
use self::spec::VIRTIO_BLK_ID_BYTES;
#[cfg(feature = "event-loop")]
pub use self::threaded::{ThreadedBlk, ThreadsError};
use super::device::Device;
pub use super::pci::MAX_QUEUES;
use super::pci::{DeviceKind, Transport};
pub use super::queue::Broken;
use super::spec::DEVICE_TYPE_BLOCK;
use crate::interrupt::InterruptSink;
use crate::moderation::Coalescing;
use crate::pci::LayoutError;

/// Maximum number of entries of a queue.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Configuration of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Queues, 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Maximum number of entries of each queue, 4 to [`MAX_QUEUE_SIZE`], rounded up to a power of two.
    pub queue_size: u16,
    /// Maximum number of requests in flight, over all queues. The disk's queue must have been made for at least as many.
    /// Further requests wait in the guest's rings.
    pub tasks: u32,
    /// Serial number, padded with zeros ([`serial`]).
    pub serial: [u8; VIRTIO_BLK_ID_BYTES],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coalescing: Coalescing::default(),
            queues: 1,
            queue_size: 256,
            tasks: 256,
            serial: [0; VIRTIO_BLK_ID_BYTES],
        }
    }
}

/// The description of a block device for its transport, and its configuration space.
fn device_kind(info: &DiskInfo, config: &Config) -> (DeviceKind, Configuration) {
    let queues = config.queues.clamp(1, MAX_QUEUES);
    let queue_size = config.queue_size.clamp(4, MAX_QUEUE_SIZE).next_power_of_two();
    let configuration = Configuration::new(info, queues, queue_size);
    let kind = DeviceKind {
        device_type: DEVICE_TYPE_BLOCK,
        // Mass storage, SCSI: the class that firmware and older drivers expect.
        class: [0x01, 0x00, 0x00],
        features: configuration.offered(),
        queues,
        queue_size,
    };
    (kind, configuration)
}

/// A serial number as the guest reads it: the text, truncated or padded with zeros.
#[must_use]
pub fn serial(text: &str) -> [u8; VIRTIO_BLK_ID_BYTES] {
    let mut serial = [0; VIRTIO_BLK_ID_BYTES];
    serial.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
    serial
}

/// A virtio block device: a virtio device in front of a disk.
pub type VirtioBlk<A> = Device<A, Block>;

impl<A: GuestAddressSpace> VirtioBlk<A> {
    /// A block device in front of `disk`, with a queue of it that was made for [`Config::tasks`].
    ///
    /// # Errors
    /// None: the layout is constant. [`LayoutError`] is the error of the PCI function's builder.
    pub fn new(
        memory: A,
        disk: Arc<dyn Disk>,
        queue: Box<dyn DiskQueue>,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, LayoutError> {
        let info = disk.info().clone();
        let (kind, configuration) = device_kind(&info, &config);
        let transport = Transport::new(&kind, interrupts, config.coalescing)?;
        let requests = Requests::new(queue, info, config.serial, config.tasks.max(1));
        Ok(Self::with(memory, transport, Block::new(disk, requests, configuration)))
    }
}

#[cfg(test)]
mod tests;
