//! Hot-plug, and the messages that report it to the guest.

use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U32;

use super::Pvscsi;
use super::spec::{Interrupts, RingMsgDesc};
use crate::scsi::Address;

/// Messages stored for a guest that does not read them; later ones are dropped.
const MAX_DEFERRED_MESSAGES: usize = 1024;

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Without a message ring no message is sent: the driver scans when it is initialized.
    pub(super) fn put_message(&mut self, kind: u32, address: Address) {
        if self.messages.is_none() || self.deferred_messages.len() >= MAX_DEFERRED_MESSAGES {
            return;
        }
        let [high, low] = address.lun.to_be_bytes();
        let first = if high == 0 { 0 } else { 0x40 | high };
        self.deferred_messages.push_back(RingMsgDesc {
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
        let before = self.deferred_messages.len();
        while let Some(message) = self.deferred_messages.front() {
            if !messages.put(rings, *message) {
                break;
            }
            self.deferred_messages.pop_front();
        }
        if self.deferred_messages.len() != before {
            self.raise(Interrupts::MSG_0);
        }
    }
}
