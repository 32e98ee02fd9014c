//! Log entries: encoding, and validation sector by sector.

use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::spec::{
    DATA, DESCRIPTOR, DataSector, Descriptor, ENTRY, EntryHeader, SECTOR, ZERO, descriptor_sectors,
};
use super::{Region, Sizes, Update};

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
    /// Start with this sector as the first of an entry; the caller feeds it next. `None` if its header is not that of
    /// an entry.
    pub(super) fn begin(sector: &Sector, region: Region, guid: Uuid) -> Option<Self> {
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
