//! Changes of an image's metadata by tools, while no disk is open on it.
//!
//! [`Editor::open`] only reads, so that a tool checks everything before it begins. A tool that needs more of the file first
//! [prepares](Editor::prepare) what nothing refers to, and only then [begins](Editor::begin) the session whose first entry of the
//! log makes it count. After an error [`Editor::roll_back`] leaves the image as it was.

use std::io;
use std::sync::Arc;

use super::bat::Entry;
use super::journal::{Journal, Visible};
use super::layer::read_bat;
use super::layout::{ENTRY, Layout};
use super::opened::Opened;
use super::region::{self, Run};
use super::scan::{mark, scan};
use super::sectors::Sectors;
use super::space::{MAX_FILE, Space};
use super::spec::{LOG_SECTOR, MIB, REGION_TABLES_AT};
use crate::error::OpenError;
use crate::formats::field::BadField;
use crate::formats::guid;
use crate::host::store::Store;

/// BAT entries moved at once.
const PART: u64 = 1 << 17;

/// An image being changed.
pub(super) struct Editor {
    pub(super) store: Arc<dyn Store>,
    pub(super) opened: Opened,
    pub(super) layout: Layout,
    pub(super) journal: Journal,
    /// What is in use.
    pub(super) space: Space,
    /// Entries of the BAT that are not 0, when it was opened.
    pub(super) entries: u64,
    /// Bytes of the file when it was opened.
    len: u64,
    /// Runs inside that file that were free and are taken by [`take_gap`](Self::take_gap).
    gaps: Vec<Run>,
    begun: bool,
}

impl Editor {
    /// Read an image's metadata, its log replayed. Nothing may be damaged. Nothing else is changed.
    pub(super) fn open(store: Arc<dyn Store>) -> Result<Self, OpenError> {
        let path = store.path().to_path_buf();
        let os =
            |source| OpenError::Os { path: path.clone(), action: "cannot read the VHDX's metadata", source };
        let opened = Opened::read(Arc::clone(&store), true).map_err(os)?.map_err(|bad| bad.of(&path))?;
        let len = store.len().map_err(os)?;
        if len > MAX_FILE {
            let bad = BadField::new("file size", format!("{len} bytes"), "at most 128 TiB");
            return Err(bad.of(&path));
        }
        let mut space = Space::new(len.next_multiple_of(MIB));
        for run in opened.fixed_runs() {
            space.mark(run);
        }
        let (mut entries, mut refused) = (0, None);
        scan(&*store, &opened.layout, |index, entry| {
            entries += 1;
            if refused.is_none() {
                refused = mark(&mut space, &opened.layout, index, entry, len);
            }
        })
        .map_err(os)?;
        if let Some(bad) = refused {
            return Err(bad.of(&path));
        }
        let journal = Journal::new(Arc::clone(&store), opened.headers);
        let layout = opened.layout;
        Ok(Self { store, opened, layout, journal, space, entries, len, gaps: Vec::new(), begun: false })
    }

    /// Before changes of what nothing refers to: the file gets a new identity. Its data keep theirs, and there is no log.
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        let file = guid::random()?;
        self.opened.headers.update(&*self.store, |header| header.file_write_guid = file.to_bytes_le())?;
        self.journal = Journal::new(Arc::clone(&self.store), self.opened.headers);
        self.complete_last_block()
    }

    /// Begin a session, before the first change that counts.
    pub(super) fn begin(&mut self, visible: Visible) -> io::Result<()> {
        self.begun = true;
        self.journal.begin(visible)?;
        self.complete_last_block()
    }

    /// Some programs leave the last block short.
    fn complete_last_block(&self) -> io::Result<()> {
        match self.store.len()? < self.space.end() {
            true => self.store.set_size(self.space.end()),
            false => Ok(()),
        }
    }

    /// Space of zeros that was free inside the file, if there is as much in one piece.
    pub(super) fn take_gap(&mut self, len: u64) -> io::Result<Option<Run>> {
        let Some(run) = self.space.take_gap(len) else { return Ok(None) };
        self.gaps.push(run);
        self.store.write_zeroes(run.offset, len, false).map_err(io::Error::other)?;
        Ok(Some(run))
    }

    /// Space of zeros at the end of the file.
    pub(super) fn append(&mut self, len: u64) -> io::Result<Run> {
        let run = self.space.append(len).ok_or(io::ErrorKind::StorageFull)?;
        self.store.reserve(run.offset, run.end())?;
        Ok(run)
    }

    /// Space of zeros.
    pub(super) fn take(&mut self, len: u64) -> io::Result<Run> {
        match self.take_gap(len)? {
            Some(run) => Ok(run),
            None => self.append(len),
        }
    }

    /// An entry of the BAT.
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

    /// Copy the entries of the BAT to another place, which reads as zeros. Nothing refers to it so far.
    pub(super) fn copy_bat(&self, to: Run) -> io::Result<()> {
        let (mut index, end) = (0, self.layout.entries());
        while index < end {
            let count = PART.min(end - index);
            let entries = read_bat(&*self.store, &self.layout, index, count)?;
            let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.0.to_le_bytes()).collect();
            bytes.resize(bytes.len().next_multiple_of(LOG_SECTOR as usize), 0);
            self.store.write_at(&bytes, to.offset + index * ENTRY)?;
            index += count;
        }
        Ok(())
    }

    /// Have both region tables name this place as that of the BAT, in sectors to be committed.
    pub(super) fn name_bat(&self, bat: Run, sectors: &mut Sectors) -> io::Result<()> {
        let table = region::with_bat(&self.opened.regions.table, bat);
        REGION_TABLES_AT.into_iter().try_for_each(|at| sectors.patch(&*self.store, at, &table))
    }

    /// Move the BAT to free space further down, if there is any, and cut off what it does not need.
    pub(super) fn pack_bat(&mut self) -> io::Result<()> {
        let (old, len) = (self.layout.bat, self.layout.bat_bytes());
        let below = self.space.take_below(len, old.offset);
        let new = below.unwrap_or(Run { len, ..old });
        if new == old {
            return Ok(());
        }
        if below.is_some() {
            self.store.write_zeroes(new.offset, new.len, false).map_err(io::Error::other)?;
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

    /// A session with this change alone.
    pub(super) fn commit_alone(mut self, sectors: Sectors, visible: Visible) -> io::Result<()> {
        let begun = self.begin(visible);
        match begun.and_then(|()| self.journal.commit([sectors], self.space.end())) {
            Ok(()) => self.close(),
            Err(error) => Err(self.roll_back(error)),
        }
    }

    /// End the session.
    pub(super) fn close(mut self) -> io::Result<()> {
        self.journal.close()
    }

    /// End the session, and cut the file behind what is in use.
    pub(super) fn close_and_cut(mut self) -> io::Result<u64> {
        // With the log closed nothing claims that the file is longer.
        self.journal.close()?;
        let end = self.space.used_end();
        if end < self.store.len()? {
            self.store.set_size(end)?;
            self.store.sync()?;
        }
        Ok(end)
    }

    /// After `error`, which is passed on: leave the image as it was when it was opened, as far as the host allows. A change that
    /// is in the log and cannot be taken back is completed.
    pub(super) fn roll_back(mut self, error: io::Error) -> io::Error {
        // The first error is reported. What cannot be done here is left to the replay and to `image check --repair`.
        let _ = self.try_roll_back();
        error
    }

    fn try_roll_back(&mut self) -> io::Result<()> {
        if self.begun {
            // The last entry of the log is applied, or does not count any more.
            self.journal.close()?;
            let Ok(now) = Opened::read(Arc::clone(&self.store), false)? else { return Ok(()) };
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
            // Where the host cannot, it keeps the storage until the space is used again.
            let _ = self.store.write_zeroes(gap.offset, gap.len, true);
        }
        if self.space.end() > self.len {
            // Also where the file is as long as before: the host may have reserved storage behind its end.
            // Where nothing refers to what was added, it is cut also after a flush that has failed.
            match self.begun {
                true => self.store.set_size(self.len)?,
                false => self.store.cut_back(self.len)?,
            }
        }
        self.store.sync()
    }
}
