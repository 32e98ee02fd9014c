//! Register space, and the contract with the owner.

use std::ops::Range;

use vm_memory::GuestAddressSpace;

use super::BusLogic;
use super::spec::{Control, GEOMETRY, opcode, reg};
use crate::bus_adapter::bus_adapter_methods;
use crate::device::{AccessKind, Bar, Doorbell, IoDevice, PciDevice, Sleep};
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

impl<A> IoDevice for BusLogic<A>
where
    A: GuestAddressSpace + Send,
    A::T: Send,
{
    /// [`doorbells`](PciDevice::doorbells) is empty: the doorbell is one value of the data register.
    fn on_doorbell(&mut self, _index: usize, now: Time) {
        self.service(now);
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        if self.more || self.rung || self.can_fetch() || self.bus.fail_lost() {
            return Sleep::No;
        }
        let deadlines = [self.moderator.deadline(), self.retry.deadline(!self.late.is_empty(), now)];
        deadlines.into_iter().flatten().min().map_or(Sleep::Forever, Sleep::Until)
    }

    fn reset(&mut self, _now: Time) {
        self.power_on();
    }

    fn uses_memory(&mut self, ranges: &[Range<u64>], now: Time) -> bool {
        self.complete(now);
        // Completions of requests in flight write the mailboxes.
        let in_mailboxes = self.in_flight.count() > 0 && self.has_mailboxes_in(ranges);
        in_mailboxes || self.memory_in_use().meets(self.dma.users_of(ranges))
    }

    fn refuse_memory(&mut self, ranges: &[Range<u64>]) {
        self.dma.refuse(ranges);
        self.mailboxes_refused |= self.has_mailboxes_in(ranges);
    }

    fn memory_replaced(&mut self, _now: Time) {
        let in_use = self.memory_in_use();
        self.dma.replaced(in_use);
        self.more |= std::mem::take(&mut self.mailboxes_refused);
    }

    bus_adapter_methods!(raise_mailbox_in);
}
