//! Changing an image's metadata in place, with nobody using it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::alloc::{mark, scan};
use super::bat::Entry;
use super::journal::{Journal, Visible};
use super::layer::read_bat;
use super::layout::{ENTRY, Layout};
use super::opened::Opened;
use super::region::{self, Run};
use super::sectors::Sectors;
use super::space::{MAX_FILE, Space};
use super::spec::{LOG_SECTOR, MIB, REGION_TABLES_AT};
use crate::OpenError;
use crate::field::BadField;
use crate::store::Store;

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
    /// Entries of the BAT that are not 0, by index.
    pub(super) table: BTreeMap<u64, Entry>,
}

impl Editor {
    /// Read an image's metadata, its log replayed, and begin a session. Nothing may be damaged.
    pub(super) fn open(store: Arc<dyn Store>, visible: Visible) -> Result<Self, OpenError> {
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
        let (mut table, mut refused) = (BTreeMap::new(), None);
        scan(&*store, &opened.layout, |index, entry| {
            if refused.is_none() {
                refused = mark(&mut space, &opened.layout, index, entry, len);
            }
            table.insert(index, entry);
        })
        .map_err(os)?;
        if let Some(bad) = refused {
            return Err(bad.of(&path));
        }
        // Some programs leave the last block short.
        if len < space.end() {
            store.set_size(space.end()).map_err(os)?;
        }
        let mut journal = Journal::new(Arc::clone(&store), opened.headers);
        journal.begin(visible).map_err(os)?;
        Ok(Self { store, layout: opened.layout, opened, journal, space, table })
    }

    /// Change entries of the BAT, durably.
    pub(super) fn set_entries(&mut self, changes: &[(u64, Entry)]) -> io::Result<()> {
        let mut sectors = Sectors::default();
        for (index, entry) in changes {
            sectors.patch(&*self.store, self.layout.bat.offset + index * ENTRY, &entry.0.to_le_bytes())?;
        }
        self.journal.commit([sectors], self.space.end())?;
        for (index, entry) in changes {
            match *entry {
                Entry::NOT_PRESENT => drop(self.table.remove(index)),
                entry => drop(self.table.insert(*index, entry)),
            }
        }
        Ok(())
    }

    /// Copy the entries of the BAT to another place, which reads as zeros. Nobody knows of it so far.
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

    /// Put the BAT where the file has room for it further down, and cut off what it does not need.
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
            Some(_) => self.space.give(old),
            None => self.space.give(Run { offset: new.end(), len: old.len - len }),
        }
        Ok(())
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
}
