//! What a drive does at a time, and what a step of it asks of the channel.

use super::command::Transfer;
use super::search::Search;
use super::settings::Settings;
use super::trim::Range;
use crate::dma::Access;

/// What a step of a command does to the channel's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Intrq {
    Raise,
    Same,
}

/// Bytes that a drive wants moved by the bus master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DmaRequest {
    pub(super) bytes: u64,
    pub(super) access: Access,
}

/// What a drive does.
#[derive(Debug)]
pub(super) enum Work {
    /// Nothing.
    Idle,
    /// The guest reads a block that is not of the disk.
    DriveData,
    /// The guest moves a block of a transfer.
    Port(Transfer),
    /// The disk has a block of a transfer.
    Block(Transfer),
    /// The bus master is to move the data.
    AwaitDma(Transfer),
    /// The disk moves them.
    Dma(Transfer),
    /// The disk has failed to read, and reads again.
    Search(Search),
    /// The bus master is to move so many bytes of ranges to be discarded.
    AwaitRanges(usize),
    /// The disk discards a range. Those that follow, last first.
    Discard(Vec<Range>),
    /// The disk flushes. The settings hold from its success on: with the write cache off, a driver asks for no flush any more.
    Flush(Option<Settings>),
    /// The disk has a request of a command that a reset has ended.
    Reset,
}

/// What a drive has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) commands: u64,
    pub(super) ended: u64,
    pub(super) failed: u64,
}
