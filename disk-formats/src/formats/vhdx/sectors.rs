//! Changes of metadata, collected in log sectors (4 KiB).

use std::collections::BTreeMap;
use std::io;

use super::log::Update;
use super::spec::LOG_SECTOR;
use crate::host::store::Store;

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
