//! What the adapter says of itself.

/// What the adapter says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Model, padded with spaces.
    pub model: [u8; 5],
    /// Firmware: three digits and a letter.
    pub firmware: [u8; 4],
    /// Elements of a list of segments at the most.
    pub sg_limit: u16,
    /// The adapter's own ID.
    pub id: u8,
    /// Targets with units, bit by bit.
    pub targets: u16,
    /// Targets whose requests may be tagged, bit by bit.
    pub disconnect: u16,
}
