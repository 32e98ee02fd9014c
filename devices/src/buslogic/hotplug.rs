//! Hot-plug. Parallel SCSI has no event for it, and drivers scan the bus only once: the guest's user has to rescan.

use vm_memory::GuestAddressSpace;

use super::{BusLogic, has_target};
use crate::device::HotPlug;
use crate::kind::AdapterKind;
use crate::scsi::{Address, AttachError, LogicalUnit};
use crate::time::Time;

impl<A: GuestAddressSpace> HotPlug for BusLogic<A> {
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        if !has_target(address.target) {
            return Err(AttachError::Target(address));
        }
        self.bus.attach(address, unit.named(|| AdapterKind::BusLogic.serial_of_place(address)))
    }

    fn detach(&mut self, address: Address, now: Time) -> bool {
        let there = self.bus.detach(address);
        self.more |= !self.backlog.is_empty();
        self.complete(now);
        there
    }

    fn detaching(&self, address: Address) -> bool {
        self.bus.detaching(address)
    }
}
