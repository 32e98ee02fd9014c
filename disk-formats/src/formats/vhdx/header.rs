//! The two headers: which one is active, and how it is updated (\[MS-VHDX\] 2.2.2).

use std::io;

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use super::log;
use super::spec::{HEADER_SECTION, HEADER_SIGNATURE, HEADER_SIZE, HEADERS_AT, Header, MIB, VERSION};
use crate::contract::error::{BadField, ReadError};
use crate::formats::signature::has_identifier;
use crate::host::store::Store;

/// Maximum size of a log in bytes.
const MAX_LOG: u32 = 1 << 30;

impl Header {
    fn computed_checksum(&self) -> u32 {
        let mut header = *self;
        header.checksum = 0.into();
        crc32c::crc32c(header.as_bytes())
    }

    /// Set the checksum.
    pub(super) fn seal(&mut self) {
        self.checksum = self.computed_checksum().into();
    }

    fn check(&self, slot: usize) -> Result<(), BadField> {
        if self.signature != HEADER_SIGNATURE {
            let value = format!("{:02x?} in header {}", self.signature, slot + 1);
            return Err(BadField::new("header signature", value, "\"head\""));
        }
        let (stored, computed) = (self.checksum.get(), self.computed_checksum());
        if stored != computed {
            let value = format!("{stored:#010x} in header {}", slot + 1);
            return Err(BadField::new("header checksum", value, format!("{computed:#010x}")));
        }
        Ok(())
    }
}

/// The active header, and its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) current: Header,
    slot: usize,
    /// The other header is not valid.
    pub(super) other_bad: bool,
}

/// Read the file's identifier and both headers, and check the active one.
pub(super) fn read(store: &dyn Store) -> Result<Headers, ReadError> {
    let len = store.len()?;
    if len < HEADER_SECTION {
        let expected = "at least 1 MiB, as a VHDX has";
        return Err(BadField::new("file size", format!("{len} bytes"), expected).into());
    }
    if !has_identifier(store)? {
        return Err(BadField::new("file type identifier", "something else", "\"vhdxfile\"").into());
    }
    let mut found = [None; 2];
    let mut refused = None;
    for ((slot, at), found) in HEADERS_AT.into_iter().enumerate().zip(&mut found) {
        let mut bytes = [0; HEADER_SIZE];
        store.read_at(&mut bytes, at)?;
        let Ok(header) = Header::read_from_bytes(&bytes) else { continue };
        match header.check(slot) {
            Ok(()) => *found = Some(header),
            Err(bad) => refused = refused.or(Some(bad)),
        }
    }
    let headers = choose(found, refused)?;
    check(&headers.current, len)?;
    Ok(headers)
}

fn choose(found: [Option<Header>; 2], refused: Option<BadField>) -> Result<Headers, BadField> {
    match found {
        [Some(first), Some(second)] => {
            let numbers = [first, second].map(|header| header.sequence_number.get());
            match numbers[0].cmp(&numbers[1]) {
                std::cmp::Ordering::Greater => Ok(Headers { current: first, slot: 0, other_bad: false }),
                std::cmp::Ordering::Less => Ok(Headers { current: second, slot: 1, other_bad: false }),
                // Some programs write the same header twice.
                std::cmp::Ordering::Equal if first.as_bytes() == second.as_bytes() => {
                    Ok(Headers { current: first, slot: 0, other_bad: false })
                }
                std::cmp::Ordering::Equal => {
                    let value = format!("{} in both headers, which differ", numbers[0]);
                    Err(BadField::new("header sequence number", value, "one header newer than the other"))
                }
            }
        }
        [Some(current), None] => Ok(Headers { current, slot: 0, other_bad: true }),
        [None, Some(current)] => Ok(Headers { current, slot: 1, other_bad: true }),
        [None, None] => {
            Err(refused.unwrap_or_else(|| BadField::new("header", "not readable", "one that is valid")))
        }
    }
}

fn check(header: &Header, len: u64) -> Result<(), BadField> {
    let version = header.version.get();
    if version != VERSION {
        return Err(BadField::new("header version", version.to_string(), "1"));
    }
    let log_version = header.log_version.get();
    if log_version != 0 && header.log_guid != [0; 16] {
        return Err(BadField::new("log version", log_version.to_string(), "0"));
    }
    let (offset, length) = (header.log_offset.get(), header.log_length.get());
    let whole = u64::from(length).is_multiple_of(MIB) && (1..=MAX_LOG).contains(&length);
    if !whole {
        return Err(BadField::new("log length", length.to_string(), "whole MiB, 1 MiB to 1 GiB"));
    }
    let inside = offset.checked_add(length.into()).is_some_and(|end| end <= len);
    if !offset.is_multiple_of(MIB) || offset < HEADER_SECTION || !inside {
        let expected = format!("whole MiB, behind the headers, {length} bytes before the end at {len}");
        return Err(BadField::new("log offset", format!("{offset:#x}"), expected));
    }
    Ok(())
}

impl Headers {
    /// The header of a new file, which [`update`](Self::update) writes.
    pub(super) fn of_new(current: Header) -> Self {
        Self { current, slot: 1, other_bad: true }
    }

    /// Location of the log.
    pub(super) fn log_region(&self) -> log::Region {
        log::Region { offset: self.current.log_offset.get(), length: self.current.log_length.get() }
    }

    /// GUID of the log to replay; nil if there is none.
    pub(super) fn log_guid(&self) -> Uuid {
        Uuid::from_bytes_le(self.current.log_guid)
    }

    /// The GUID by which children identify the data.
    pub(super) fn data_write_guid(&self) -> Uuid {
        Uuid::from_bytes_le(self.current.data_write_guid)
    }

    /// Whether there are sequence numbers left for some more updates. Only a forged file gets near the end.
    pub(super) fn has_numbers(&self) -> Result<(), BadField> {
        const LAST: u64 = u64::MAX >> 16 << 16;
        match self.current.sequence_number.get() {
            0..LAST => Ok(()),
            number => {
                let expected = format!("below {LAST} for an image that is written");
                Err(BadField::new("header sequence number", number.to_string(), expected))
            }
        }
    }

    /// Update the header, and flush. The inactive header is written and becomes active; then the other one is written
    /// as well, so that one valid copy remains if the other is lost. The first flush also covers earlier writes.
    pub(super) fn update(&mut self, store: &dyn Store, change: impl FnOnce(&mut Header)) -> io::Result<()> {
        let mut next = self.current;
        change(&mut next);
        store.sync()?;
        for _ in 0..2 {
            let number = self.current.sequence_number.get().checked_add(1);
            let number = number
                .ok_or_else(|| io::Error::other("the header's sequence number has reached its maximum"))?;
            next.sequence_number = number.into();
            next.seal();
            let (slot, at) = match self.slot {
                0 => (1, HEADERS_AT[1]),
                _ => (0, HEADERS_AT[0]),
            };
            store.write_at(next.as_bytes(), at)?;
            store.sync()?;
            (self.current, self.slot) = (next, slot);
        }
        self.other_bad = false;
        Ok(())
    }
}
