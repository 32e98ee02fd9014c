//! A file with its log applied in memory, for read-only disks.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::log::{Change, Replay};
use super::region::Run;
use super::spec::LOG_SECTOR;
use crate::contract::error::{BadField, IoError, ReadError};
use crate::host::store::Store;

/// Approximate memory in bytes for a changed sector, and for a range of zeros.
const SECTOR_COST: u64 = LOG_SECTOR + 64;
const RUN_COST: u64 = 64;

/// The file as it would be after a replay.
pub(super) struct Overlay {
    below: Arc<dyn Store>,
    /// Ranges of zeros. The changed sectors take precedence.
    zeros: Zeros,
    sectors: BTreeMap<u64, Box<[u8; LOG_SECTOR as usize]>>,
    len: u64,
    #[cfg(test)]
    steps: std::sync::atomic::AtomicU64,
}

impl Overlay {
    /// The file `below` after `replay`, which was found in it. Refused if the changes take more than `most` bytes of
    /// memory.
    pub(super) fn new(below: Arc<dyn Store>, replay: &Replay, most: u64) -> Result<Self, ReadError> {
        let len = below.len()?.max(replay.end());
        let (mut zeros, mut sectors) = (Zeros::default(), BTreeMap::new());
        let mut too_much = false;
        let visited = replay.visit(&*below, |change| {
            match change {
                Change::Data { offset, sector } => drop(sectors.insert(offset, Box::new(*sector))),
                Change::Zero { offset, len } => {
                    while let Some((at, _)) = sectors.range(offset..offset + len).next() {
                        let at = *at;
                        sectors.remove(&at);
                    }
                    zeros.add(offset, len);
                }
            }
            too_much = cost(&zeros, sectors.len()) > most;
            if too_much { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        });
        if too_much {
            let value =
                format!("{} entries, whose changes take more than {most} bytes of memory", replay.entries());
            let expected = "fewer changes in an image that is opened read-only: open it for writing, so that the log is replayed (`image check --repair`)";
            return Err(BadField::new("log", value, expected).into());
        }
        #[cfg(test)]
        let steps = std::sync::atomic::AtomicU64::new(0);
        visited?;
        Ok(Self {
            below,
            zeros,
            sectors,
            len,
            #[cfg(test)]
            steps,
        })
    }

    /// Memory use in bytes.
    pub(super) fn memory(&self) -> u64 {
        cost(&self.zeros, self.sectors.len())
    }

    /// Whether the log changes a range of the file.
    pub(super) fn touches(&self, run: Run) -> bool {
        self.step();
        self.zeros.inside(run, || self.step()).next().is_some()
            || self.sectors.range(run.offset.saturating_sub(LOG_SECTOR - 1)..run.end()).next().is_some()
    }

    /// Counts the examined parts of the log, for tests.
    fn step(&self) {
        #[cfg(test)]
        self.steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn steps(&self) -> u64 {
        self.steps.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn cost(zeros: &Zeros, sectors: usize) -> u64 {
    zeros.0.len() as u64 * RUN_COST + sectors as u64 * SECTOR_COST
}

/// Ranges that neither overlap nor touch: their ends by their starts.
#[derive(Default)]
struct Zeros(BTreeMap<u64, u64>);

impl Zeros {
    /// Add a range, merged with the ranges that it overlaps or touches.
    fn add(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset + len);
        while let Some((first, last)) = self.0.range(..=end).next_back()
            && *last >= start
        {
            let first = *first;
            end = end.max(*last);
            start = start.min(first);
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }

    /// The zeros of this range, from its end down. `looked` is called for each examined range.
    fn inside(&self, run: Run, looked: impl Fn()) -> impl Iterator<Item = Run> {
        let below = self.0.range(..run.end()).rev().inspect(move |_| looked());
        let below = below.take_while(move |(_, end)| **end > run.offset);
        below.map(move |(start, end)| {
            let start = run.offset.max(*start);
            Run { offset: start, len: run.end().min(*end) - start }
        })
    }
}

fn read_only() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

/// Copy the overlap of `from` (at offset `at`) and `data` (at `offset`) to `data`.
fn lay_over(data: &mut [u8], offset: u64, at: u64, from: &[u8]) {
    let start = offset.max(at);
    let end = (offset + data.len() as u64).min(at + from.len() as u64);
    if start >= end {
        return;
    }
    let target = data.get_mut((start - offset) as usize..(end - offset) as usize);
    if let (Some(target), Some(part)) = (target, from.get((start - at) as usize..(end - at) as usize)) {
        target.copy_from_slice(part);
    }
}

impl Store for Overlay {
    fn path(&self) -> &Path {
        self.below.path()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let there = self.below.len()?.saturating_sub(offset).min(data.len() as u64) as usize;
        let (inside, behind) = data.split_at_mut(there);
        if !inside.is_empty() {
            self.below.read_at(inside, offset)?;
        }
        behind.fill(0);
        for zero in self.zeros.inside(Run { offset, len: data.len() as u64 }, || self.step()) {
            let from = (zero.offset - offset) as usize;
            if let Some(part) = data.get_mut(from..from + zero.len as usize) {
                part.fill(0);
            }
        }
        for (at, sector) in self.sectors.range(offset.saturating_sub(LOG_SECTOR - 1)..end) {
            self.step();
            lay_over(data, offset, *at, &sector[..]);
        }
        Ok(())
    }

    fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn set_size(&self, _size: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn reserve(&self, _start: u64, _end: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
        Err(IoError::ReadOnly)
    }

    fn clone_range(&self, _source: &dyn Store, _from: u64, _to: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
