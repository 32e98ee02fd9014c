//! Changing an image's metadata in place, with nobody using it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::alloc::{mark, scan};
use super::bat::Entry;
use super::chain::Opened;
use super::journal::{Journal, Visible};
use super::layout::{ENTRY, Layout};
use super::sectors::Sectors;
use super::space::{MAX_FILE, Space};
use super::spec::MIB;
use crate::OpenError;
use crate::field::BadField;
use crate::store::Store;

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
        if !len.is_multiple_of(MIB) {
            store.set_size(len.next_multiple_of(MIB)).map_err(os)?;
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
        self.journal.commit([sectors])?;
        for (index, entry) in changes {
            match *entry {
                Entry::NOT_PRESENT => drop(self.table.remove(index)),
                entry => drop(self.table.insert(*index, entry)),
            }
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
