//! Log entries: encoding, and validation sector by sector; and the log of an image that is being written.

use std::io;

use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::spec::{
    DATA, DESCRIPTOR, DataSector, Descriptor, ENTRY, EntryHeader, SECTOR, ZERO, descriptor_sectors,
};
use super::{Region, Sizes, Update};
use crate::host::store::Store;

/// A sector of the log.
pub(super) type Sector = [u8; SECTOR];

/// The properties of a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) sequence: u64,
    pub(super) sectors: u32,
    /// The sector of the ring where the oldest entry begins that a replay applies.
    pub(super) tail: u32,
    pub(super) sizes: Sizes,
}

/// The result of feeding a sector to a [`Parser`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Valid so far.
    More,
    /// The entry is valid, and this was its last sector.
    Whole(Summary),
    /// The entry is invalid.
    Broken,
}

/// The validation of an entry.
///
/// Only the first sector of a valid entry begins with the signature of an entry; each of the others begins with a
/// descriptor or the signature of a data sector. So an invalid entry ends, at the latest, where another one may begin.
pub(super) struct Parser {
    summary: Summary,
    checksum: u32,
    /// Number of descriptors that were not read yet.
    descriptors_left: u32,
    /// Number of sectors of the header and descriptors.
    descriptor_sectors: u32,
    /// Number of sectors read.
    seen: u32,
    /// Number of data descriptors read.
    data: u32,
    crc: u32,
}

impl Parser {
    /// For an entry that has this sector as its first; the caller feeds it next. `None` if its header is not that of
    /// an entry.
    pub(super) fn new(sector: &Sector, region: Region, guid: Uuid) -> Option<Self> {
        let (header, _) = EntryHeader::ref_from_prefix(sector).ok()?;
        let (length, tail) = (header.entry_length.get(), header.tail.get());
        let (sequence, descriptors) = (header.sequence_number.get(), header.descriptor_count.get());
        let whole = |bytes: u32| bytes.is_multiple_of(SECTOR as u32);
        if header.signature != ENTRY
            || Uuid::from_bytes_le(header.log_guid) != guid
            || sequence == 0
            || !whole(length)
            || length > region.length
            || !whole(tail)
            || tail >= region.length
        {
            return None;
        }
        let sectors = length / SECTOR as u32;
        let descriptor_sectors = u32::try_from(descriptor_sectors(descriptors)).ok()?;
        if descriptor_sectors > sectors || sectors - descriptor_sectors > descriptors {
            return None;
        }
        let sizes = Sizes { flushed: header.flushed_file_offset.get(), last: header.last_file_offset.get() };
        Some(Self {
            summary: Summary { sequence, sectors, tail: tail / SECTOR as u32, sizes },
            checksum: header.checksum.get(),
            descriptors_left: descriptors,
            descriptor_sectors,
            seen: 0,
            data: 0,
            crc: 0,
        })
    }

    /// Check the next sector.
    pub(super) fn feed(&mut self, sector: &Sector) -> Step {
        let good =
            if self.seen < self.descriptor_sectors { self.descriptors(sector) } else { self.middle(sector) };
        if !good {
            return Step::Broken;
        }
        self.crc = match self.seen {
            0 => checksum_begun(sector),
            _ => crc32c::crc32c_append(self.crc, sector),
        };
        self.seen += 1;
        match self.seen == self.summary.sectors {
            false => Step::More,
            true if self.crc == self.checksum && self.data == self.data_sectors() => {
                Step::Whole(self.summary)
            }
            true => Step::Broken,
        }
    }

    fn data_sectors(&self) -> u32 {
        self.summary.sectors - self.descriptor_sectors
    }

    /// Check a sector of descriptors; the first one begins with the header.
    fn descriptors(&mut self, sector: &Sector) -> bool {
        let area = if self.seen == 0 { &sector[size_of::<EntryHeader>()..] } else { &sector[..] };
        let descriptors = area.chunks_exact(size_of::<Descriptor>());
        for bytes in descriptors.take(self.descriptors_left as usize) {
            self.descriptors_left -= 1;
            let Ok(descriptor) = Descriptor::ref_from_bytes(bytes) else { return false };
            if !self.descriptor(descriptor) {
                return false;
            }
        }
        self.data <= self.data_sectors()
    }

    fn descriptor(&mut self, descriptor: &Descriptor) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(SECTOR as u64);
        let (offset, len) = (descriptor.file_offset.get(), u64::from_le_bytes(descriptor.leading_bytes));
        match descriptor.signature {
            DESCRIPTOR => self.data += 1,
            ZERO if whole(len) => {}
            _ => return false,
        }
        whole(offset) && descriptor.sequence_number.get() == self.summary.sequence
    }

    /// Check a data sector.
    fn middle(&self, sector: &Sector) -> bool {
        DataSector::ref_from_bytes(sector).is_ok_and(|found| found.is_of(self.summary.sequence))
    }
}

impl DataSector {
    /// Whether this is a data sector of the entry with this sequence number.
    fn is_of(&self, sequence: u64) -> bool {
        let own = u64::from(self.sequence_high.get()) << 32 | u64::from(self.sequence_low.get());
        self.signature == DATA && own == sequence
    }
}

/// Assemble the content of a changed sector from a data descriptor and its data sector; `false` if `data` is not a data
/// sector of the entry with this sequence number.
pub(super) fn complete(sector: &mut Sector, descriptor: &Descriptor, data: &Sector, sequence: u64) -> bool {
    let Ok(found) = DataSector::ref_from_bytes(data) else { return false };
    sector[..8].copy_from_slice(&descriptor.leading_bytes);
    sector[8..SECTOR - 4].copy_from_slice(&found.data);
    sector[SECTOR - 4..].copy_from_slice(&descriptor.trailing_bytes);
    found.is_of(sequence)
}

/// CRC of the first sector of an entry, with the checksum field as zero.
fn checksum_begun(sector: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&sector[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &sector[8..])
}

/// Number of sectors of an entry with these changes.
pub(super) fn sectors(updates: &[Update]) -> u64 {
    let data = updates.iter().filter(|update| matches!(update, Update::Data { .. })).count() as u64;
    descriptor_sectors(u32::try_from(updates.len()).unwrap_or(u32::MAX)) + data
}

/// Encode an entry.
pub(super) fn encode(updates: &[Update], sequence: u64, tail: u32, guid: Uuid, sizes: Sizes) -> Vec<u8> {
    let length = sectors(updates) as usize * SECTOR;
    let mut bytes = Vec::with_capacity(length);
    let header = EntryHeader {
        signature: ENTRY,
        checksum: 0.into(),
        entry_length: (length as u32).into(),
        tail: (tail * SECTOR as u32).into(),
        sequence_number: sequence.into(),
        descriptor_count: (updates.len() as u32).into(),
        reserved: 0.into(),
        log_guid: guid.to_bytes_le(),
        flushed_file_offset: sizes.flushed.into(),
        last_file_offset: sizes.last.into(),
    };
    bytes.extend_from_slice(header.as_bytes());
    for update in updates {
        bytes.extend_from_slice(describe(update, sequence).as_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    for update in updates {
        let Update::Data { sector, .. } = update else { continue };
        let mut data = DataSector::new_zeroed();
        data.signature = DATA;
        data.sequence_high = ((sequence >> 32) as u32).into();
        data.data.copy_from_slice(&sector[8..SECTOR - 4]);
        data.sequence_low = (sequence as u32).into();
        bytes.extend_from_slice(data.as_bytes());
    }
    let checksum = crc32c::crc32c(&bytes);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn describe(update: &Update, sequence: u64) -> Descriptor {
    let mut descriptor = Descriptor::new_zeroed();
    descriptor.sequence_number = sequence.into();
    descriptor.file_offset = update.range().0.into();
    match update {
        Update::Data { sector, .. } => {
            descriptor.signature = DESCRIPTOR;
            descriptor.leading_bytes.copy_from_slice(&sector[..8]);
            descriptor.trailing_bytes.copy_from_slice(&sector[SECTOR - 4..]);
        }
        Update::Zero { len, .. } => {
            descriptor.signature = ZERO;
            descriptor.leading_bytes = len.to_le_bytes();
        }
    }
    descriptor
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
        let sectors = sectors(updates);
        if sectors > u64::from(self.largest()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many changes for one log entry"));
        }
        let bytes = encode(updates, self.sequence, self.next, self.guid, sizes);
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
