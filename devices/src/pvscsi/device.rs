//! Register space, and the contract with the owner.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::spec::{
    REG_COMMAND, REG_COMMAND_DATA, REG_COMMAND_STATUS, REG_DEBUG, REG_INTR_MASK, REG_INTR_STATUS,
    REG_KICK_NON_RW_IO, REG_KICK_RW_IO,
};
use crate::device::{AccessKind, Bar, Doorbell, IoDevice, PciDevice};
use crate::hba::Hba;
use crate::pci::BusMaster;
use crate::time::Time;

const DOORBELLS: [Doorbell; 2] = [
    Doorbell { bar: 0, offset: REG_KICK_RW_IO, len: 4 },
    Doorbell { bar: 0, offset: REG_KICK_NON_RW_IO, len: 4 },
];

impl<A: GuestAddressSpace> Pvscsi<A> {
    fn register_read(&mut self, offset: u64) -> u32 {
        match offset {
            REG_COMMAND_STATUS => self.collector.status,
            REG_INTR_STATUS => self.causes.read(),
            REG_INTR_MASK => self.causes.mask(),
            REG_DEBUG => self.debug,
            _ => 0,
        }
    }

    fn register_write(&mut self, offset: u64, value: u32, now: Time) {
        match offset {
            REG_COMMAND => {
                if let Some(command) = self.collector.start(value) {
                    self.run(&command, now);
                }
            }
            REG_COMMAND_DATA => {
                if let Some(command) = self.collector.data(value) {
                    self.run(&command, now);
                }
            }
            REG_INTR_STATUS => self.acknowledge(value),
            REG_INTR_MASK => self.set_mask(value),
            REG_KICK_RW_IO | REG_KICK_NON_RW_IO => {
                self.engine.stats.doorbells += 1;
                self.service(now);
            }
            REG_DEBUG => self.debug = value,
            _ => {}
        }
    }
}

impl<A> PciDevice for Pvscsi<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        match self.function.config_write(offset, data) {
            BusMaster::Same => {}
            // No access to memory from here on: completions are posted when bus mastering is enabled again.
            BusMaster::Off => self.engine.bus.drain(),
            BusMaster::On => {
                self.engine.has_work = true;
                self.signal_again();
            }
        }
    }

    fn bars(&self) -> Vec<Bar> {
        self.function.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        if self.function.msix_read(bar, offset, data) {
            return;
        }
        data.fill(0);
        if let (0, Ok(data)) = (bar, <&mut [u8; 4]>::try_from(data)) {
            *data = self.register_read(offset).to_le_bytes();
        }
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        if self.function.msix_write(bar, offset, data) {
            return;
        }
        if let (0, Ok(&data)) = (bar, <&[u8; 4]>::try_from(data)) {
            self.register_write(offset, u32::from_le_bytes(data), now);
        }
    }

    fn access_kind(&self, _bar: u8, _offset: u64, write: Option<&[u8]>) -> AccessKind {
        if write.is_none() { AccessKind::Register } else { AccessKind::Command }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &DOORBELLS
    }

    /// Drivers rely on the effect of a command as soon as they have written its last dword.
    fn needs_prompt_writes(&self) -> bool {
        true
    }

    fn on_posted_writes(&mut self) {
        self.bus_posts_writes = true;
    }

    fn on_blocking_doorbell(&mut self, _index: usize, now: Time) {
        self.kicks.blocked();
        self.on_doorbell(0, now);
    }
}
