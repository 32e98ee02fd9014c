//! Causes of interrupts: the status and mask registers.
//!
//! With INTx, a driver reads the status, acknowledges by writing it back, and then polls the rings. If its write is posted, the driver may
//! poll the rings before the write arrives here. So the driver may not have seen a cause that was raised between the read and the arrival
//! of the write; that write does not acknowledge it.

use super::spec::Interrupts;

/// The registers, and which causes the driver has not been told of or has not read.
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

    /// The driver acknowledges `causes`; `seen`: causes whose ring it has emptied. Returns the causes to raise again.
    pub(super) fn acknowledge(&mut self, causes: Interrupts, seen: Interrupts) -> Interrupts {
        let again = (causes & self.unread) - seen;
        self.status &= !causes;
        // A cause is raised again only once: a driver that acknowledges without reading the status must not be interrupted for ever.
        self.unread &= !causes;
        again
    }

    /// Set the mask. Returns the pending causes that it enables and for which no message was sent.
    pub(super) fn set_mask(&mut self, mask: Interrupts) -> Interrupts {
        self.mask = mask;
        let due = self.unsent & mask;
        self.unsent &= !due;
        due & self.status
    }

    /// Raise causes. True: a message is due.
    pub(super) fn raise(&mut self, causes: Interrupts) -> bool {
        self.status |= causes;
        self.unread |= causes;
        let through = self.mask.intersects(causes);
        if !through {
            self.unsent |= causes;
        }
        through
    }

    /// Raise causes again after an acknowledgement. They do not count as unread, so the next acknowledgement clears them.
    pub(super) fn come_again(&mut self, causes: Interrupts) {
        self.status |= causes;
    }

    pub(super) fn asserted(&self) -> bool {
        self.status.intersects(self.mask)
    }
}
