//! Task management requests whose reply is delayed.

use super::spec::TaskMgmtReply;
use crate::scsi::Address;

/// The units that a task management request applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Unit(Address),
    Target(u8),
    Bus,
}

impl Scope {
    pub(super) fn has(self, address: Address) -> bool {
        match self {
            Self::Unit(unit) => unit == address,
            Self::Target(target) => target == address.target,
            Self::Bus => true,
        }
    }
}

/// The event that a reply waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The end of a task that is being aborted.
    Task(u32),
    /// The reset of units: their disks may still access guest memory.
    Units(Scope),
}

/// A task management request whose reply is delayed. The virtual CPU that posted it does not wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Management {
    pub(super) waits_for: WaitsFor,
    pub(super) reply: TaskMgmtReply,
}
