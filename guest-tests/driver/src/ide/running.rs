//! The command in flight.

use crate::adapter::Buffer;

/// The command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) tag: u32,
    pub(super) channel: u8,
    pub(super) kind: Kind,
    pub(super) data: Buffer,
    /// Bytes that the data port has moved.
    pub(super) moved: u32,
    /// Bytes of a block of the data port.
    pub(super) block: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Dma,
    PortIn,
    PortOut,
    Flush,
}
