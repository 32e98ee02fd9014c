//! The write-ahead log: metadata are written to the log and flushed before they are written in place. After a crash,
//! either the old metadata are there, or the log has what is needed to complete the new ones. [MS-VHDX] 2.3.
//!
//! The log is a ring of 4 KiB sectors. Each entry is one atomic change. The last valid entry refers to the tail: the
//! oldest entry that a replay applies.

use std::io;

use spec::{Descriptor, SECTOR};
use uuid::Uuid;

use super::space::MAX_FILE;
use crate::host::store::Store;

mod changes;
mod entry;
mod replay;
mod scan;
mod spec;

pub(in crate::formats::vhdx) use changes::Change;
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

/// The log, under one GUID, from its start until it is closed.
///
/// Each entry is its own tail: the caller has applied and flushed all earlier entries. So a crash leaves at most the
/// last entry to replay, which stays valid until the next one is on stable storage.
#[derive(Debug)]
pub(in crate::formats::vhdx) struct Log {
    region: Region,
    guid: Uuid,
    /// Sequence number of the next entry.
    sequence: u64,
    /// Sector of the ring where the next entry begins.
    next: u32,
}

impl Log {
    /// Start a log: write an empty entry at the start of the ring, and flush it.
    ///
    /// `guid` must be new and not nil. The caller writes it to the header afterwards. So a header never has a GUID
    /// without a valid entry.
    ///
    /// # Errors
    /// The host's. The caller must then not write the GUID to the header.
    pub(in crate::formats::vhdx) fn start(
        store: &dyn Store,
        region: Region,
        guid: Uuid,
        sizes: Sizes,
    ) -> io::Result<Self> {
        let mut log = Self { region, guid, sequence: 1, next: 0 };
        log.append(store, &[], sizes)?;
        Ok(log)
    }

    /// Maximum number of changes of one entry: an entry takes less than half of the ring, so that it never overwrites
    /// the previous one.
    pub(in crate::formats::vhdx) fn capacity(&self) -> usize {
        // Each change takes a descriptor and a data sector. The header takes the space of two descriptors.
        let descriptors = (SECTOR / size_of::<Descriptor>()) as u32;
        ((self.largest() * descriptors).saturating_sub(2) / (descriptors + 1)) as usize
    }

    /// Maximum number of sectors of an entry.
    fn largest(&self) -> u32 {
        (self.region.sectors() / 2).saturating_sub(1)
    }

    /// Write an entry with at most [`capacity`](Self::capacity) changes, and flush it by one sync. All earlier entries
    /// must be applied and flushed.
    ///
    /// # Errors
    /// The host's; `InvalidInput` for an entry that is too long. After an error the entry may still be on stable
    /// storage. If it is, and no other entry was written since, a replay after a crash applies its changes. So until another
    /// entry is written, the space that they refer to must stay valid. The next entry replaces the failed one, with the same offset and
    /// sequence number. While the next entry is being written, a mixture of the two has a wrong checksum. So a crash
    /// leaves one of the two, or the entry before them, which is applied already.
    pub(in crate::formats::vhdx) fn append(
        &mut self,
        store: &dyn Store,
        updates: &[Update],
        sizes: Sizes,
    ) -> io::Result<()> {
        let sectors = entry::sectors(updates);
        if sectors > u64::from(self.largest()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many changes for one log entry"));
        }
        let bytes = entry::encode(updates, self.sequence, self.next, self.guid, sizes);
        let to_end = (self.region.sectors() - self.next) as usize * SECTOR;
        let (first, wrapped) = bytes.split_at(bytes.len().min(to_end));
        store.write_at(first, self.region.position(self.next.into()))?;
        if !wrapped.is_empty() {
            store.write_at(wrapped, self.region.offset)?;
        }
        store.sync()?;
        self.next = (self.next + sectors as u32) % self.region.sectors();
        self.sequence += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
