//! The virtio block device (VIRTIO 1.2, 5.2).
//!
//! - `spec`: its constants and structures,
//! - `config`: what the guest is told of the disk,
//! - `request`: a chain becomes a request,
//! - `requests`: requests on their way through the disk,
//! - `io`: the way of a batch,
//! - `device`: the contract with the owner.

mod config;
mod device;
mod io;
mod request;
mod requests;
pub mod spec;

use std::sync::Arc;

use disk_formats::{Disk, DiskQueue};
use vm_memory::GuestAddressSpace;

use self::requests::Requests;
use self::spec::{BlkConfig, BlkFeatures, VIRTIO_BLK_ID_BYTES};
use super::pci::{DeviceKind, Transport};
use super::spec::DEVICE_TYPE_BLOCK;
use crate::dma::Dma;
use crate::moderation::Coalescing;
use crate::pci::LayoutError;
use crate::{InterruptSink, Stats};

pub use super::pci::MAX_QUEUES;

/// Entries of a queue at the most.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// How a block device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Queues, 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Entries of each queue at the most, 4 to [`MAX_QUEUE_SIZE`], rounded up to a power of two.
    pub queue_size: u16,
    /// Requests in flight at the most, over all queues; the disk's queue must have been made for at least as many.
    /// Further requests wait in the guest's rings.
    pub tasks: u32,
    /// Serial number, zeros behind it where it is shorter ([`serial`]).
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

/// A serial number as the guest reads it: the text, cut where it is too long.
#[must_use]
pub fn serial(text: &str) -> [u8; VIRTIO_BLK_ID_BYTES] {
    let mut serial = [0; VIRTIO_BLK_ID_BYTES];
    serial.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
    serial
}

/// A virtio block device.
///
/// Its base address register 0 is memory; MSI-X has one vector more than there are queues, without it everything
/// goes through INTx.
pub struct VirtioBlk<A: GuestAddressSpace> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` still keeps their memory.
    requests: Requests,
    dma: Dma<A>,
    transport: Transport,
    config: BlkConfig,
    /// The writeback mode after reset.
    writeback: u8,
    /// The queue that is served first.
    first_queue: usize,
    /// There may be more to do than an event said.
    more: bool,
    stats: Stats,
    /// Keeps the disk open as long as its queue is.
    _disk: Arc<dyn Disk>,
}

impl<A: GuestAddressSpace> VirtioBlk<A> {
    /// A block device in front of `disk`, with a queue of it that was made for [`Config::tasks`].
    ///
    /// # Errors
    /// [`LayoutError`] never, as its layout is constant: the function's builder tells.
    pub fn new(
        memory: A,
        disk: Arc<dyn Disk>,
        queue: Box<dyn DiskQueue>,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, LayoutError> {
        let info = disk.info().clone();
        let queues = config.queues.clamp(1, MAX_QUEUES);
        let queue_size = config.queue_size.clamp(4, MAX_QUEUE_SIZE).next_power_of_two();
        let kind = DeviceKind {
            device_type: DEVICE_TYPE_BLOCK,
            // Mass storage, SCSI: what firmware and older drivers expect of it.
            class: [0x01, 0x00, 0x00],
            features: config::features(&info, queues).bits(),
            queues,
            queue_size,
        };
        let configuration = config::configuration(&info, queues, queue_size);
        Ok(Self {
            transport: Transport::new(&kind, interrupts, config.coalescing)?,
            dma: Dma::new(memory),
            requests: Requests::new(queue, info, config.serial, config.tasks.max(1)),
            writeback: configuration.writeback,
            config: configuration,
            first_queue: 0,
            more: false,
            stats: Stats::default(),
            _disk: disk,
        })
    }

    /// Whether a write must be durable before it is completed (5.2.6.2).
    fn write_through(&self) -> bool {
        if self.transport.negotiated(BlkFeatures::CONFIG_WCE.bits()) {
            return self.config.writeback == 0;
        }
        !self.transport.negotiated(BlkFeatures::FLUSH.bits())
    }
}

#[cfg(test)]
mod tests;
