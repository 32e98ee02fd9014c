//! Causes of interrupts: the interrupt register.
//!
//! The register shows one of the two causes that the adapter has, IMBL and CMDC: drivers act on one cause alone, and acknowledge all. The
//! other one is postponed until then.
//!
//! A driver reads the register, acknowledges, and then looks at the incoming mailboxes. Its write may be posted: it may have looked at
//! them before the write arrives here. So mailboxes that were loaded between its read, which nothing overtakes, and the arrival of its
//! write are not known to be seen, and IMBL is raised again.

use super::spec::Interrupts;

/// The register, and what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct Causes {
    shown: Interrupts,
    postponed: Interrupts,
    /// IMBL was raised since the driver read the register.
    unread: bool,
    /// The line is switched on.
    enabled: bool,
}

impl Causes {
    pub(super) const fn new() -> Self {
        let none = Interrupts::empty();
        Self { shown: none, postponed: none, unread: false, enabled: true }
    }

    /// The driver reads the register.
    pub(super) const fn read(&mut self) -> u8 {
        self.unread = false;
        self.shown.bits()
    }

    /// A command has completed.
    pub(super) fn command_complete(&mut self) {
        self.postponed |= Interrupts::COMMAND_COMPLETE;
        self.show();
    }

    /// Incoming mailboxes are loaded.
    pub(super) fn mailbox_in(&mut self) {
        self.unread = true;
        self.postponed |= Interrupts::MAILBOX_IN;
        self.show();
    }

    /// Whether an acknowledgement would be of mailboxes that the driver may not have looked at.
    pub(super) const fn unread(&self) -> bool {
        self.unread
    }

    /// The driver acknowledges; `seen`: it has looked at all mailboxes that are loaded. [`show`](Self::show) what is postponed afterwards:
    /// the line falls in between.
    pub(super) fn acknowledge(&mut self, seen: bool) {
        // Once: a driver that acknowledges without having read shall not be interrupted for ever.
        let again = std::mem::take(&mut self.unread) && !seen;
        self.postponed
            .set(Interrupts::MAILBOX_IN, self.postponed.contains(Interrupts::MAILBOX_IN) && !seen || again);
        self.shown = Interrupts::empty();
    }

    /// The driver acknowledges, and IMBL is all that this is about. False: it is not, or the driver has to be told again; nothing was done.
    pub(super) fn acknowledge_mailboxes(&mut self) -> bool {
        let alone = self.shown == Interrupts::VALID | Interrupts::MAILBOX_IN && self.postponed.is_empty();
        if !alone || self.unread {
            return false;
        }
        self.shown = Interrupts::empty();
        true
    }

    /// Show what is postponed, if nothing is shown.
    pub(super) fn show(&mut self) {
        let waiting = self.postponed - self.shown;
        self.postponed = waiting;
        if !self.shown.is_empty() {
            return;
        }
        for cause in [Interrupts::COMMAND_COMPLETE, Interrupts::MAILBOX_IN] {
            if waiting.contains(cause) {
                self.shown = Interrupts::VALID | cause;
                self.postponed -= cause;
                return;
            }
        }
    }

    /// Switch the line on or off.
    pub(super) const fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Whether the line is asserted.
    pub(super) const fn asserted(&self) -> bool {
        self.enabled && !self.shown.is_empty()
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
        causes.show();
        assert_eq!(causes.read(), 0x84);
        causes.mailbox_in();
        assert_eq!(causes.read(), 0x84);
        causes.acknowledge(false);
        causes.show();
        assert_eq!(causes.read(), 0x81);
        causes.acknowledge(false);
        causes.show();
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
            causes.show();
            assert_eq!(causes.read(), again, "seen: {seen}");
            causes.acknowledge(false);
            causes.show();
            assert!(!causes.asserted(), "but once");
        }
        // An acknowledgement without a read, as a driver makes when it comes up.
        causes.command_complete();
        causes.acknowledge(false);
        causes.show();
        assert!(!causes.asserted());
    }

    #[test]
    fn mailboxes_alone_are_acknowledged_without_the_device() {
        let mut causes = Causes::new();
        assert!(!causes.acknowledge_mailboxes());
        causes.mailbox_in();
        assert!(!causes.acknowledge_mailboxes(), "the driver has not read the register");
        causes.read();
        assert!(causes.acknowledge_mailboxes());
        assert_eq!((causes.asserted(), causes.read()), (false, 0));
        causes.command_complete();
        causes.read();
        assert!(!causes.acknowledge_mailboxes());
        causes.mailbox_in();
        causes.read();
        assert!(!causes.acknowledge_mailboxes());
        assert_eq!(causes.read(), 0x84);
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
