//! Causes of interrupts: the status and mask registers.
//!
//! With INTx, a driver reads the status, acknowledges by writing it back, and then polls the rings. If its write is posted, the driver may poll the
//! rings before the write arrives here. So a cause that was raised after the read and before the write arrived may not have been seen, and is not
//! acknowledged by that write.

use super::spec::Interrupts;

/// The registers, and what belongs to them.
#[derive(Debug)]
pub(super) struct Causes {
    status: Interrupts,
    mask: Interrupts,
    /// Causes that were raised while masked: a message is due when they are unmasked.
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
    pub(super) fn acknowledge(&mut self, causes: Interrupts, seen: Interrupts) -> Interrupts {
        let again = (causes & self.unread) - seen;
        self.status &= !causes;
        // Once: a driver that acknowledges without having read shall not be interrupted for ever.
        self.unread &= !causes;
        again
    }

    /// Set the mask. Those of the causes let through that no message told of.
    pub(super) fn set_mask(&mut self, mask: Interrupts) -> Interrupts {
        self.mask = mask;
        let due = self.unsent & mask;
        self.unsent &= !due;
        due & self.status
    }

    /// True: a message is due.
    pub(super) fn raise(&mut self, causes: Interrupts) -> bool {
        self.status |= causes;
        self.unread |= causes;
        let through = self.mask.intersects(causes);
        if !through {
            self.unsent |= causes;
        }
        through
    }

    /// Causes that are to come again after an acknowledgement.
    pub(super) fn come_again(&mut self, causes: Interrupts) {
        self.status |= causes;
    }

    pub(super) fn asserted(&self) -> bool {
        self.status.intersects(self.mask)
    }
}
