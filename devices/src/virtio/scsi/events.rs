//! The event queue, and hot-plug of units (VIRTIO 1.2, 5.6.6.3).

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use super::super::device::Served;
use super::super::queue::{Broken, Virtqueue};
use super::VirtioScsi;
use super::answer::{Answer, Reply};
use super::host::Host;
use super::lun::lun;
use super::spec::*;
use crate::device::HotPlug;
use crate::dma::Spans;
use crate::kind::AdapterKind;
use crate::scsi::{Address, AttachError, LogicalUnit};
use crate::time::Time;

/// Maximum number of buffers taken at once.
const BATCH: usize = 64;

/// CAPACITY DATA HAS CHANGED: additional sense code, and its qualifier in the second byte.
const CAPACITY_CHANGED: u32 = 0x09 << 8 | 0x2a;

impl Host {
    /// Put waiting events into buffers while there are both. False: none.
    pub(super) fn serve_events<M: Spans>(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &M,
    ) -> Result<bool, Broken> {
        for count in 0..BATCH {
            let queue = queues.get_mut(EVENT_QUEUE).filter(|queue| queue.active());
            let Some(queue) = queue.filter(|_| self.events.wants()) else { return Ok(count > 0) };
            let Some(chain) = queue.take(memory)?.next() else { return Ok(count > 0) };
            let head = chain.head_index();
            self.chain.collect(chain)?;
            queue.in_flight += 1;
            let len = size_of::<EventInfo>();
            let place = Answer::take(&self.chain.writable, len as u64).map(|(answer, _)| answer);
            // A buffer that is too short is returned empty.
            let event = if place.is_some() { self.events.pop() } else { EventInfo::default() };
            let mut bytes = [0; 16];
            for (to, from) in bytes.iter_mut().zip(event.as_bytes()) {
                *to = *from;
            }
            self.replies.push_back(Reply { queue: EVENT_QUEUE, head, answer: place, bytes, len });
        }
        Ok(true)
    }

    /// Report an event of a unit, if the driver has accepted the feature.
    fn report(&mut self, feature: ScsiFeatures, event: u32, address: Address, reason: u32) {
        if self.own.features.contains(feature) {
            self.events.push(EventInfo { event: event.into(), lun: lun(address), reason: reason.into() });
        }
    }

    /// Check whether units' disks have another capacity, and report changes. False: none.
    pub(super) fn check_capacities(&mut self) -> bool {
        let changed = self.bus.refresh();
        let any = !changed.is_empty();
        for address in changed {
            self.report(ScsiFeatures::CHANGE, VIRTIO_SCSI_T_PARAM_CHANGE, address, CAPACITY_CHANGED);
        }
        any
    }
}

impl<A> HotPlug for VirtioScsi<A>
where
    A: GuestAddressSpace<T: Send> + Send + 'static,
{
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        let rings = self.rings().filter(|rings| u16::from(address.target) < rings.requests.targets);
        let rings = rings.ok_or(AttachError::Target(address))?;
        let unit = unit.named(|| AdapterKind::VirtioScsi.serial_of_place(address));
        rings.requests.bus.attach(address, unit)?;
        let reason = VIRTIO_SCSI_EVT_RESET_RESCAN;
        rings.requests.report(ScsiFeatures::HOTPLUG, VIRTIO_SCSI_T_TRANSPORT_RESET, address, reason);
        rings.has_work = true;
        Ok(())
    }

    fn detach(&mut self, address: Address, now: Time) -> bool {
        let Some(rings) = self.rings() else { return false };
        if !rings.requests.bus.detach(address) {
            return false;
        }
        let reason = VIRTIO_SCSI_EVT_RESET_REMOVED;
        rings.requests.report(ScsiFeatures::HOTPLUG, VIRTIO_SCSI_T_TRANSPORT_RESET, address, reason);
        rings.has_work = true;
        self.service(now);
        true
    }

    fn detaching(&self, address: Address) -> bool {
        matches!(&self.served, Served::Here(rings) if rings.requests.bus.detaching(address))
    }
}
