//! The write-ahead log: metadata are written to the log and flushed before they are written in place. After a crash,
//! either the old metadata are there, or the log has what is needed to complete the new ones. [MS-VHDX] 2.3.
//!
//! The log is a ring of 4 KiB sectors. Each entry is one atomic change. The last valid entry refers to the tail: the
//! oldest entry that a replay applies.

use spec::SECTOR;

use super::space::MAX_FILE;

mod changes;
mod entry;
mod replay;
mod scan;
mod spec;

pub(in crate::formats::vhdx) use changes::Change;
pub(in crate::formats::vhdx) use entry::Log;
pub(in crate::formats::vhdx) use replay::{Replay, find};

/// Location of the log, from the header.
///
/// The caller has checked: both fields are multiples of 1 MiB, `offset` is at least 1 MiB, the log is inside the file
/// and at most 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::vhdx) struct Region {
    /// Bytes from the start of the file.
    pub(in crate::formats::vhdx) offset: u64,
    /// Bytes.
    pub(in crate::formats::vhdx) length: u32,
}

impl Region {
    /// Number of sectors of the ring.
    fn sectors(self) -> u32 {
        self.length / SECTOR as u32
    }

    /// File offset of a sector, given by its number counted around the ring.
    fn position(self, sector: u64) -> u64 {
        self.offset + sector % u64::from(self.sectors()) * SECTOR as u64
    }
}

/// A change of metadata to write. [`Change`] is the type for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::formats::vhdx) enum Update {
    /// The new content of a sector.
    Data {
        /// Bytes from the start of the file, a multiple of 4 KiB.
        offset: u64,
        /// The content.
        sector: Box<[u8; SECTOR]>,
    },
    /// Zeros in a range.
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
    /// Offset and length in bytes.
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Data { offset, .. } => (*offset, SECTOR as u64),
            Self::Zero { offset, len } => (*offset, *len),
        }
    }
}

/// The file sizes that an entry has, in bytes; multiples of 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::formats::vhdx) struct Sizes {
    /// `FlushedFileOffset`: the size of the file on stable storage. If the file is shorter, it was truncated, and is
    /// refused.
    pub(in crate::formats::vhdx) flushed: u64,
    /// `LastFileOffset`: the end of all allocated space. The replay extends the file to it.
    pub(in crate::formats::vhdx) last: u64,
}

#[cfg(test)]
mod tests;
