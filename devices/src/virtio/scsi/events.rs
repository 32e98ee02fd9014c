//! The event queue, and hot-plug of units (VIRTIO 1.2, 5.6.6.3).

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use super::super::pci::Transport;
use super::super::queue::Broken;
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
        transport: &mut Transport,
        memory: &M,
    ) -> Result<bool, Broken> {
        for count in 0..BATCH {
            let queue = transport.queues().get_mut(EVENT_QUEUE).filter(|queue| queue.active());
            let Some(queue) = queue.filter(|_| self.events.wants()) else { return Ok(count > 0) };
            let Some(chain) = queue.take(memory)?.next() else { return Ok(count > 0) };
            let head = chain.head_index();
            self.chain.collect(chain)?;
            transport.taken(EVENT_QUEUE, 1);
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
        if self.features.contains(feature) {
            self.events.push(EventInfo { event: event.into(), lun: lun(address), reason: reason.into() });
        }
    }
}

impl<A: GuestAddressSpace> HotPlug for VirtioScsi<A> {
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        if u16::from(address.target) >= self.host.targets {
            return Err(AttachError::Target(address));
        }
        self.host.bus.attach(address, unit.named(|| AdapterKind::VirtioScsi.serial_of_place(address)))?;
        let reason = VIRTIO_SCSI_EVT_RESET_RESCAN;
        self.host.report(ScsiFeatures::HOTPLUG, VIRTIO_SCSI_T_TRANSPORT_RESET, address, reason);
        self.more = true;
        Ok(())
    }

    fn detach(&mut self, address: Address, now: Time) -> bool {
        let there = self.host.bus.detach(address);
        if there {
            let reason = VIRTIO_SCSI_EVT_RESET_REMOVED;
            self.host.report(ScsiFeatures::HOTPLUG, VIRTIO_SCSI_T_TRANSPORT_RESET, address, reason);
            self.service(now);
        }
        there
    }

    fn detaching(&self, address: Address) -> bool {
        self.host.bus.detaching(address)
    }
}

impl<A: GuestAddressSpace> VirtioScsi<A> {
    /// Check whether units' disks have another capacity, and report a change to the guest.
    pub(super) fn check_capacities(&mut self, now: Time) {
        for address in self.host.bus.refresh() {
            let event = VIRTIO_SCSI_T_PARAM_CHANGE;
            self.host.report(ScsiFeatures::CHANGE, event, address, CAPACITY_CHANGED);
            self.more = true;
        }
        if self.more {
            self.service(now);
        }
    }
}
