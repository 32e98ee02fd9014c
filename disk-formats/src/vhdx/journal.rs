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
}

impl Journal {
    /// Of a file whose log has nothing to replay.
    pub(super) fn new(store: Arc<dyn Store>, headers: Headers) -> Self {
        Self { store, headers, log: None }
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
        let Some(log) = &mut self.log else { return Err(io::Error::other("no session was begun")) };
        let capacity = log.capacity().max(1);
        for part in updates.chunks(capacity) {
            // The payload, the file's size, and what the entry before has changed in place: that entry is not needed any more.
            self.store.sync()?;
            log.append(&*self.store, part, sizes(end))?;
            for update in part {
                if let Update::Data { offset, sector } = update {
                    self.store.write_at(&sector[..], *offset)?;
                }
            }
        }
        Ok(())
    }

    /// End the session: everything in its place, nothing in the log.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        self.headers.update(&*self.store, |header| header.log_guid = [0; 16])?;
        self.log = None;
        Ok(())
    }
}

/// A file of `len` bytes, durable, that has everything.
fn sizes(len: u64) -> Sizes {
    Sizes { flushed: len / MIB * MIB, last: len.next_multiple_of(MIB) }
}
