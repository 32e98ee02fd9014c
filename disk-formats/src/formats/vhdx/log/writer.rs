//! The log of a session that writes.

use std::io;

use uuid::Uuid;

use super::spec::{Descriptor, SECTOR};
use super::{Region, Sizes, Update, entry};
use crate::host::store::Store;

/// The log of one session, under one GUID.
///
/// Each entry is its own tail: by contract, the entries before it have been applied and flushed. So a crash leaves at
/// most the last entry to replay, and that one stays valid until the next is on stable storage.
#[derive(Debug)]
pub(in crate::formats::vhdx) struct Log {
    region: Region,
    guid: Uuid,
    /// Of the next entry.
    sequence: u64,
    /// Sector of the ring where the next entry begins.
    next: u32,
}

impl Log {
    /// Begin a log: write an empty entry at the start of the ring, and flush it.
    ///
    /// `guid` is a new one, not nil. The caller puts it into the header thereafter: so there is never a header with a GUID
    /// that no entry has.
    ///
    /// # Errors
    /// The host's. The header must then not get the GUID.
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

    /// Changes that one entry can hold at the most: an entry takes less than half of the ring, so that it never reaches the
    /// one before.
    pub(in crate::formats::vhdx) fn capacity(&self) -> usize {
        // Each change takes a descriptor and a sector of data; the header takes the space of two descriptors.
        let descriptors = (SECTOR / size_of::<Descriptor>()) as u32;
        ((self.largest() * descriptors).saturating_sub(2) / (descriptors + 1)) as usize
    }

    /// Sectors of an entry at the most.
    fn largest(&self) -> u32 {
        (self.region.sectors() / 2).saturating_sub(1)
    }

    /// Write one entry with these changes, [`capacity`](Self::capacity) of them at the most, and flush it with one
    /// sync. Everything that was logged before has to be applied and flushed.
    ///
    /// # Errors
    /// The host's; `InvalidInput` for an entry that is too long. The entry may be on stable storage all the same, and a
    /// crash may bring about its changes, until another entry has been written: what they refer to has to stay valid
    /// until then. The next entry takes the failed one's place and number. While it is written, a mixture of the two
    /// fails its checksum, so that a crash leaves one of the two, or the entry before, which is applied already.
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
