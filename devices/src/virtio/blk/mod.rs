//! The virtio block device (VIRTIO 1.2, 5.2).
//!
//! - `spec`: its constants and structures,
//! - `config`: features and configuration space,
//! - `request`: a chain is parsed into a request,
//! - `requests`: the requests in flight,
//! - `device`: the PCI device, and the rings for other transports such as vhost-user.

mod config;
mod device;
mod request;
mod requests;
pub mod spec;

use paradisk_disk_formats::EngineKind;

pub use self::config::Configuration;
pub use self::device::{RingThread, Rings, VirtioBlk};
use self::spec::VIRTIO_BLK_ID_BYTES;
pub use super::device::Error;
pub use super::pci::MAX_QUEUES;
pub use super::queue::{Broken, RingSetup};
pub use super::rings::Front;
use crate::moderation::Coalescing;

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
    /// Threads that serve the queues, at most one for each queue: queue `n` is served by thread `n % threads`. 0: the thread that calls the
    /// device serves them.
    pub threads: u16,
    /// Maximum number of requests in flight of each thread that serves queues: the depth of its queue of the disk. Further requests wait in
    /// the guest's rings.
    pub tasks: u32,
    /// Which I/O engine transfers data.
    pub engine: EngineKind,
    /// Serial number, padded with zeros ([`serial`]).
    pub serial: [u8; VIRTIO_BLK_ID_BYTES],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coalescing: Coalescing::default(),
            queues: 1,
            queue_size: 256,
            threads: 0,
            tasks: 256,
            engine: EngineKind::default(),
            serial: [0; VIRTIO_BLK_ID_BYTES],
        }
    }
}

impl Config {
    fn rounded_size(&self) -> u16 {
        self.queue_size.clamp(4, MAX_QUEUE_SIZE).next_power_of_two()
    }
}

/// A serial number as the guest reads it: the text, truncated or padded with zeros.
#[must_use]
pub fn serial(text: &str) -> [u8; VIRTIO_BLK_ID_BYTES] {
    let mut serial = [0; VIRTIO_BLK_ID_BYTES];
    serial.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
    serial
}

#[cfg(test)]
mod tests;
