//! The log (write-ahead): metadata are written and flushed there before they are written in place. A crash leaves
//! either the old metadata, or what is needed to complete the new. [MS-VHDX] 2.3.
//!
//! It is a ring of sectors of 4 KiB. Each entry is one atomic change. The last valid entry has the tail: the oldest
//! entry that may not be applied yet.

mod active;
mod changes;
mod entry;
mod replay;
mod scan;
mod spec;
mod writer;

#[cfg(test)]
mod tests;

pub(in crate::formats::vhdx) use changes::Change;
pub(in crate::formats::vhdx) use replay::{Replay, find};
pub(in crate::formats::vhdx) use writer::Log;

use super::space::MAX_FILE;
use spec::SECTOR;

/// Where the log is, from the header.
///
/// Checked by the caller: both multiples of 1 MiB, `offset` at least that, all inside the file, at most 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::vhdx) struct Region {
    /// Bytes from the start of the file.
    pub(in crate::formats::vhdx) offset: u64,
    /// Bytes.
    pub(in crate::formats::vhdx) length: u32,
}

impl Region {
    /// Sectors of the ring.
    fn sectors(self) -> u32 {
        self.length / SECTOR as u32
    }

    /// Where in the file a sector is that is counted on round the ring.
    fn position(self, sector: u64) -> u64 {
        self.offset + sector % u64::from(self.sectors()) * SECTOR as u64
    }
}

/// One change of metadata, to be written. What is read is a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::formats::vhdx) enum Update {
    /// A sector's new content.
    Data {
        /// Bytes from the start of the file, a multiple of 4 KiB.
        offset: u64,
        /// The content.
        sector: Box<[u8; SECTOR]>,
    },
    /// A range that becomes zeros.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "only other programs log zeros, and tests in their place")
    )]
    Zero {
        /// Bytes from the start of the file, a multiple of 4 KiB.
        offset: u64,
        /// Bytes, a multiple of 4 KiB.
        len: u64,
    },
}

impl Update {
    /// First byte, and bytes.
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Data { offset, .. } => (*offset, SECTOR as u64),
            Self::Zero { offset, len } => (*offset, *len),
        }
    }
}

/// Sizes of the file that an entry states, in bytes, multiples of 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::vhdx) struct Sizes {
    /// `FlushedFileOffset`: the length of the file on stable storage. A shorter file has been cut, and is refused.
    pub(in crate::formats::vhdx) flushed: u64,
    /// `LastFileOffset`: where everything that is allocated ends. Replay grows the file to it.
    pub(in crate::formats::vhdx) last: u64,
}
