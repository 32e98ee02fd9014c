//! Drivers of virtio devices over PCI (VIRTIO 1.2), modern interface and split rings. They behave as Linux's do where a
//! device can see it: the order of the bring-up, one table of indirect descriptors a request, the event index.
//!
//! - `spec`: constants,
//! - `pci`: the transport: structures, device status, features, queues, interrupts,
//! - `queue`: a split ring,
//! - `queues`: the rings of a device, over which requests are spread,
//! - `blk`: the block device,
//! - `scsi`: the SCSI host device.

pub mod blk;
pub mod pci;
pub mod queue;
pub mod queues;
pub mod scsi;
pub mod spec;

use crate::adapter::{KickPolicy, Layout, PAGE};
use crate::pci::InterruptMode;

/// Largest transfer of a request in bytes.
pub const MAX_TRANSFER: usize = 1 << 20;
/// Pieces of the largest transfer when it starts inside a page.
pub const MAX_SEGMENTS: usize = MAX_TRANSFER / PAGE + 1;

/// How a driver sets its device up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Queues for requests; fewer where the device has no more.
    pub queues: u16,
    /// Entries of a queue, a power of two; fewer where the device has no more.
    pub queue_size: u16,
    /// How the device interrupts. MSI-X: a vector for each queue beside that for configuration changes.
    pub interrupts: InterruptMode,
    /// When the doorbell is rung.
    pub kick: KickPolicy,
    /// Use the event index where the device has it, else flags.
    pub event_index: bool,
    /// Use indirect descriptors where the device has them: a request takes one entry of its ring.
    pub indirect: bool,
    /// How buffers lie.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 1024,
            interrupts: InterruptMode::default(),
            kick: KickPolicy::default(),
            event_index: true,
            indirect: true,
            layout: Layout::default(),
        }
    }
}

crate::steps! {
    /// The options make no sense, or a request does not fit into a queue.
    Options = 1,
    /// The function was not found.
    Function = 2,
    /// A structure is not among the capabilities.
    Capabilities = 3,
    /// The device does not reset.
    Reset = 4,
    /// The device lacks a feature without which there is no driving it, or refused what it had offered.
    Features = 5,
    /// A queue does not exist or did not come into use.
    Queue = 6,
    /// Too little DMA memory.
    Memory = 7,
    /// The function lacks the interrupt mode, or refused a vector.
    Interrupts = 8,
}
