//! The part of a virtio device that the block device and the SCSI host device share.
//!
//! - `backend`: the trait that each kind of device implements,
//! - `batch`: a batch of requests is taken from the rings, started, and its completions are posted,
//! - `owner`: `PciDevice` and `IoDevice`, the contract with the owner.

pub(super) mod backend;
mod batch;
mod owner;

use vm_memory::GuestAddressSpace;

use super::pci::Transport;
use crate::device::Stats;
use crate::dma::Dma;

/// A virtio device: [`VirtioBlk`](super::blk::VirtioBlk) or [`VirtioScsi`](super::scsi::VirtioScsi), by its back-end `B`.
///
/// BAR 0 is memory. MSI-X has one vector more than there are queues. Without MSI-X, the device interrupts by INTx.
pub struct Device<A: GuestAddressSpace, B> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` still keeps their memory.
    pub(super) backend: B,
    pub(super) dma: Dma<A>,
    pub(super) transport: Transport,
    /// The request queue that is served first, counted from the first of them.
    pub(super) first_queue: usize,
    /// There may be work that no event announces: serve the rings before sleeping.
    pub(super) more: bool,
    /// Rings of request queues are in memory that is about to be unmapped: no request is taken until it is unmapped.
    pub(super) rings_refused: bool,
    pub(super) stats: Stats,
}

impl<A: GuestAddressSpace, B> Device<A, B> {
    pub(super) fn with(memory: A, transport: Transport, backend: B) -> Self {
        let dma = Dma::new(memory);
        Self {
            backend,
            dma,
            transport,
            first_queue: 0,
            more: false,
            rings_refused: false,
            stats: Stats::default(),
        }
    }
}
