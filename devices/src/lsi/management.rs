//! Task management whose reply waits.

use super::spec::TaskMgmtReply;
use crate::scsi::Address;

/// What task management is about.
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

/// What a reply waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The end of a task that is aborted.
    Task(u32),
    /// The disks of units that are reset: they may still read and write guest memory.
    Units(Scope),
}

/// Task management whose reply waits. The virtual CPU that asked does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Management {
    pub(super) waits_for: WaitsFor,
    pub(super) reply: TaskMgmtReply,
}
