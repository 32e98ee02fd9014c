//! Register space, and the contract with the owner.

use vm_memory::GuestAddressSpace;

use super::BusLogic;
use super::spec::{Control, GEOMETRY, opcode, reg};
use crate::device::{AccessKind, Bar, Doorbell, PciDevice};
use crate::time::Time;

impl<A: GuestAddressSpace> BusLogic<A> {
    fn register_read(&mut self, offset: u64) -> u8 {
        match offset % reg::COUNT {
            reg::STATUS_CONTROL => self.protocol.read_status(self.mailboxes.is_some()),
            reg::DATA => self.read_data(),
            reg::INTERRUPT => self.causes.read(),
            _ => GEOMETRY,
        }
    }

    fn register_write(&mut self, offset: u64, value: u8, now: Time) {
        match offset % reg::COUNT {
            reg::STATUS_CONTROL => self.write_control(Control::from_bits_truncate(value), now),
            reg::DATA => self.write_data(value),
            _ => {}
        }
    }

    fn write_control(&mut self, control: Control, now: Time) {
        if control.intersects(Control::HARD_RESET | Control::SOFT_RESET) {
            return self.reset_adapter();
        }
        if control.contains(Control::RESET_BUS) {
            self.reset_bus(now);
        }
        if control.contains(Control::RESET_INTERRUPT) {
            self.acknowledge();
        }
    }
}

impl<A> PciDevice for BusLogic<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    fn config_read(&mut self, offset: u16, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) {
        // Bus mastering has no effect: see `io`.
        self.function.config_write(offset, data);
    }

    fn bars(&self) -> Vec<Bar> {
        self.function.bars()
    }

    fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8], _now: Time) {
        data.fill(0);
        if bar > 1 {
            return;
        }
        // Each byte is a register.
        for (index, byte) in (0..).zip(data) {
            *byte = self.register_read(offset.wrapping_add(index));
        }
    }

    fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8], now: Time) {
        if bar > 1 {
            return;
        }
        for (index, byte) in (0..).zip(data) {
            self.register_write(offset.wrapping_add(index), *byte, now);
        }
    }

    /// A write to the control register may be a reset. The doorbell is a value of the data register, unless it is a command's parameter.
    fn access_kind(&self, bar: u8, offset: u64, write: Option<&[u8]>) -> AccessKind {
        const ACKNOWLEDGE: u8 = Control::RESET_INTERRUPT.bits();
        match (bar, offset % reg::COUNT, write) {
            (0 | 1, _, None) | (0 | 1, reg::STATUS_CONTROL, Some([ACKNOWLEDGE])) => AccessKind::Register,
            (0 | 1, reg::DATA, Some([opcode::EXECUTE_MAILBOX])) if self.protocol.is_idle() => {
                AccessKind::Submission
            }
            _ => AccessKind::Command,
        }
    }

    fn doorbells(&self) -> &[Doorbell] {
        &[]
    }

    /// The driver frees the memory of requests as soon as its write of a reset returns.
    fn needs_prompt_writes(&self) -> bool {
        true
    }
}
