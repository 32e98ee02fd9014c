//! Metadata changes by tools, while the image is not open as a disk.
//!
//! [`Editor::open`] changes nothing except for a log replay, so that a tool can check everything first. A tool that
//! needs more space first [prepares](Editor::prepare), and writes structures that nothing refers to yet. Then it
//! [begins](Editor::begin) a log, whose first entry makes the file refer to them. After an error [`Editor::roll_back`]
//! restores the image.

use std::io;
use std::sync::Arc;

use super::journal::{DataGuid, Journal, Sectors};
use super::layer::read_bat;
use super::layout::{ENTRY, Entry, Layout};
use super::opened::Opened;
use super::region::{self, Run};
use super::scan::used_space;
use super::space::Space;
use super::spec::{LOG_SECTOR, REGION_TABLES_AT};
use crate::contract::error::{OpenError, ReadError, or_bad};
use crate::formats::copy::holes::{GRAIN, filled};
use crate::formats::guid;
use crate::host::store::Store;

/// Number of BAT entries that are copied at once.
const PART: u64 = 1 << 17;

/// An image that is being changed.
pub(super) struct Editor {
    pub(super) store: Arc<dyn Store>,
    pub(super) opened: Opened,
    pub(super) layout: Layout,
    pub(super) journal: Journal,
    /// Used space of the file.
    pub(super) space: Space,
    /// Number of BAT entries that were not 0 at open.
    pub(super) entries: u64,
    /// Size of the file in bytes at open.
    len: u64,
    /// Ranges inside the file that [`take_gap`](Self::take_gap) has taken.
    gaps: Vec<Run>,
    started: bool,
}

impl Editor {
    /// Read an image's metadata, replay its log, and refuse a damaged image. Changes nothing else.
    pub(super) fn open(store: Arc<dyn Store>) -> Result<Self, OpenError> {
        let path = store.path().to_path_buf();
        let failed = |error: ReadError| error.of(&path, "cannot read the VHDX's metadata");
        let opened = Opened::read(Arc::clone(&store), true).map_err(failed)?;
        let len = store.len().map_err(|error| failed(error.into()))?;
        let (space, entries) = used_space(&opened, len, "at most 128 TiB").map_err(failed)?;
        let journal = Journal::new(Arc::clone(&store), opened.headers);
        let layout = opened.layout;
        Ok(Self { store, opened, layout, journal, space, entries, len, gaps: Vec::new(), started: false })
    }

    /// Call this before writing structures that nothing refers to yet. Sets a new file write GUID. The data write GUID
    /// stays, and there is no log yet.
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        let file = guid::random()?;
        self.opened.headers.update(&*self.store, |header| header.file_write_guid = file.to_bytes_le())?;
        self.journal = Journal::new(Arc::clone(&self.store), self.opened.headers);
        self.complete_last_block()
    }

    /// Start the log, before the first change that takes effect.
    pub(super) fn start_log(&mut self, data_guid: DataGuid) -> io::Result<()> {
        self.started = true;
        self.journal.start_log(data_guid)?;
        self.complete_last_block()
    }

    /// Extend the file to whole blocks, because some programs leave the last block truncated.
    fn complete_last_block(&self) -> io::Result<()> {
        match self.store.len()? < self.space.end() {
            true => self.store.set_size(self.space.end()),
            false => Ok(()),
        }
    }

    /// Take free space inside the file, zeroed; `None` if there is no gap of this size.
    pub(super) fn take_gap(&mut self, len: u64) -> io::Result<Option<Run>> {
        let Some(run) = self.space.take_gap(len) else { return Ok(None) };
        self.gaps.push(run);
        self.store.write_zeroes(run.offset, len, false).map_err(io::Error::other)?;
        Ok(Some(run))
    }

    /// Take zeroed space at the end of the file.
    pub(super) fn append(&mut self, len: u64) -> io::Result<Run> {
        let run = self.space.append(len).ok_or(io::ErrorKind::StorageFull)?;
        self.store.reserve(run.offset, run.end())?;
        Ok(run)
    }

    /// Take zeroed space in a gap, or else at the end of the file.
    pub(super) fn take(&mut self, len: u64) -> io::Result<Run> {
        match self.take_gap(len)? {
            Some(run) => Ok(run),
            None => self.append(len),
        }
    }

    /// Read an entry of the BAT.
    pub(super) fn entry(&self, index: u64) -> io::Result<Entry> {
        Ok(read_bat(&*self.store, &self.layout, index, 1)?.first().copied().unwrap_or_default())
    }

    /// Change entries of the BAT, and commit.
    pub(super) fn set_entries(&mut self, changes: &[(u64, Entry)]) -> io::Result<()> {
        let mut sectors = Sectors::default();
        for (index, entry) in changes {
            sectors.patch(&*self.store, self.layout.bat.offset + index * ENTRY, &entry.0.to_le_bytes())?;
        }
        self.journal.commit([sectors], self.space.end())
    }

    /// Copy the BAT to other space, which reads as zeros and which nothing refers to yet. Its holes stay holes.
    pub(super) fn copy_bat(&self, to: Run) -> io::Result<()> {
        let (mut index, end) = (0, self.layout.entries());
        while index < end {
            let count = PART.min(end - index);
            let entries = read_bat(&*self.store, &self.layout, index, count)?;
            let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.0.to_le_bytes()).collect();
            bytes.resize(bytes.len().next_multiple_of(LOG_SECTOR as usize), 0);
            for part in filled(&bytes, GRAIN as usize) {
                let at = to.offset + index * ENTRY + part.start as u64;
                self.store.write_at(bytes.get(part).unwrap_or_default(), at)?;
            }
            index += count;
        }
        Ok(())
    }

    /// Add to `sectors` the change of both region tables that moves the BAT to `bat`.
    pub(super) fn name_bat(&self, bat: Run, sectors: &mut Sectors) -> io::Result<()> {
        let table = region::with_bat(&self.opened.regions.table, bat);
        REGION_TABLES_AT.into_iter().try_for_each(|at| sectors.patch(&*self.store, at, &table))
    }

    /// Move the BAT to free space at a lower offset, if there is any, and free the part that it does not need.
    pub(super) fn pack_bat(&mut self) -> io::Result<()> {
        let (old, len) = (self.layout.bat, self.layout.bat_bytes());
        let below = self.space.take_below(len, old.offset);
        let new = below.unwrap_or(Run { len, ..old });
        if new == old {
            return Ok(());
        }
        if below.is_some() {
            self.store.write_zeroes(new.offset, new.len, true).map_err(io::Error::other)?;
            self.copy_bat(new)?;
        }
        let mut sectors = Sectors::default();
        self.name_bat(new, &mut sectors)?;
        self.journal.commit([sectors], self.space.end())?;
        self.layout.bat = new;
        match below {
            Some(_) => self.space.free(old),
            None => self.space.free(Run { offset: new.end(), len: old.len - len }),
        }
        Ok(())
    }

    /// Whether zeros in a block may become holes: the space of a fixed disk stays allocated.
    pub(super) fn may_unmap(&self) -> bool {
        !self.opened.metadata.parameters.leave_allocated
    }

    /// Deallocate the free space inside the file.
    pub(super) fn unmap_gaps(&self) {
        for gap in self.space.gaps() {
            if self.store.next_data(gap.offset).is_ok_and(|data| data < gap.end()) {
                // If the host cannot deallocate the gap, it stays allocated until the space is reused.
                let _ = self.store.write_zeroes(gap.offset, gap.len, true);
            }
        }
    }

    /// Commit a single change, and close the log.
    pub(super) fn commit_alone(mut self, sectors: Sectors, data_guid: DataGuid) -> io::Result<()> {
        let started = self.start_log(data_guid);
        match started.and_then(|()| self.journal.commit([sectors], self.space.end())) {
            Ok(()) => self.close(),
            Err(error) => Err(self.roll_back(error)),
        }
    }

    /// Close the log.
    pub(super) fn close(mut self) -> io::Result<()> {
        self.journal.close()
    }

    /// Close the log, and truncate the file after the last used space. Returns the file's size.
    pub(super) fn close_and_cut(mut self) -> io::Result<u64> {
        // With the log closed, no log entry requires a longer file.
        self.journal.close()?;
        let end = self.space.used_end();
        if end < self.store.len()? {
            self.store.set_size(end)?;
            self.store.sync()?;
        }
        Ok(end)
    }

    /// Restore the image as it was at open, as far as the host allows. A change that is in the log and cannot be undone
    /// is completed. Returns `error`.
    pub(super) fn roll_back(mut self, error: io::Error) -> io::Error {
        // Errors here are ignored: the log replay or `image check --repair` completes the change.
        let _ = self.try_roll_back();
        error
    }

    fn try_roll_back(&mut self) -> io::Result<()> {
        if self.started {
            // After this, the last log entry is either applied or no longer valid.
            self.journal.close()?;
            let Ok(now) = or_bad(Opened::read(Arc::clone(&self.store), false))? else { return Ok(()) };
            if now.layout != self.opened.layout {
                return Ok(());
            }
            let (mut headers, known) = (now.headers, self.opened.headers.data_write_guid());
            if headers.data_write_guid() != known || !headers.log_guid().is_nil() {
                headers.update(&*self.store, |header| {
                    header.data_write_guid = known.to_bytes_le();
                    header.log_guid = [0; 16];
                })?;
            }
        }
        for gap in std::mem::take(&mut self.gaps) {
            // If the host cannot deallocate the gap, it stays allocated until the space is reused.
            let _ = self.store.write_zeroes(gap.offset, gap.len, true);
        }
        if self.space.end() > self.len {
            // Truncate even if the size is unchanged: the host may have allocated space beyond the end. If no log was
            // started, nothing refers to the added space, so it is cut even after a failed flush.
            match self.started {
                true => self.store.set_size(self.len)?,
                false => self.store.undo_growth(self.len)?,
            }
        }
        self.store.sync()
    }
}
