//! The state of a drive's command, and the effect of a step on the channel.

use super::command::Transfer;
use super::search::Search;
use super::settings::Settings;
use super::trim::Range;
use crate::dma::Access;

/// The effect of a step on the channel's INTRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Intrq {
    Raise,
    Unchanged,
}

/// A DMA transfer that a drive waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DmaRequest {
    pub(super) bytes: u64,
    pub(super) access: Access,
}

/// The state of a drive's command.
#[derive(Debug)]
pub(super) enum Work {
    /// There is no command.
    Idle,
    /// The guest reads a block of [drive data](super::command::DriveData) through the data port.
    DriveData,
    /// The guest transfers a block through the data port.
    Port(Transfer),
    /// A disk request for a block is in flight.
    Block(Transfer),
    /// The transfer waits for the bus master.
    AwaitDma(Transfer),
    /// The disk request of a DMA transfer is in flight.
    Dma(Transfer),
    /// A read failed; the drive searches for the first unreadable sector.
    Search(Search),
    /// TRIM waits for the bus master to transfer this many bytes of ranges.
    AwaitRanges(usize),
    /// A discard is in flight. The remaining ranges, in reverse order.
    Discard(Vec<Range>),
    /// A flush is in flight. The settings take effect only if it succeeds: a driver that has disabled the write cache sends no flushes.
    Flush(Option<Settings>),
    /// A reset aborted the command, and its disk request is still in flight.
    Reset,
}

/// Statistics of a drive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) commands: u64,
    pub(super) ended: u64,
    pub(super) failed: u64,
}
