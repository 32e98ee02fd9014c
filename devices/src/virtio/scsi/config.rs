//! How a SCSI host device is made.

use super::super::pci::MAX_QUEUES;
use super::spec::REQUEST_QUEUES;
use crate::moderation::Coalescing;

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
