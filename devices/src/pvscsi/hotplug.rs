//! Hot-plug, and the messages that report it to the guest.

use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U32;

use super::Pvscsi;
use super::spec::{Interrupts, MSG_DEV_ADDED, MSG_DEV_REMOVED, RingMsgDesc};
use crate::device::HotPlug;
use crate::kind::AdapterKind;
use crate::scsi::{Address, AttachError, LogicalUnit};
use crate::time::Time;

/// Messages stored for a guest that does not read them; later ones are dropped.
const MAX_LATE_MESSAGES: usize = 1024;

impl<A: GuestAddressSpace> HotPlug for Pvscsi<A> {
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        if address.target >= self.targets {
            return Err(AttachError::Target(address));
        }
        self.bus.attach(address, unit.named(|| AdapterKind::Pvscsi.serial_of_place(address)))?;
        // The number of units decides how many task numbers are reserved for each.
        self.stuck = false;
        self.announce(MSG_DEV_ADDED, address);
        Ok(())
    }

    fn detach(&mut self, address: Address, now: Time) -> bool {
        let there = self.bus.detach(address);
        self.stuck = false;
        self.more |= !self.backlog.is_empty();
        self.complete(now);
        if there {
            self.announce(MSG_DEV_REMOVED, address);
        }
        there
    }

    fn detaching(&self, address: Address) -> bool {
        self.bus.detaching(address)
    }
}

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Without a message ring no message is sent: the driver scans when it is initialized.
    fn announce(&mut self, kind: u32, address: Address) {
        if self.messages.is_none() || self.late_messages.len() >= MAX_LATE_MESSAGES {
            return;
        }
        let [high, low] = address.lun.to_be_bytes();
        let first = if high == 0 { 0 } else { 0x40 | high };
        self.late_messages.push_back(RingMsgDesc {
            kind: kind.into(),
            bus: U32::ZERO,
            target: u32::from(address.target).into(),
            lun: [first, low, 0, 0, 0, 0, 0, 0],
            pad: [U32::ZERO; 27],
        });
        self.post_messages();
    }

    /// Post as many messages as the ring has free slots for.
    pub(super) fn post_messages(&mut self) {
        let (Some(rings), Some(messages)) = (&self.rings, &mut self.messages) else { return };
        if !self.function.bus_master() {
            return;
        }
        let before = self.late_messages.len();
        while let Some(message) = self.late_messages.front() {
            if !messages.put(rings, *message) {
                break;
            }
            self.late_messages.pop_front();
        }
        if self.late_messages.len() != before {
            self.raise(Interrupts::MSG_0);
        }
    }
}
