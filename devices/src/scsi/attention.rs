//! Unit attention conditions and deferred errors (SAM-5, 5.14; SPC-4, 4.5.7): what a unit reports before it executes the next command.

use super::sense::{Key, Sense, asc};

/// Unit attention conditions, a bit each; the lowest is reported first.
pub(super) const POWER_ON: u8 = 0x01;
pub(super) const BUS_RESET: u8 = 0x02;
pub(super) const DEVICE_RESET: u8 = 0x04;
const CAPACITY: u8 = 0x08;
const LUNS: u8 = 0x10;

/// The conditions and the deferred error to report.
#[derive(Debug)]
pub(super) struct Attention {
    conditions: u8,
    /// The capacity has changed, and the adapter has not reported it to the guest yet.
    capacity: bool,
    deferred: Option<Sense>,
}

impl Attention {
    /// After power on.
    pub(super) const fn new() -> Self {
        Self { conditions: POWER_ON, capacity: false, deferred: None }
    }

    /// Whether there is a condition or an error to report.
    pub(super) const fn pending(&self) -> bool {
        self.conditions != 0 || self.deferred.is_some()
    }

    /// Take the most urgent condition, and clear it.
    pub(super) fn take(&mut self) -> Option<Sense> {
        let first = self.conditions & self.conditions.wrapping_neg();
        self.conditions &= !first;
        let code = match first {
            POWER_ON => asc::POWER_ON,
            BUS_RESET => asc::SCSI_BUS_RESET,
            DEVICE_RESET => asc::BUS_DEVICE_RESET,
            CAPACITY => asc::CAPACITY_CHANGED,
            LUNS => asc::REPORTED_LUNS_CHANGED,
            _ => return self.deferred.take(),
        };
        Some(Sense::new(Key::UnitAttention, code))
    }

    /// The unit was reset. A deferred error is kept, and reported after the reset: it concerns data that the initiator
    /// assumes to be written.
    pub(super) fn reset(&mut self, condition: u8) {
        self.conditions = condition;
    }

    /// A command that had ended with GOOD has failed.
    pub(super) fn defer(&mut self, sense: Sense) {
        self.deferred = Some(Sense { deferred: true, ..sense });
    }

    /// Units were attached to or detached from the target. Ignored while a reset is to be reported.
    pub(super) fn luns_changed(&mut self) {
        if self.conditions & (POWER_ON | BUS_RESET | DEVICE_RESET) == 0 {
            self.conditions |= LUNS;
        }
    }

    /// REPORT LUNS was answered.
    pub(super) fn luns_reported(&mut self) {
        self.conditions &= !LUNS;
    }

    /// The capacity of the medium has changed.
    pub(super) fn capacity_changed(&mut self) {
        self.conditions |= CAPACITY;
        self.capacity = true;
    }

    /// Whether the capacity has changed since the last call, for adapters with an event for it.
    pub(super) fn take_capacity_change(&mut self) -> bool {
        std::mem::take(&mut self.capacity)
    }
}
