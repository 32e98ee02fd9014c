//! Whether the guest is connected to the bus, and the negotiated version of the protocol.

use super::spec::{InitiateContact, VMBUS_MESSAGE_SINT, version};

/// Supported versions.
const VERSIONS: [u32; 7] =
    [version(3, 0), version(4, 0), version(4, 1), version(5, 0), version(5, 1), version(5, 2), version(5, 3)];

/// Whether the guest is connected to the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Not connected.
    Down,
    /// Connected, with this version.
    Up { version: u32 },
    /// A reset waits for requests in flight; this answer follows.
    Resetting(Answer),
}

/// The answer that the guest waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// To INITIATE_CONTACT. `None`: the requested version is not supported.
    Version(Option<u32>),
    /// To UNLOAD.
    Unload,
}

impl Answer {
    /// The answer to INITIATE_CONTACT.
    pub(super) fn of(contact: &InitiateContact) -> Self {
        let wanted = contact.version.get();
        // Before 5.0 the field has another meaning, and the interrupt source is fixed.
        let sint = wanted < version(5, 0) || contact.sint == VMBUS_MESSAGE_SINT;
        Self::Version(Some(wanted).filter(|wanted| sint && VERSIONS.contains(wanted)))
    }
}
