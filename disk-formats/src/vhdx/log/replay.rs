//! What a crash has left to do: found, checked as a whole, then done.

use std::io;

use uuid::Uuid;

use super::active::active;
use super::entry::{Parser, Step};
use super::scan::{self, Place, Sectors};
use super::{Region, Update};
use crate::IoError;
use crate::field::BadField;
use crate::store::Store;

/// Bytes at the start of a file that are not changed through the log: the identifier and the headers.
const UNLOGGED: u64 = 192 << 10;
/// What sizes of files are multiples of, in bytes.
const UNIT: u64 = 1 << 20;
/// Bytes that a file can have.
const MAX_FILE: u64 = i64::MAX as u64 / UNIT * UNIT;

/// The entries that a crash has left to apply, oldest first, checked as a whole.
#[derive(Debug)]
pub(in crate::vhdx) struct Replay {
    updates: Vec<Update>,
    entries: usize,
    last_file_offset: u64,
    /// Bytes that the file needs for all of it.
    end: u64,
}

/// Find what the log with this GUID (not nil) has left to apply. Takes memory of the order of what it finds: the log at the
/// most.
///
/// # Errors
/// The outer one is the host's. The inner one is of a corrupt image: no valid entry has the GUID, the file is shorter than
/// it durably was, or a change lies where none may.
pub(in crate::vhdx) fn find(
    store: &dyn Store,
    region: Region,
    guid: Uuid,
) -> io::Result<Result<Replay, BadField>> {
    let run = active(&scan::entries(store, region, guid)?, region.sectors());
    let Some(head) = run.last().map(|entry| entry.summary) else {
        let expected = format!("that of a valid entry in the log at {:#x}, or zero", region.offset);
        return Ok(Err(BadField::new("log GUID", guid.to_string(), expected)));
    };
    let len = store.len()?;
    if len < head.sizes.flushed {
        let value = format!("{} bytes", head.sizes.flushed);
        return Ok(Err(BadField::new("flushed file offset", value, format!("at most the file's {len}"))));
    }
    if head.sizes.last > MAX_FILE {
        let value = format!("{} bytes", head.sizes.last);
        return Ok(Err(BadField::new("last file offset", value, format!("at most {MAX_FILE}"))));
    }
    let Some(tail) = run.iter().position(|entry| entry.start == head.tail) else {
        let value = format!("{:#x}", u64::from(head.tail) * super::SECTOR as u64);
        return Ok(Err(BadField::new("tail of the log", value, "the start of an entry")));
    };
    let updates = read(store, region, guid, &run[tail..])?;
    Ok(check(&updates, region).map(|end| Replay {
        updates,
        entries: run.len() - tail,
        last_file_offset: head.sizes.last,
        end: end.max(head.sizes.last),
    }))
}

/// What a run of entries changes, in order.
fn read(store: &dyn Store, region: Region, guid: Uuid, run: &[Place]) -> io::Result<Vec<Update>> {
    let changed = || io::Error::other("the log was changed while it was read");
    let mut sectors = Sectors::from(store, region, run.first().map_or(0, |entry| entry.start));
    let mut updates = Vec::new();
    for entry in run {
        let mut sector = *sectors.next()?;
        let mut parser = Parser::begin(&sector, region, guid).ok_or_else(changed)?.collecting();
        let summary = loop {
            match parser.feed(&sector) {
                Step::More => sector = *sectors.next()?,
                Step::Whole(summary) => break summary,
                Step::Broken => return Err(changed()),
            }
        };
        if summary != entry.summary {
            return Err(changed());
        }
        updates.extend(parser.into_updates());
    }
    Ok(updates)
}

/// Where the last change ends; an error: one lies where none may.
fn check(updates: &[Update], region: Region) -> Result<u64, BadField> {
    let mut last = 0;
    for (offset, len) in updates.iter().map(Update::range) {
        let bad = |expected: String| {
            BadField::new("file offset of a log descriptor", format!("{offset:#x} for {len} bytes"), expected)
        };
        let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE);
        let end = end.ok_or_else(|| bad(format!("an end at {MAX_FILE:#x} at the most")))?;
        if offset < UNLOGGED {
            return Err(bad(format!("at least {UNLOGGED:#x}, behind the headers")));
        }
        let log_end = region.offset + u64::from(region.length);
        if offset < log_end && end > region.offset {
            return Err(bad(format!("a place outside the log at {:#x} to {log_end:#x}", region.offset)));
        }
        last = last.max(end);
    }
    Ok(last)
}

impl Replay {
    /// The changes, in the order in which they are to be made.
    pub(in crate::vhdx) fn updates(&self) -> impl Iterator<Item = &Update> {
        self.updates.iter()
    }

    /// Bytes that the file has to have at the least.
    pub(in crate::vhdx) fn last_file_offset(&self) -> u64 {
        self.last_file_offset
    }

    /// Entries that the changes are from.
    pub(in crate::vhdx) fn entries(&self) -> usize {
        self.entries
    }

    /// Make the changes, durably, and grow the file to whole MiB, [`last_file_offset`](Self::last_file_offset) at the
    /// least. Whatever cuts this short, doing it again does it all: the log itself is left as it is.
    pub(in crate::vhdx) fn apply(&self, store: &dyn Store) -> io::Result<()> {
        let len = store.len()?;
        let size = len.max(self.end).next_multiple_of(UNIT);
        if size > len {
            store.set_size(size)?;
        }
        for update in &self.updates {
            match update {
                Update::Data { offset, sector } => store.write_at(&sector[..], *offset)?,
                Update::Zero { len: 0, .. } => {}
                Update::Zero { offset, len } => zero(store, *offset, *len)?,
            }
        }
        store.sync()
    }
}

/// Zeros without space behind them: a range may be larger than the host has room for.
fn zero(store: &dyn Store, offset: u64, len: u64) -> io::Result<()> {
    store.write_zeroes(offset, len, true).map_err(|error| match error {
        IoError::Os(errno) => errno.into(),
        other => io::Error::other(other),
    })
}
