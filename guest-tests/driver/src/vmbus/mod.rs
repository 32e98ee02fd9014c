//! Driver of Hyper-V's synthetic SCSI controller on the VMBus. It behaves as Linux's `hv_vmbus` and `hv_storvsc` do where the other
//! side can see it: the order of the bring-up, one GPADL for both rings, the rules of signalling, and interrupts masked while
//! completions are drained.
//!
//! - `spec`: constants,
//! - `bus`: the SynIC, messages, a channel opened and closed,
//! - `ring`: a channel's rings,
//! - `storvsc`: the storage protocol and the adapter.

mod bus;
mod ring;
pub mod spec;
mod storvsc;

pub use storvsc::Storvsc;

use crate::adapter::{KickPolicy, Layout};

/// How the driver sets its controller up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pages of each ring, the control page among them: 2 to 256. Linux has 32.
    pub ring_pages: u32,
    /// Requests in flight at the most.
    pub slots: u32,
    /// When new packets are shown to the host.
    pub kick: KickPolicy,
    /// How buffers lie.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_pages: 32, slots: 1024, kick: KickPolicy::default(), layout: Layout::default() }
    }
}

crate::steps! {
    /// The options make no sense.
    Options = 1,
    /// Too little DMA memory.
    Memory = 2,
    /// A hypercall failed.
    Hypercall = 3,
    /// No answer to a message.
    Silence = 4,
    /// The version is not supported.
    Version = 5,
    /// No SCSI controller was offered.
    Offer = 6,
    /// The list of pages was refused.
    Gpadl = 7,
    /// The channel does not open.
    Open = 8,
    /// The storage protocol was refused.
    Protocol = 9,
}
