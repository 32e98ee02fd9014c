//! Causes of interrupts: the status and mask registers, and what leaves by line or message.
//!
//! With the line, a driver reads the status, acknowledges by writing it back, and then looks at the rings. Its write may be
//! posted: it may have looked at the rings before the write arrives here. What was raised between its read, which nothing
//! overtakes, and the arrival of its write is not known to be seen, and not acknowledged by it.

use vm_memory::GuestAddressSpace;

use super::Pvscsi;
use super::spec::Interrupts;

/// The registers, and what belongs to them.
#[derive(Debug)]
pub(super) struct Causes {
    status: Interrupts,
    mask: Interrupts,
    /// Causes that came while masked: a message is due when they are let through.
    unsent: Interrupts,
    /// Causes raised since the driver read the status.
    unread: Interrupts,
}

impl Causes {
    pub(super) const fn new() -> Self {
        let none = Interrupts::empty();
        Self { status: none, mask: none, unsent: none, unread: none }
    }

    /// The driver reads the status.
    pub(super) const fn read(&mut self) -> u32 {
        self.unread = Interrupts::empty();
        self.status.bits()
    }

    pub(super) const fn mask(&self) -> u32 {
        self.mask.bits()
    }

    /// The driver acknowledges what it has read; `seen`: causes behind which there is nothing that it has not looked at.
    /// Those that are to come again.
    fn acknowledge(&mut self, causes: Interrupts, seen: Interrupts) -> Interrupts {
        let again = (causes & self.unread) - seen;
        self.status &= !causes;
        // Once: a driver that acknowledges without having read shall not be interrupted for ever.
        self.unread &= !causes;
        again
    }

    /// Set the mask. Those of the causes let through that no message told of.
    fn set_mask(&mut self, mask: Interrupts) -> Interrupts {
        self.mask = mask;
        let due = self.unsent & mask;
        self.unsent &= !due;
        due & self.status
    }

    /// True: a message is due.
    fn raise(&mut self, causes: Interrupts) -> bool {
        self.status |= causes;
        self.unread |= causes;
        let through = self.mask.intersects(causes);
        if !through {
            self.unsent |= causes;
        }
        through
    }

    fn asserted(&self) -> bool {
        self.status.intersects(self.mask)
    }
}

impl<A: GuestAddressSpace> Pvscsi<A> {
    /// Raise causes: the status bits for INTx, and a message where messages are enabled.
    pub(super) fn raise(&mut self, causes: Interrupts) {
        if self.causes.raise(causes) {
            self.stats.interrupts += u64::from(self.function.signal(0));
        }
        self.update_line();
    }

    /// A message is a memory write: a cause that was raised without bus mastering is signalled when bus mastering is enabled again.
    pub(super) fn tell_again(&mut self) {
        if self.causes.asserted() {
            self.stats.interrupts += u64::from(self.function.signal(0));
        }
    }

    pub(super) fn acknowledge(&mut self, value: u32) {
        let all_read = self.rings.as_ref().is_none_or(|rings| rings.unread() == 0);
        let seen = if all_read { Interrupts::CMPL_0 } else { Interrupts::empty() };
        let again = self.causes.acknowledge(Interrupts::from_bits_truncate(value), seen);
        self.update_line();
        if !again.is_empty() {
            // The line goes up anew, for interrupt controllers that look for that.
            self.causes.status |= again;
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
        self.stats.interrupts += u64::from(raised);
    }
}
