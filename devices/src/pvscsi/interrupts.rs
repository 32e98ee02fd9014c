//! Signals to the guest by INTx, MSI or MSI-X, for the [`causes`](super::causes).

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::spec::Interrupts;

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Raise causes: set their status bits, send a message if messages are enabled, and update the line.
    pub(super) fn raise(&mut self, causes: Interrupts) {
        if self.causes.raise(causes) {
            self.engine.stats.interrupts += u64::from(self.function.signal(0));
        }
        self.update_line();
    }

    /// A message is a memory write: a cause that was raised without bus mastering is signalled when bus mastering is enabled again.
    pub(super) fn signal_again(&mut self) {
        if self.causes.asserted() {
            self.engine.stats.interrupts += u64::from(self.function.signal(0));
        }
    }

    pub(super) fn acknowledge(&mut self, value: u32) {
        let all_read = self.rings.as_ref().is_none_or(|rings| rings.unread() == 0);
        let seen = if all_read { Interrupts::CMPL_0 } else { Interrupts::empty() };
        let again = self.causes.acknowledge(Interrupts::from_bits_truncate(value), seen);
        self.update_line();
        if !again.is_empty() {
            // The line falls and rises, for interrupt controllers that detect edges.
            self.causes.come_again(again);
            self.update_line();
        }
    }

    pub(super) fn set_mask(&mut self, value: u32) {
        let due = self.causes.set_mask(Interrupts::from_bits_truncate(value));
        if due.is_empty() {
            self.update_line();
        } else {
            self.raise(due);
        }
    }

    pub(super) fn update_line(&mut self) {
        let raised = self.function.set_line(self.causes.asserted());
        self.engine.stats.interrupts += u64::from(raised);
    }
}
