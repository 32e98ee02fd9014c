//! The steps of the bring-up, for reports.

use crate::workload::Fault;

/// At which step the bring-up failed: [`Fault::found`](crate::workload::Fault) with `BRING_UP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Step {
    /// The function was not found or lacks the register space.
    Function = 1,
    /// The controller did not become ready.
    Ready = 2,
    /// The handshake went wrong.
    Handshake = 3,
    /// IOC FACTS or PORT FACTS make no sense.
    Facts = 4,
    /// Too little DMA memory.
    Memory = 5,
    /// The function lacks the interrupt mode.
    Interrupts = 6,
    /// The controller did not become operational.
    Operational = 7,
    /// A configuration page that the driver needs is missing or has another size.
    Pages = 8,
}

/// The fault of a bring-up that failed at this step.
pub(super) const fn failed(step: Step) -> Fault {
    Fault { kind: Fault::BRING_UP, found: step as u64, ..Fault::EMPTY }
}
