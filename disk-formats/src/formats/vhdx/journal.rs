//! Logged writes to a file: GUIDs, log, and the order in which metadata reach the file. Changes are collected in the sectors of the log (4 KiB).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use uuid::Uuid;

use super::header::Headers;
use super::log::{Log, Sizes, Update};
use super::spec::{LOG_SECTOR, MIB};
use crate::formats::guid;
use crate::host::store::Store;

/// The data write GUID after the changes: whether children must notice them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataGuid {
    /// The content of the disk stays the same, as does its data write GUID.
    Unchanged,
    /// Data, size or metadata change: the data write GUID becomes a random one.
    New,
    /// As `New`, with this data write GUID.
    Known(Uuid),
}

/// The headers and the log of a file that may be written.
pub(super) struct Journal {
    store: Arc<dyn Store>,
    headers: Headers,
    log: Option<Log>,
    /// The changes of the last log entry, until the next `sync` of the journal flushes their in-place writes.
    last_entry: Vec<Update>,
    /// An in-place write of `last_entry` failed: the next sync first repeats all of them.
    unapplied: bool,
}

impl Journal {
    /// For a file whose log is empty.
    pub(super) fn new(store: Arc<dyn Store>, headers: Headers) -> Self {
        Self { store, headers, log: None, last_entry: Vec::new(), unapplied: false }
    }

    /// Start the log, unless it is started already. First sets a new file write GUID, and the data write GUID as `data_guid` says. Then
    /// starts a log with a new GUID. The log's first entry is on stable storage before the header has this GUID.
    pub(super) fn start_log(&mut self, data_guid: DataGuid) -> io::Result<()> {
        if self.log.is_some() {
            return Ok(());
        }
        let (file, log) = (guid::random()?, guid::random()?);
        let data = match data_guid {
            DataGuid::Unchanged => self.headers.data_write_guid(),
            DataGuid::New => guid::random()?,
            DataGuid::Known(guid) => guid,
        };
        self.headers.update(&*self.store, |header| {
            header.file_write_guid = file.to_bytes_le();
            // After a failed attempt the log GUID may be set, and the log is about to be overwritten.
            header.log_guid = [0; 16];
            header.data_write_guid = data.to_bytes_le();
        })?;
        let started = Log::start(&*self.store, self.headers.log_region(), log, sizes(self.store.len()?))?;
        self.headers.update(&*self.store, |header| header.log_guid = log.to_bytes_le())?;
        self.log = Some(started);
        Ok(())
    }

    /// Record the changes of `parts` by one log entry, or by several if they do not fit into one. For each entry: flush all earlier writes;
    /// write the entry to the log, and flush; write its changes in place, without a flush. A crash leaves all changes of an entry or none,
    /// and never those of an entry without those of the entries before it.
    ///
    /// `end` is the end of all space in the file that the changes refer to. The file must be at least as long, and a replay of the log
    /// refuses a file that is shorter.
    ///
    /// # Errors
    /// The host's. After an error some of the changes may take effect.
    pub(super) fn commit(&mut self, parts: impl IntoIterator<Item = Sectors>, end: u64) -> io::Result<()> {
        let updates: Vec<Update> = parts.into_iter().flat_map(Sectors::into_updates).collect();
        let capacity = self.log.as_ref().map_or(1, |log| log.capacity().max(1));
        for part in updates.chunks(capacity) {
            // This covers the payload, the file's size, and the in-place writes of the previous entry: that entry is obsolete
            // afterwards.
            self.sync()?;
            let Some(log) = &mut self.log else { return Err(io::Error::other("the log was not started")) };
            log.append(&*self.store, part, sizes(end))?;
            self.last_entry = part.to_vec();
            self.apply()?;
        }
        Ok(())
    }

    /// Flush all earlier writes, including the in-place writes of the last log entry. Only then may that entry be
    /// overwritten.
    ///
    /// # Errors
    /// The host's. After a failed sync the store refuses all later writes and syncs ([`Store`]), so the log stays as it
    /// is for the next open.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unapplied {
            self.apply()?;
        }
        self.store.sync()?;
        self.last_entry.clear();
        Ok(())
    }

    /// Write the changes of the last log entry in place.
    fn apply(&mut self) -> io::Result<()> {
        self.unapplied = true;
        for update in &self.last_entry {
            if let Update::Data { offset, sector } = update {
                self.store.write_at(&sector[..], *offset)?;
            }
        }
        self.unapplied = false;
        Ok(())
    }

    /// Close the log: flush all changes in place, and set the log GUID to zero.
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

/// The sizes for a log entry: all `len` bytes of the file are flushed and in use.
fn sizes(len: u64) -> Sizes {
    Sizes { flushed: len / MIB * MIB, last: len.next_multiple_of(MIB) }
}

type Sector = [u8; LOG_SECTOR as usize];

/// Changed sectors of the file.
#[derive(Default)]
pub(super) struct Sectors {
    sectors: BTreeMap<u64, Box<Sector>>,
}

impl Sectors {
    /// Whether there are no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Number of changed sectors.
    pub(super) fn len(&self) -> usize {
        self.sectors.len()
    }

    /// The sector at `offset`, to be changed. Reads it from the file if it has not been changed so far.
    pub(super) fn at(&mut self, store: &dyn Store, offset: u64) -> io::Result<&mut Sector> {
        match self.sectors.entry(offset) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let mut sector = Box::new([0; LOG_SECTOR as usize]);
                store.read_at(&mut sector[..], offset)?;
                Ok(entry.insert(sector))
            }
        }
    }

    /// Change the bytes at `offset`.
    pub(super) fn patch(&mut self, store: &dyn Store, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = (at % LOG_SECTOR) as usize;
            let part = rest.len().min(LOG_SECTOR as usize - within);
            let (now, behind) = rest.split_at_checked(part).unwrap_or((rest, &[]));
            let sector = self.at(store, at - within as u64)?;
            if let Some(slot) = sector.get_mut(within..within + part) {
                slot.copy_from_slice(now);
            }
            at += part as u64;
            rest = behind;
        }
        Ok(())
    }

    /// The changes for the log, those with the highest offset first. In the BAT, the entry of a chunk's bitmap block
    /// follows those of its payload blocks. If the changes take several log entries, no payload entry may be logged
    /// before the bitmap block's entry.
    pub(super) fn into_updates(self) -> impl Iterator<Item = Update> {
        self.sectors.into_iter().rev().map(|(offset, sector)| Update::Data { offset, sector })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::io::Errno;

    use super::super::testing::{Shape, new_image};
    use super::super::{header, opened::Opened};
    use super::*;
    use crate::contract::info::SectorSize;
    use crate::host::backing::{Access, BackingFile};
    use crate::host::faults::{Call, Fault, Host};

    /// Offsets of two metadata sectors.
    const PLACES: [u64; 2] = [3 << 20, (3 << 20) + 4096];

    fn open(path: &Path) -> Arc<BackingFile> {
        Arc::new(BackingFile::open(path, Access::default()).expect("a file"))
    }

    fn change(store: &BackingFile, place: u64) -> Sectors {
        let mut sectors = Sectors::default();
        sectors.patch(store, place, &[2, 0, 0, 0, 0, 0, 0, 0]).expect("a sector");
        sectors
    }

    /// A new file with a started log, and the size of the file.
    fn started(host: &Host) -> (Arc<BackingFile>, Journal, u64) {
        let shape = Shape { size: 2 << 30, block_size: 1 << 20, sector: SectorSize::B512, fixed: false };
        let path = host.folder().join("disk.vhdx");
        std::fs::write(&path, new_image(shape, None).bytes()).expect("a file");
        host.settle();
        let store = open(&path);
        let headers = header::read(&*store).expect("headers");
        let mut journal = Journal::new(Arc::<BackingFile>::clone(&store), headers);
        journal.start_log(DataGuid::New).expect("a log");
        let end = Store::len(&*store).expect("a length");
        (store, journal, end)
    }

    /// Start a log on a new file, and commit a first change. Then commit a second change with `fault` at a call, and
    /// repeat it. Returns the results of these two commits.
    fn committed(host: &Host, fault: (usize, Fault)) -> [io::Result<()>; 2] {
        let (store, mut journal, end) = started(host);
        journal.commit([change(&store, PLACES[0])], end).expect("a commit");
        let attempts = [(); 2].map(|()| change(&store, PLACES[1]));
        host.arm(Some(fault));
        attempts.map(|sectors| {
            let done = journal.commit([sectors], end);
            host.disarm();
            done
        })
    }

    /// Which of the two changes are there after a power failure.
    fn after_power_loss(host: &Host) -> [bool; 2] {
        host.power_loss();
        let store = open(&host.folder().join("disk.vhdx"));
        let opened = Opened::read(Arc::<BackingFile>::clone(&store), true).expect("metadata");
        assert_eq!((opened.layout.bat.offset, opened.replayed > 0), (PLACES[0], true));
        PLACES.map(|place| {
            let mut bytes = [0; 8];
            store.read_at(&mut bytes, place).expect("a read");
            bytes[0] == 2
        })
    }

    #[test]
    fn whatever_call_fails_nothing_is_lost_that_was_committed() {
        let errors = [Errno::IO, Errno::NOSPC];
        let faults = errors.map(|errno| [Fault::Fails(errno), Fault::Loses(errno), Fault::LosesLater(errno)]);
        for fault in faults.into_iter().flatten() {
            let mut hits = 0;
            for at in 0..8 {
                let host = Host::new();
                let [second, third] = committed(&host, (at, fault));
                hits += usize::from(host.hit());
                assert_eq!(second.is_err(), host.hit(), "{fault:?} of call {at}");
                let lost = matches!(host.fault(), Some(Fault::Loses(_) | Fault::LosesLater(_)));
                assert_eq!(third.is_err(), lost, "{fault:?} of call {at}");
                let [first, second] = after_power_loss(&host);
                assert!(first && (second || third.is_err()), "{fault:?} of call {at}: {first} {second}");
            }
            assert!(hits > 0, "{fault:?}");
        }
    }

    #[test]
    fn after_a_sync_that_failed_nothing_is_written() {
        let host = Host::new();
        let results = committed(&host, (0, Fault::Loses(Errno::IO)));
        assert!(results.iter().all(Result::is_err));
        // The only call of both attempts is the sync.
        let host = Host::new();
        let (store, mut journal, end) = started(&host);
        let sectors = [(); 2].map(|()| change(&store, PLACES[0]));
        host.arm(Some((0, Fault::Loses(Errno::IO))));
        sectors.into_iter().for_each(|sectors| drop(journal.commit([sectors], end).expect_err("no sync")));
        journal.close().expect_err("no sync");
        assert_eq!(host.disarm(), [Call::Sync]);
    }

    /// The changes of one log entry are in place before the next entry makes it obsolete.
    #[test]
    fn an_entry_of_which_a_write_fails_is_applied_before_the_next() {
        let mut hits = 0;
        for at in 0..8 {
            let host = Host::new();
            let (store, mut journal, end) = started(&host);
            let mut both = change(&store, PLACES[0]);
            both.patch(&*store, PLACES[1], &[2, 0, 0, 0, 0, 0, 0, 0]).expect("a sector");
            let other = change(&store, PLACES[1] + 4096);
            host.arm(Some((at, Fault::Fails(Errno::IO))));
            let failed = journal.commit([both], end).is_err();
            hits += usize::from(failed && host.hit());
            host.disarm();
            if !failed {
                break;
            }
            if host.fault() != Some(Fault::Fails(Errno::IO)) {
                // The flush failed, so nothing is written any more.
                continue;
            }
            journal.commit([other], end).expect("a commit");
            drop((journal, store));
            let [first, second] = after_power_loss(&host);
            assert_eq!(first, second, "call {at}");
        }
        assert!(hits > 3, "{hits}");
    }
}
