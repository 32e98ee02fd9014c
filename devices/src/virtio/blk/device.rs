//! The block device as a PCI function, and its rings.

use std::sync::Arc;

use paradisk_disk_formats::{Disk, OpenError};
use vm_memory::GuestAddressSpace;

use super::super::device::{DeviceType, Error, Sets, VirtioDevice};
use super::super::pci::{DeviceKind, MAX_QUEUES};
use super::super::ring_thread;
use super::super::rings::{self, Front};
use super::super::spec::DEVICE_TYPE_BLOCK;
use super::Config;
use super::config::Configuration;
use super::requests::BlockRequests;
use crate::interrupt::InterruptSink;

/// The rings of a block device, in front of a queue of the disk.
pub type Rings<A, F> = rings::Rings<A, F, BlockRequests>;

/// A thread that serves the rings of a block device.
pub type RingThread<A, F> = ring_thread::RingThread<A, F, BlockRequests>;

/// A virtio block device: a PCI function in front of a disk.
pub type VirtioBlk<A> = VirtioDevice<A, Block>;

impl<A: GuestAddressSpace, F: Front> Rings<A, F> {
    /// [`Config::queues`] virtqueues in front of a new queue of the disk.
    ///
    /// # Errors
    /// The host refuses a queue of the disk.
    pub fn new(memory: A, disk: &dyn Disk, config: &Config, front: F) -> Result<Self, OpenError> {
        let requests = BlockRequests::new(disk, config)?;
        Ok(Self::over(requests, memory, config.queues, config.rounded_size(), config.coalescing, front))
    }

    /// Whether writes must be on stable storage before they are completed ([`Configuration::write_through`]).
    pub const fn set_write_through(&mut self, write_through: bool) {
        self.requests.write_through = write_through;
    }

    /// Set the capacity of the disk in bytes.
    pub const fn set_capacity(&mut self, bytes: u64) {
        self.requests.info.capacity = bytes;
    }
}

/// The disk, and the configuration that the guest reads.
#[derive(Clone)]
pub struct Block {
    disk: Arc<dyn Disk>,
    config: Configuration,
}

impl DeviceType for Block {
    type Requests = BlockRequests;

    fn config(&self) -> &[u8] {
        self.config.bytes()
    }

    fn write_config(&mut self, offset: u64, value: u64, len: usize) {
        self.config.write(offset, value, len);
    }

    fn accept(&mut self, features: u64) {
        self.config.accept(features);
    }

    fn reset(&mut self) {
        self.config.reset();
    }

    fn configure(&self, requests: &mut BlockRequests) {
        requests.write_through = self.config.write_through();
        requests.info.capacity = self.disk.info().capacity;
    }

    fn refresh(&mut self) -> bool {
        self.config.set_capacity(self.disk.info().capacity)
    }
}

impl<A> VirtioBlk<A>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    /// A block device in front of `disk`.
    ///
    /// # Errors
    /// [`Error`]: the host refuses a queue of the disk, a thread or a descriptor.
    pub fn new(
        memory: A,
        disk: Arc<dyn Disk>,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, Error> {
        let (queues, queue_size) = (config.queues.clamp(1, MAX_QUEUES), config.rounded_size());
        let configuration = Configuration::new(disk.info(), queues, queue_size);
        let kind = DeviceKind {
            device_type: DEVICE_TYPE_BLOCK,
            // Mass storage, SCSI: the class that firmware and older drivers expect.
            class: [0x01, 0x00, 0x00],
            features: configuration.offered(),
            queues,
            queue_size,
        };
        let requests = || BlockRequests::new(&*disk, &config);
        let sets = match config.threads.min(queues) {
            0 => Sets::Here(requests()?),
            threads => Sets::Threads((0..threads).map(|_| requests()).collect::<Result<_, _>>()?),
        };
        let own = Block { disk, config: configuration };
        Self::over((&kind, own), memory, interrupts, config.coalescing, sets)
    }
}
