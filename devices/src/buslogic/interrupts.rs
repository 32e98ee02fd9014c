//! The interrupt register and its two causes, IMBL and CMDC.
//!
//! The register presents one cause at a time, because drivers handle one cause and then acknowledge all. The other cause stays pending
//! until the acknowledgement.
//!
//! A driver reads the register, acknowledges, and then polls the incoming mailboxes. If its write is posted, the driver may poll them
//! before the write arrives here. So a mailbox that was loaded after the read and before the write arrived may not have been seen: IMBL is
//! raised again.

use super::spec::Interrupts;

/// The state of the interrupt register.
#[derive(Clone, Debug)]
pub(super) struct Causes {
    /// The cause that the register presents.
    current: Interrupts,
    /// Causes that the register does not present yet.
    pending: Interrupts,
    /// IMBL was raised since the driver read the register.
    unread: bool,
    /// The driver has enabled the interrupt line.
    enabled: bool,
}

impl Causes {
    pub(super) const fn new() -> Self {
        let none = Interrupts::empty();
        Self { current: none, pending: none, unread: false, enabled: true }
    }

    /// The driver reads the register.
    pub(super) const fn read(&mut self) -> u8 {
        self.unread = false;
        self.current.bits()
    }

    /// A command has completed.
    pub(super) fn command_complete(&mut self) {
        self.pending |= Interrupts::COMMAND_COMPLETE;
        self.present_pending();
    }

    /// Incoming mailboxes are loaded.
    pub(super) fn mailbox_in(&mut self) {
        self.unread = true;
        self.pending |= Interrupts::MAILBOX_IN;
        self.present_pending();
    }

    /// Whether IMBL was raised since the driver read the register, so that the driver may not have seen all mailboxes.
    pub(super) const fn unread(&self) -> bool {
        self.unread
    }

    /// The driver acknowledges; `seen`: it has read all loaded mailboxes. Call [`present_pending`](Self::present_pending) afterwards; the
    /// line falls in between.
    pub(super) fn acknowledge(&mut self, seen: bool) {
        // Once only: a driver that acknowledges without a read must not be interrupted for ever.
        let again = std::mem::take(&mut self.unread) && !seen;
        self.pending
            .set(Interrupts::MAILBOX_IN, self.pending.contains(Interrupts::MAILBOX_IN) && !seen || again);
        self.current = Interrupts::empty();
    }

    /// Present a pending cause, if the register presents none.
    pub(super) fn present_pending(&mut self) {
        let waiting = self.pending - self.current;
        self.pending = waiting;
        if !self.current.is_empty() {
            return;
        }
        for cause in [Interrupts::COMMAND_COMPLETE, Interrupts::MAILBOX_IN] {
            if waiting.contains(cause) {
                self.current = Interrupts::VALID | cause;
                self.pending -= cause;
                return;
            }
        }
    }

    /// Enable or disable the line.
    pub(super) const fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Whether the line is asserted.
    pub(super) const fn asserted(&self) -> bool {
        self.enabled && !self.current.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cause_at_a_time() {
        let mut causes = Causes::new();
        assert!(!causes.asserted());
        causes.mailbox_in();
        causes.command_complete();
        assert_eq!(causes.read(), 0x81);
        causes.mailbox_in();
        assert_eq!(causes.read(), 0x81);
        causes.acknowledge(false);
        assert!(!causes.asserted());
        assert_eq!(causes.read(), 0);
        causes.present_pending();
        assert_eq!(causes.read(), 0x84);
        causes.mailbox_in();
        assert_eq!(causes.read(), 0x84);
        causes.acknowledge(false);
        causes.present_pending();
        assert_eq!(causes.read(), 0x81);
        causes.acknowledge(false);
        causes.present_pending();
        assert!(!causes.asserted());
    }

    #[test]
    fn what_was_loaded_after_the_read_is_not_acknowledged() {
        let mut causes = Causes::new();
        for (seen, again) in [(false, 0x81), (true, 0)] {
            causes.mailbox_in();
            assert_eq!(causes.read(), 0x81);
            causes.mailbox_in();
            assert!(causes.unread());
            causes.acknowledge(seen);
            causes.present_pending();
            assert_eq!(causes.read(), again, "seen: {seen}");
            causes.acknowledge(false);
            causes.present_pending();
            assert!(!causes.asserted(), "but once");
        }
        // An acknowledgement without a read, as a driver makes when it comes up.
        causes.command_complete();
        causes.acknowledge(false);
        causes.present_pending();
        assert!(!causes.asserted());
    }

    #[test]
    fn a_line_that_is_switched_off_stays_low() {
        let mut causes = Causes::new();
        causes.enable(false);
        causes.command_complete();
        assert!(!causes.asserted());
        assert_eq!(causes.read(), 0x84, "the register says it all the same");
        causes.enable(true);
        assert!(causes.asserted());
    }
}
