//! A session that writes: identities, log, and the order in which metadata reach the file.

use std::io;
use std::sync::Arc;

use uuid::Uuid;

use super::header::Headers;
use super::log::{Log, Sizes, Update};
use super::sectors::Sectors;
use super::spec::MIB;
use crate::guid;
use crate::store::Store;

/// Whether children of the disk would notice what a session changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visible {
    /// The disk reads the same.
    Unchanged,
    /// Data, size or metadata change: the data get a new identity.
    New,
    /// This one.
    Known(Uuid),
}

/// The headers and the log of a file that is, or may be, written.
pub(super) struct Journal {
    store: Arc<dyn Store>,
    headers: Headers,
    log: Option<Log>,
    /// What the last entry of the log has changed in place, until that is durable.
    applied: Vec<Update>,
    /// The host may have forgotten it: a write or a sync has failed since.
    doubtful: bool,
}

impl Journal {
    /// Of a file whose log has nothing to replay.
    pub(super) fn new(store: Arc<dyn Store>, headers: Headers) -> Self {
        Self { store, headers, log: None, applied: Vec::new(), doubtful: false }
    }

    /// Begin to write, where that was not done: new identities of the file, and of its data where they change, before anything
    /// else changes; then a log with a new identity, whose first entry is durable before the header names it.
    pub(super) fn begin(&mut self, visible: Visible) -> io::Result<()> {
        if self.log.is_some() {
            return Ok(());
        }
        let (file, log) = (guid::random()?, guid::random()?);
        let data = match visible {
            Visible::Unchanged => self.headers.data_write_guid(),
            Visible::New => guid::random()?,
            Visible::Known(guid) => guid,
        };
        self.headers.update(&*self.store, |header| {
            header.file_write_guid = file.to_bytes_le();
            // Of an attempt that has failed: what it names is about to be overwritten.
            header.log_guid = [0; 16];
            header.data_write_guid = data.to_bytes_le();
        })?;
        let started = Log::start(&*self.store, self.headers.log_region(), log, sizes(self.store.len()?))?;
        self.headers.update(&*self.store, |header| header.log_guid = log.to_bytes_le())?;
        self.log = Some(started);
        Ok(())
    }

    /// Make everything written so far durable, then these changes, those of an earlier part not after those of a later one.
    /// What fits into one entry of the log happens as a whole. The changes are in the file afterwards, and durable in the log.
    /// `end` is behind everything that they mean, and the file is as long, now and later.
    ///
    /// # Errors
    /// The host's; after one, some of the changes may come to be.
    pub(super) fn commit(&mut self, parts: impl IntoIterator<Item = Sectors>, end: u64) -> io::Result<()> {
        let updates: Vec<Update> = parts.into_iter().flat_map(Sectors::into_updates).collect();
        let capacity = self.log.as_ref().map_or(1, |log| log.capacity().max(1));
        for part in updates.chunks(capacity) {
            // The payload, the file's size, and what the entry before has changed in place: that entry is not needed any more.
            self.sync()?;
            let Some(log) = &mut self.log else { return Err(io::Error::other("no session was begun")) };
            log.append(&*self.store, part, sizes(end))?;
            self.applied = part.to_vec();
            self.apply()?;
        }
        Ok(())
    }

    /// Make everything written so far durable. After a sync that has failed the host may take for durable what is not: what the
    /// last entry of the log has changed is written again, before that entry may go.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.doubtful {
            self.apply()?;
        }
        self.doubtful = true;
        self.store.sync()?;
        self.doubtful = false;
        self.applied.clear();
        Ok(())
    }

    /// Write what the last entry of the log has to its place.
    fn apply(&mut self) -> io::Result<()> {
        self.doubtful = true;
        for update in &self.applied {
            if let Update::Data { offset, sector } = update {
                self.store.write_at(&sector[..], *offset)?;
            }
        }
        self.doubtful = false;
        Ok(())
    }

    /// End the session: everything in its place, nothing in the log.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        self.sync()?;
        self.headers.update(&*self.store, |header| header.log_guid = [0; 16])?;
        self.log = None;
        Ok(())
    }
}

/// A file of `len` bytes, durable, that has everything.
fn sizes(len: u64) -> Sizes {
    Sizes { flushed: len / MIB * MIB, last: len.next_multiple_of(MIB) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::io::Errno;

    use super::super::testing::{Shape, new_image};
    use super::super::{header, opened::Opened};
    use super::*;
    use crate::crash::CrashFile;
    use crate::{IoError, SectorSize};

    #[allow(clippy::disallowed_types, reason = "a test's file")]
    type Mutex<T> = std::sync::Mutex<T>;

    /// A host that takes for written what it could not write, as Linux does: a failed sync is told of once.
    struct Forgetful {
        cached: CrashFile,
        durable: CrashFile,
        dirty: Mutex<Vec<(u64, Vec<u8>)>>,
        fails: AtomicBool,
    }

    impl Store for Forgetful {
        fn path(&self) -> &Path {
            Path::new("forgetful")
        }

        fn len(&self) -> io::Result<u64> {
            self.cached.len()
        }

        fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
            self.cached.read_at(data, offset)
        }

        fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
            self.dirty.lock().expect("a lock").push((offset, data.to_vec()));
            self.cached.write_at(data, offset)
        }

        fn set_size(&self, size: u64) -> io::Result<()> {
            self.cached.set_size(size).and_then(|()| self.durable.set_size(size))
        }

        fn reserve(&self, _start: u64, end: u64) -> io::Result<()> {
            self.set_size(end)
        }

        fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
            Err(IoError::Unsupported)
        }

        fn share(&self, _source: &dyn Store, _from: u64, _to: u64, _len: u64) -> Result<(), Errno> {
            Err(Errno::OPNOTSUPP)
        }

        fn sync(&self) -> io::Result<()> {
            let dirty = std::mem::take(&mut *self.dirty.lock().expect("a lock"));
            if self.fails.swap(false, Ordering::Relaxed) {
                return Err(Errno::IO.into());
            }
            dirty.into_iter().try_for_each(|(offset, data)| self.durable.write_at(&data, offset))
        }
    }

    #[test]
    fn a_failed_sync_loses_nothing_that_was_committed() {
        let shape = Shape { size: 2 << 30, block_size: 1 << 20, sector: SectorSize::B512, fixed: false };
        let image = new_image(shape, None);
        let [cached, durable] = [&image; 2].map(|image| CrashFile::of(image.clone()));
        let store = Arc::new(Forgetful {
            cached,
            durable: durable.clone(),
            dirty: Mutex::default(),
            fails: AtomicBool::new(false),
        });
        let end = image.len();
        let headers = header::read(&*store).expect("a file").expect("headers");
        let mut journal = Journal::new(Arc::<Forgetful>::clone(&store), headers);
        journal.begin(Visible::New).expect("a session");
        // In sectors of their own.
        let places = [3u64 << 20, (3 << 20) + 4096];
        let change = |place: u64| {
            let mut sectors = Sectors::default();
            sectors.patch(&*store, place, &[2, 0, 0, 0, 0, 0, 0, 0]).expect("a sector");
            sectors
        };
        journal.commit([change(places[0])], end).expect("a commit");
        store.fails.store(true, Ordering::Relaxed);
        journal.commit([change(places[1])], end).expect_err("no sync");
        journal.commit([change(places[1])], end).expect("a commit");
        // The power fails.
        let opened = Opened::read(Arc::new(durable.clone()), true).expect("a file").expect("metadata");
        assert_eq!((opened.layout.bat.offset, opened.replayed), (places[0], 1));
        for place in places {
            let mut bytes = [0; 8];
            durable.read_at(&mut bytes, place).expect("a read");
            assert_eq!(bytes[0], 2, "{place:#x}");
        }
    }
}
