//! Hot-plug, and the packet that reports it to the guest.

use vm_memory::GuestAddressSpace;

use super::Vmbus;
use super::storvsc::{MAX_LUNS, enumerate_bus};
use crate::device::HotPlug;
use crate::kind::AdapterKind;
use crate::scsi::{Address, AttachError, LogicalUnit};
use crate::time::Time;

/// The `target` of an address is the logical unit number; its `lun` is 0.
impl<A: GuestAddressSpace> HotPlug for Vmbus<A> {
    fn attach(&mut self, address: Address, unit: LogicalUnit) -> Result<(), AttachError> {
        let Some(lun) = lun_of(address) else { return Err(AttachError::Target(address)) };
        let unit = unit.named(|| AdapterKind::Storvsc.serial_of_place(address));
        // Report the caller's address.
        self.storvsc.attach(lun, unit).map_err(|error| match error {
            AttachError::Taken(_) => AttachError::Taken(address),
            other => other,
        })?;
        self.announce();
        Ok(())
    }

    fn detach(&mut self, address: Address, now: Time) -> bool {
        let there = lun_of(address).is_some_and(|lun| self.storvsc.detach(lun));
        self.more |= !self.storvsc.backlog_is_empty();
        self.complete(now);
        if there {
            self.announce();
        }
        there
    }

    fn detaching(&self, address: Address) -> bool {
        lun_of(address).is_some_and(|lun| self.storvsc.detaching(lun))
    }
}

fn lun_of(address: Address) -> Option<u8> {
    (address.lun == 0 && address.target < MAX_LUNS).then_some(address.target)
}

impl<A: GuestAddressSpace> Vmbus<A> {
    /// Send ENUMERATE_BUS, unless the driver has not finished its initialization: then it scans anyway.
    fn announce(&mut self) {
        if !self.storvsc.ready() {
            return;
        }
        if let Some(duplex) = &mut self.channels[0].duplex
            && let Err(broken) = duplex.send(&enumerate_bus(), &mut self.signals)
        {
            self.break_channel(0, broken);
        }
    }
}
