//! Hot-plug, and the events that report it to the guest (MPI 1.5, event notification).

use vm_memory::GuestAddressSpace;

use super::Lsi;
use super::pages::{PHYS, device_of};
use super::personality::Personality;
use super::reply::Reply;
use super::spec::{EventReply, PhyLinkStatus, SasDeviceStatus, event, function};

/// Maximum number of replies that wait for frames before events are dropped. A guest that reads no events has to scan
/// for disks.
const MAX_DEFERRED_EVENTS: usize = 64;

impl<A: GuestAddressSpace> Lsi<A> {
    /// A SAS controller reports hot-plug by events. On parallel SCSI the guest must scan for the unit: MPI has an event for
    /// that ([`event::SCSI_DEVICE_STATUS_CHANGE`]), but Linux ignores it, so it is not sent.
    pub(super) fn announce_device(&mut self, target: u8, added: bool) {
        let others = self.engine.bus.addresses().filter(|address| address.target == target).count();
        // The device appears with its first unit, and disappears with its last.
        let changed = others == usize::from(added);
        if self.personality != Personality::Sas1068 || target >= PHYS || !changed {
            return;
        }
        let device = device_of(target);
        let link = PhyLinkStatus {
            phy: device.phy,
            rates: if added { event::LINK_RATE_3_0 } else { event::LINK_RATE_WAS_3_0 },
            handle: device.handle.into(),
            address: device.address.into(),
        };
        let status = SasDeviceStatus {
            target,
            bus: 0,
            reason: if added { event::DEVICE_ADDED } else { event::DEVICE_NOT_RESPONDING },
            reserved: 0,
            asc: 0,
            ascq: 0,
            handle: device.handle.into(),
            info: device.info.into(),
            parent: device.parent.into(),
            phy: device.phy,
            reserved2: 0,
            address: device.address.into(),
            lun: [0; 8],
            task_tag: 0xffff.into(),
            reserved3: [0; 2],
        };
        self.notify(event::SAS_PHY_LINK_STATUS, &link);
        self.notify(event::SAS_DEVICE_STATUS_CHANGE, &status);
    }

    /// Report an event to the guest, if it has enabled event notification.
    fn notify(&mut self, event: u32, data: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) {
        let Some(context) = self.event_context else { return };
        if self.engine.deferred.len() >= MAX_DEFERRED_EVENTS {
            return;
        }
        let head = EventReply {
            data_length: ((size_of_val(data) / 4) as u16).into(),
            msg_length: 0,
            function: function::EVENT_NOTIFICATION,
            reserved: [0; 2],
            ack_required: 0,
            // Without this flag, the guest would free the request that enabled the events.
            msg_flags: event::MSGFLAGS_CONTINUATION_REPLY,
            msg_context: context.into(),
            reserved2: [0; 2],
            ioc_status: 0.into(),
            ioc_log_info: 0.into(),
            event: event.into(),
            event_context: 0.into(),
        };
        self.reply(Reply::with_data(&head, data));
    }
}
