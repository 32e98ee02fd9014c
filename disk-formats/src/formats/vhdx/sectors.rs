//! Changes of metadata, gathered in the units that the log moves.

use std::collections::BTreeMap;
use std::io;

use super::log::Update;
use super::spec::LOG_SECTOR;
use crate::host::store::Store;

type Sector = [u8; LOG_SECTOR as usize];

/// Sectors of the file as they are to be.
#[derive(Default)]
pub(super) struct Sectors {
    sectors: BTreeMap<u64, Box<Sector>>,
}

impl Sectors {
    /// Whether nothing changes.
    pub(super) fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// How many sectors change.
    pub(super) fn len(&self) -> usize {
        self.sectors.len()
    }

    /// The sector at `offset`, for changing: as it is in the file where it has not changed so far.
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

    /// Put `bytes` at `offset`.
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

    /// For the log, the last of the file first. The BAT names a chunk's bitmap block behind the chunk's payload blocks, and where
    /// one entry of the log does not hold them all, none of these may come before it.
    pub(super) fn into_updates(self) -> impl Iterator<Item = Update> {
        self.sectors.into_iter().rev().map(|(offset, sector)| Update::Data { offset, sector })
    }
}
