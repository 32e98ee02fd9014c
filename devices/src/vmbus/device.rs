//! The contract with the owner.

use vm_memory::GuestAddressSpace;

use super::Vmbus;
use super::spec::{
    HV_MESSAGE_PAYLOAD_BYTE_COUNT, HV_MESSAGE_TYPE_VMBUS, VMBUS_MESSAGE_CONNECTION_ID,
    VMBUS_MESSAGE_CONNECTION_ID_4,
};
use super::synic::{HypercallStatus, VmbusDevice};
use crate::time::Time;

impl<A> VmbusDevice for Vmbus<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn on_message(&mut self, connection: u32, kind: u32, payload: &[u8], now: Time) -> HypercallStatus {
        match connection {
            VMBUS_MESSAGE_CONNECTION_ID | VMBUS_MESSAGE_CONNECTION_ID_4 => {}
            _ => return HypercallStatus::InvalidConnectionId,
        }
        if kind != HV_MESSAGE_TYPE_VMBUS || payload.len() > HV_MESSAGE_PAYLOAD_BYTE_COUNT {
            return HypercallStatus::InvalidHypercallInput;
        }
        self.on_request(payload, now)
    }

    fn on_end_of_message(&mut self, vp: u32, _now: Time) {
        self.outbox.on_end_of_message(&mut *self.signals.synic, vp);
    }

    fn connections(&self) -> &[u32] {
        &self.connections
    }
}
