//! Configuration of a SCSI host device.

use super::super::pci::MAX_QUEUES;
use super::spec::REQUEST_QUEUES;
use crate::moderation::Coalescing;

/// Maximum number of request queues.
pub const MAX_REQUEST_QUEUES: u16 = MAX_QUEUES - REQUEST_QUEUES as u16;

/// Maximum number of entries of a queue.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Maximum number of targets.
pub const MAX_TARGETS: u16 = 256;

/// Configuration of a SCSI host device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interrupt moderation.
    pub coalescing: Coalescing,
    /// Request queues, 1 to [`MAX_REQUEST_QUEUES`].
    pub queues: u16,
    /// Maximum number of entries of each queue, 4 to [`MAX_QUEUE_SIZE`], rounded up to a power of two.
    pub queue_size: u16,
    /// Number of targets that the guest scans, 1 to [`MAX_TARGETS`].
    pub targets: u16,
    /// Maximum number of requests in flight. The bus must have been made for at least as many. Further requests wait in the
    /// guest's rings.
    pub tasks: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { coalescing: Coalescing::default(), queues: 1, queue_size: 256, targets: 64, tasks: 1024 }
    }
}
