//! A file with its log applied in memory: for disks that may not be written.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::log::{Replay, Update};
use super::region::Run;
use super::spec::LOG_SECTOR;
use crate::IoError;
use crate::store::Store;

/// What the file would be after a replay.
pub(super) struct Overlay {
    below: Arc<dyn Store>,
    /// Ranges of zeros, and over them sectors.
    zeros: Vec<Run>,
    sectors: BTreeMap<u64, Box<[u8; LOG_SECTOR as usize]>>,
    len: u64,
}

impl Overlay {
    pub(super) fn new(below: Arc<dyn Store>, replay: &Replay) -> io::Result<Self> {
        let mut zeros = Vec::new();
        let mut sectors = BTreeMap::new();
        let mut len = below.len()?.max(replay.last_file_offset());
        for update in replay.updates() {
            match update {
                Update::Data { offset, sector } => {
                    sectors.insert(*offset, sector.clone());
                    len = len.max(offset + LOG_SECTOR);
                }
                Update::Zero { offset, len: count } => {
                    let inside: Vec<u64> =
                        sectors.range(*offset..offset + count).map(|(at, _)| *at).collect();
                    inside.iter().for_each(|at| drop(sectors.remove(at)));
                    zeros.push(Run { offset: *offset, len: *count });
                    len = len.max(offset + count);
                }
            }
        }
        Ok(Self { below, zeros, sectors, len })
    }

    /// Whether the log writes into a run of the file.
    pub(super) fn touches(&self, run: Run) -> bool {
        self.zeros.iter().any(|zero| zero.offset < run.end() && run.offset < zero.end())
            || self.sectors.range(run.offset.saturating_sub(LOG_SECTOR - 1)..run.end()).next().is_some()
    }
}

fn read_only() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

/// Put the part of `from`, which lies at `at`, that is in `data`, which lies at `offset`, there.
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
        for zero in &self.zeros {
            let (from, to) = (zero.offset.max(offset), zero.end().min(end));
            if from < to
                && let Some(part) = data.get_mut((from - offset) as usize..(to - offset) as usize)
            {
                part.fill(0);
            }
        }
        for (at, sector) in self.sectors.range(offset.saturating_sub(LOG_SECTOR - 1)..end) {
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

    fn share(&self, _source: &dyn Store, _from: u64, _to: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
