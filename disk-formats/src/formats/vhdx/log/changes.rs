//! Reads the changes of a sequence of log entries, one change at a time. An entry may be as long as the ring (up to 1
//! GiB), so entries are not held in memory.

use std::io;

use zerocopy::FromBytes;

use super::Region;
use super::entry::{Sector, complete};
use super::scan::{Place, Sectors};
use super::spec::{DESCRIPTOR, Descriptor, EntryHeader, SECTOR, ZERO, descriptor_sectors};
use crate::contract::error::{BadField, ReadError};
use crate::host::store::Store;

/// Size in bytes of the start of the file that is not changed through the log: the identifier and the headers.
const UNLOGGED: u64 = 192 << 10;

/// One change.
#[derive(Clone, Copy, Debug)]
pub(in crate::formats::vhdx) enum Change<'a> {
    /// The new content of a sector.
    Data {
        /// Bytes from the start of the file, a multiple of 4 KiB.
        offset: u64,
        /// The content.
        sector: &'a Sector,
    },
    /// Zeros in a range.
    Zero {
        /// Bytes from the start of the file, a multiple of 4 KiB.
        offset: u64,
        /// Bytes, a multiple of 4 KiB; may be 0.
        len: u64,
    },
}

/// The changes of consecutive valid entries, in order.
pub(super) struct Changes<'a> {
    region: Region,
    entries: std::slice::Iter<'a, Place>,
    /// Two independent readers: of descriptors, and of the data sectors that follow them. Each reads the ring once.
    descriptors: Sectors<'a>,
    data: Sectors<'a>,
    /// The sector where the next entry begins, counted around the ring.
    next: u64,
    sequence: u64,
    /// Number of descriptors of the current entry that are left; the next ones are in `area`.
    left: u32,
    area: Box<Sector>,
    /// Number of bytes of `area` that were used.
    given: usize,
    sector: Box<Sector>,
}

/// A valid entry has become invalid: another program is writing to the file.
fn changed() -> io::Error {
    io::Error::other("the log was changed while it was read")
}

impl<'a> Changes<'a> {
    pub(super) fn new(store: &'a dyn Store, region: Region, entries: &'a [Place]) -> Self {
        let start = entries.first().map_or(0, |entry| entry.start);
        Self {
            region,
            entries: entries.iter(),
            descriptors: Sectors::from(store, region, start),
            data: Sectors::from(store, region, start),
            next: start.into(),
            sequence: 0,
            left: 0,
            area: Box::new([0; SECTOR]),
            given: SECTOR,
            sector: Box::new([0; SECTOR]),
        }
    }

    /// The next change; `None` after the last one. [`ReadError::Bad`] is a change of a forbidden range.
    pub(super) fn next(&mut self) -> Result<Option<Change<'_>>, ReadError> {
        let Some(descriptor) = self.descriptor()? else { return Ok(None) };
        let (offset, leading) = (descriptor.file_offset.get(), descriptor.leading_bytes);
        let len = match descriptor.signature {
            ZERO => u64::from_le_bytes(leading),
            _ => SECTOR as u64,
        };
        check(self.region, offset, len)?;
        if descriptor.signature == ZERO {
            return Ok(Some(Change::Zero { offset, len }));
        }
        if !complete(&mut self.sector, &descriptor, self.data.next()?, self.sequence) {
            return Err(changed().into());
        }
        Ok(Some(Change::Data { offset, sector: &self.sector }))
    }

    /// The next descriptor, of the current entry or the following ones.
    fn descriptor(&mut self) -> io::Result<Option<Descriptor>> {
        while self.left == 0 {
            let Some(entry) = self.entries.next() else { return Ok(None) };
            self.open_entry(entry)?;
        }
        if self.given == SECTOR {
            self.area.copy_from_slice(self.descriptors.next()?);
            self.given = 0;
        }
        let bytes = self.area.get(self.given..).unwrap_or_default();
        let (descriptor, _) = Descriptor::read_from_prefix(bytes).map_err(|_| changed())?;
        self.given += size_of::<Descriptor>();
        self.left -= 1;
        let known = descriptor.signature == ZERO || descriptor.signature == DESCRIPTOR;
        match known && descriptor.sequence_number.get() == self.sequence {
            true => Ok(Some(descriptor)),
            false => Err(changed()),
        }
    }

    fn open_entry(&mut self, entry: &Place) -> io::Result<()> {
        self.descriptors.go_to(self.next);
        self.area.copy_from_slice(self.descriptors.next()?);
        let (header, _) = EntryHeader::read_from_prefix(&self.area[..]).map_err(|_| changed())?;
        let count = header.descriptor_count.get();
        if header.sequence_number.get() != entry.summary.sequence
            || descriptor_sectors(count) > entry.summary.sectors.into()
        {
            return Err(changed());
        }
        self.data.go_to(self.next + descriptor_sectors(count));
        self.next += u64::from(entry.summary.sectors);
        self.sequence = entry.summary.sequence;
        (self.left, self.given) = (count, size_of::<EntryHeader>());
        Ok(())
    }
}

/// Check that the log may change this range.
fn check(region: Region, offset: u64, len: u64) -> Result<(), BadField> {
    let bad = |expected: String| {
        BadField::new("file offset of a log descriptor", format!("{offset:#x} for {len} bytes"), expected)
    };
    let end = offset.checked_add(len).filter(|end| *end <= super::MAX_FILE);
    let end = end.ok_or_else(|| bad(format!("an end at {:#x} at the most", super::MAX_FILE)))?;
    let log_end = region.offset + u64::from(region.length);
    if offset < UNLOGGED {
        return Err(bad(format!("at least {UNLOGGED:#x}, behind the headers")));
    }
    if offset < log_end && end > region.offset {
        return Err(bad(format!("a place outside the log at {:#x} to {log_end:#x}", region.offset)));
    }
    Ok(())
}
