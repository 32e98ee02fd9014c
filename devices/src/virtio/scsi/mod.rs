//! The virtio SCSI host device (VIRTIO 1.2, 5.6), in front of the SCSI target.
//!
//! - `spec`: its constants and structures,
//! - `lun`: how it addresses logical units,
//! - `answer`: the part of a chain that the response is written to,
//! - `request`: a chain is parsed into a task, the end of a task is written as a response,
//! - `host`: the requests in flight, behind the rings of the request queues,
//! - `control`: the control queue (task management); `functions`: its functions that wait,
//! - `events`: the event queue and hot-plug; `event_backlog`: events that wait for buffers.

mod answer;
mod config;
mod control;
mod event_backlog;
mod events;
mod functions;
mod host;
mod lun;
mod request;
pub mod spec;

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use self::config::ScsiHost;
pub use self::config::{Config, MAX_QUEUE_SIZE, MAX_REQUEST_QUEUES, MAX_TARGETS};
use self::host::Host;
use self::spec::*;
pub use super::device::Error;
use super::device::{DeviceType, Sets, VirtioDevice};
use super::pci::DeviceKind;
use super::spec::DEVICE_TYPE_SCSI_HOST;
use crate::device::HotPlug;
use crate::interrupt::InterruptSink;
use crate::scsi::Bus;

/// A virtio SCSI host device: a PCI function in front of a SCSI target.
pub type VirtioScsi<A> = VirtioDevice<A, ScsiHost>;

impl DeviceType for ScsiHost {
    type Requests = Host;

    fn config(&self) -> &[u8] {
        self.config.as_bytes()
    }

    /// Sizes above the limits are ignored.
    fn write_config(&mut self, offset: u64, value: u64, len: usize) {
        let value = value as u32;
        match (offset, len) {
            (SENSE_SIZE, 4) if value <= MAX_SENSE_SIZE => self.config.sense_size = value.into(),
            (CDB_SIZE, 4) if value <= MAX_CDB_SIZE => self.config.cdb_size = value.into(),
            _ => {}
        }
    }

    fn accept(&mut self, features: u64) {
        self.features = ScsiFeatures::from_bits_truncate(features);
    }

    fn reset(&mut self) {
        self.features = ScsiFeatures::empty();
        self.config.sense_size = VIRTIO_SCSI_SENSE_DEFAULT_SIZE.into();
        self.config.cdb_size = VIRTIO_SCSI_CDB_DEFAULT_SIZE.into();
    }

    fn configure(&self, requests: &mut Host) {
        requests.own = *self;
    }

    fn hot_plug<A>(device: &mut VirtioScsi<A>) -> Option<&mut dyn HotPlug>
    where
        A: GuestAddressSpace<T: Send> + Send + 'static,
    {
        Some(device)
    }
}

impl<A> VirtioScsi<A>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    /// A device in front of `bus`.
    ///
    /// # Errors
    /// None: the layout is constant. [`Error`] is the error of all virtio devices.
    pub fn new(
        memory: A,
        bus: Bus,
        interrupts: Box<dyn InterruptSink>,
        config: Config,
    ) -> Result<Self, Error> {
        let config = Config {
            queues: config.queues.clamp(1, MAX_REQUEST_QUEUES),
            queue_size: config.queue_size.clamp(4, MAX_QUEUE_SIZE).next_power_of_two(),
            targets: config.targets.clamp(1, MAX_TARGETS),
            ..config
        };
        let kind = DeviceKind {
            device_type: DEVICE_TYPE_SCSI_HOST,
            // Mass storage, SCSI.
            class: [0x01, 0x00, 0x00],
            features: (ScsiFeatures::HOTPLUG | ScsiFeatures::CHANGE).bits(),
            queues: REQUEST_QUEUES as u16 + config.queues,
            queue_size: config.queue_size,
        };
        let own = ScsiHost::new(&config);
        let host = Host::new(bus, &config, own);
        Self::over((&kind, own), memory, interrupts, config.coalescing, Sets::Here(host))
    }
}

#[cfg(test)]
mod tests;
