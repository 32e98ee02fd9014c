//! Replay: finds the log entries to apply after a crash (the active sequence, \[MS-VHDX\] 2.3.2), checks all of them, then applies them.

use std::io;

use uuid::Uuid;

use super::changes::{Change, Changes};
use super::scan::{self, Place};
use super::{MAX_FILE, Region};
use crate::contract::error::{BadField, IoError, ReadError, or_bad};
use crate::host::store::Store;

/// File sizes are multiples of this, in bytes.
const UNIT: u64 = 1 << 20;

/// The entries to apply after a crash, oldest first, checked as a whole. Their changes are read from the log when
/// needed, and checked again then.
#[derive(Debug)]
pub(in crate::formats::vhdx) struct Replay {
    region: Region,
    entries: Vec<Place>,
    /// File size in bytes that the changes need.
    end: u64,
}

/// Find the entries to apply in the log with this GUID (not nil). The result takes 40 bytes for each entry, at most 10 MiB.
///
/// # Errors
/// The host's; [`ReadError::Bad`] for a corrupt image: no valid entry has the GUID, the file is shorter than when the entry
/// was written or would become too long, or a change is in a forbidden range.
pub(in crate::formats::vhdx) fn find(
    store: &dyn Store,
    region: Region,
    guid: Uuid,
) -> Result<Replay, ReadError> {
    let mut run = active(&scan::entries(store, region, guid)?, region.sectors());
    let Some(head) = run.last().map(|entry| entry.summary) else {
        let expected = format!("that of a valid entry in the log at {:#x}, or zero", region.offset);
        return Err(BadField::new("log GUID", guid.to_string(), expected).into());
    };
    let len = store.len()?;
    if len < head.sizes.flushed {
        let value = format!("{} bytes", head.sizes.flushed);
        return Err(BadField::new("flushed file offset", value, format!("at most the file's {len}")).into());
    }
    if head.sizes.last > MAX_FILE {
        let value = format!("{} bytes", head.sizes.last);
        return Err(BadField::new("last file offset", value, format!("at most {MAX_FILE}")).into());
    }
    let Some(tail) = run.iter().position(|entry| entry.start == head.tail) else {
        let value = format!("{:#x}", u64::from(head.tail) * super::SECTOR as u64);
        return Err(BadField::new("tail of the log", value, "the start of an entry").into());
    };
    run.drain(..tail);
    let mut replay = Replay { region, entries: run, end: head.sizes.last };
    let mut end = replay.end;
    replay.visit(store, |change| {
        end = end.max(match change {
            Change::Data { offset, sector } => offset + sector.len() as u64,
            Change::Zero { offset, len } => offset + len,
        });
        Ok(())
    })?;
    replay.end = end;
    Ok(replay)
}

impl Replay {
    /// Call `visit` for the changes in the order in which they must be applied, until it fails.
    ///
    /// # Errors
    /// The host's, or that of `visit`; [`ReadError::Bad`] means that the log was changed after it was found.
    pub(in crate::formats::vhdx) fn visit(
        &self,
        store: &dyn Store,
        mut visit: impl FnMut(Change<'_>) -> io::Result<()>,
    ) -> Result<(), ReadError> {
        let mut changes = Changes::new(store, self.region, &self.entries);
        while let Some(change) = changes.next()? {
            visit(change)?;
        }
        Ok(())
    }

    /// Minimum size of the file in bytes.
    pub(in crate::formats::vhdx) fn end(&self) -> u64 {
        self.end
    }

    /// Number of entries.
    pub(in crate::formats::vhdx) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Apply the changes, flush, and extend the file to whole MiB and at least [`end`](Self::end). If this is
    /// interrupted, another replay applies everything again: the log itself is not changed.
    pub(in crate::formats::vhdx) fn apply(&self, store: &dyn Store) -> io::Result<()> {
        let len = store.len()?;
        let size = len.max(self.end).next_multiple_of(UNIT);
        if size > len {
            store.set_size(size)?;
        }
        let applied = or_bad(self.visit(store, |change| match change {
            Change::Data { offset, sector } => store.write_at(&sector[..], offset),
            Change::Zero { len: 0, .. } => Ok(()),
            Change::Zero { offset, len } => zero(store, offset, len),
        }))?;
        applied.map_err(|bad| io::Error::other(format!("{} is {}", bad.field, bad.value)))?;
        store.sync()
    }
}

/// Zero a range by deallocating it: the range may be larger than the free space of the host.
fn zero(store: &dyn Store, offset: u64, len: u64) -> io::Result<()> {
    store.write_zeroes(offset, len, true).map_err(|error| match error {
        IoError::Os(errno) => errno.into(),
        other => io::Error::other(other),
    })
}

/// The active sequence, oldest entry first, of all valid entries of a ring of `count` sectors. `entries` are in the
/// order of their start. The first entry of the result may be older than the tail of the last one. Empty if there is no
/// active sequence.
///
/// The specification tries every sector as the start of a sequence. Among the sequences that contain the tail of their
/// last entry, it selects the one with the highest last sequence number. If a sequence does not contain the tail,
/// neither does a part of it with the same end. So it is enough to try each entry once.
pub(super) fn active(entries: &[Place], count: u32) -> Vec<Place> {
    let (mut best, mut best_sequence) = (Vec::new(), 0);
    let mut at = 0;
    while at < entries.len() {
        let run = run(entries, at, count);
        let length = run.len();
        if let (Some(first), Some(head)) = (run.first(), run.last()) {
            let sectors: u64 = run.iter().map(|entry| u64::from(entry.summary.sectors)).sum();
            let into = u64::from((head.summary.tail + count - first.start) % count);
            if into < sectors && head.summary.sequence > best_sequence {
                best_sequence = head.summary.sequence;
                best = run;
            }
        }
        at += length;
    }
    best
}

/// The longest sequence from `entries[at]` on: each entry starts where the previous one ends, and has the next sequence
/// number. The loop ends because the numbers increase.
fn run(entries: &[Place], at: usize, count: u32) -> Vec<Place> {
    let mut run: Vec<Place> = Vec::new();
    for entry in entries[at..].iter().chain(entries) {
        let follows = run.last().is_none_or(|last| {
            (last.start + last.summary.sectors) % count == entry.start
                && last.summary.sequence.checked_add(1) == Some(entry.summary.sequence)
        });
        if !follows {
            break;
        }
        run.push(*entry);
    }
    run
}
