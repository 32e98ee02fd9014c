//! The virtio SCSI host device (VIRTIO 1.2, 5.6), in front of the SCSI target.
//!
//! - `spec`: its constants and structures,
//! - `lun`: how it addresses logical units,
//! - `answer`: the part of a chain that the response is written to,
//! - `request`: a chain is parsed into a task, the end of a task is written as a response,
//! - `host`: the requests in flight,
//! - `batch`: a batch of requests is taken from the rings, started, and its completions are posted,
//! - `owner`: `PciDevice` and `IoDevice`, the contract with the owner,
//! - `control`: the control queue (task management); `functions`: its functions that wait,
//! - `events`: the event queue and hot-plug; `late_events`: events that wait for buffers.

mod answer;
mod batch;
mod config;
mod control;
mod events;
mod functions;
mod host;
mod late_events;
mod lun;
mod owner;
mod request;
pub mod spec;

use vm_memory::GuestAddressSpace;

pub use self::config::{Config, MAX_QUEUE_SIZE, MAX_REQUEST_QUEUES, MAX_TARGETS};
use self::host::Host;
use self::spec::{REQUEST_QUEUES, ScsiFeatures};
use super::pci::{DeviceKind, Transport};
use super::spec::DEVICE_TYPE_SCSI_HOST;
use crate::device::Stats;
use crate::dma::Dma;
use crate::interrupt::InterruptSink;
use crate::pci::LayoutError;
use crate::scsi::Bus;

/// A virtio SCSI host device: a virtio device in front of a SCSI target.
///
/// BAR 0 is memory. MSI-X has one vector more than there are queues. Without MSI-X, the device interrupts by INTx.
pub struct VirtioScsi<A: GuestAddressSpace> {
    /// First, so that it is dropped first: requests in flight are waited for while `dma` still keeps their memory.
    host: Host,
    dma: Dma<A>,
    transport: Transport,
    /// The request queue that is served first, counted from the first of them.
    first_queue: usize,
    /// There may be work that no event announces: serve the rings before sleeping.
    more: bool,
    /// Rings of request queues are in memory that is about to be unmapped: no request is taken until it is unmapped.
    rings_refused: bool,
    stats: Stats,
}

impl<A: GuestAddressSpace> VirtioScsi<A> {
    /// A device in front of `bus`.
    ///
    /// # Errors
    /// None: the layout is constant. [`LayoutError`] is the error of the PCI function's builder.
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
        Ok(Self {
            host: Host::new(bus, Config { queues, queue_size, ..config }),
            dma: Dma::new(memory),
            transport,
            first_queue: 0,
            more: false,
            rings_refused: false,
            stats: Stats::default(),
        })
    }
}

#[cfg(test)]
mod tests;
