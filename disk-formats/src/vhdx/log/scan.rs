//! All valid entries of the ring, in one pass.

use std::io;

use uuid::Uuid;

use super::Region;
use super::entry::{Parser, Sector, Step, Summary};
use super::spec::SECTOR;
use crate::store::Store;

/// Bytes read at once.
const PIECE: usize = 256 << 10;

/// A valid entry, by its first sector in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u32,
    pub(super) summary: Summary,
}

/// The ring's sectors from one on, round and round.
pub(super) struct Sectors<'a> {
    store: &'a dyn Store,
    region: Region,
    /// Sector that comes next.
    next: u64,
    /// What was read, and how many bytes of it were given out.
    piece: Vec<u8>,
    given: usize,
}

impl<'a> Sectors<'a> {
    pub(super) fn from(store: &'a dyn Store, region: Region, start: u32) -> Self {
        Self { store, region, next: start.into(), piece: Vec::new(), given: 0 }
    }

    pub(super) fn next(&mut self) -> io::Result<&Sector> {
        if self.given == self.piece.len() {
            let at = self.region.position(self.next);
            let to_end = self.region.offset + u64::from(self.region.length) - at;
            self.piece.resize(to_end.min(PIECE as u64) as usize, 0);
            self.given = 0;
            self.store.read_at(&mut self.piece, at)?;
        }
        let sector = self.piece[self.given..].first_chunk::<SECTOR>();
        self.given += SECTOR;
        self.next += 1;
        sector.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// The valid entries with this GUID, by their start. They do not overlap: see [`Parser`].
///
/// Reads the ring at the most twice, whatever it holds.
pub(super) fn entries(store: &dyn Store, region: Region, guid: Uuid) -> io::Result<Vec<Place>> {
    let count = region.sectors();
    let mut sectors = Sectors::from(store, region, 0);
    let mut open: Option<(u32, Parser)> = None;
    let mut found = Vec::new();
    let mut at = 0;
    // An entry that begins in the last sectors may end in the first.
    while at < count || open.is_some() {
        let sector = sectors.next()?;
        let mut step = match &mut open {
            Some((_, parser)) => parser.feed(sector),
            None => Step::Broken,
        };
        if step == Step::Broken && at < count {
            open = Parser::begin(sector, region, guid).map(|parser| (at, parser));
            step = open.as_mut().map_or(Step::Broken, |(_, parser)| parser.feed(sector));
        }
        if let (Step::Whole(summary), Some((start, _))) = (step, &open) {
            found.push(Place { start: *start, summary });
        }
        if step != Step::More {
            open = None;
        }
        at += 1;
    }
    Ok(found)
}
