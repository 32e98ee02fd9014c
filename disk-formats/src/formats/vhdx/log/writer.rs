//! The log of an image that is being written.

use std::io;

use uuid::Uuid;

use super::spec::{Descriptor, SECTOR};
use super::{Region, Sizes, Update, entry};
use crate::host::store::Store;

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
