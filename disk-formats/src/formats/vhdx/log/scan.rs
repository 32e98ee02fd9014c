//! Scans the ring for all valid entries.

use std::io;

use uuid::Uuid;

use super::Region;
use super::entry::{Parser, Sector, Step, Summary};
use super::spec::SECTOR;
use crate::host::store::Store;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// A valid entry, and its first sector in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u32,
    pub(super) summary: Summary,
}

/// Reads the ring's sectors from a given one on, around the ring.
pub(super) struct Sectors<'a> {
    store: &'a dyn Store,
    region: Region,
    /// The next sector, counted around the ring.
    next: u64,
    /// Buffered data, and the number of their first sector.
    piece: Vec<u8>,
    piece_at: u64,
}

impl<'a> Sectors<'a> {
    pub(super) fn from(store: &'a dyn Store, region: Region, start: u32) -> Self {
        Self { store, region, next: start.into(), piece: Vec::new(), piece_at: start.into() }
    }

    /// Continue with this sector, which must not be before the current one.
    pub(super) fn go_to(&mut self, sector: u64) {
        self.next = sector;
    }

    pub(super) fn next(&mut self) -> io::Result<&Sector> {
        let within = |this: &Self| (this.next - this.piece_at) as usize * SECTOR;
        if within(self) >= self.piece.len() {
            let (at, to_end) = self.place();
            self.piece.resize(to_end.min(PIECE as u64) as usize, 0);
            self.piece_at = self.next;
            self.store.read_at(&mut self.piece, at)?;
        }
        let at = within(self);
        self.next += 1;
        self.piece[at..].first_chunk::<SECTOR>().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// File offset of the next sector, and the number of bytes from there to the end of the ring.
    fn place(&self) -> (u64, u64) {
        let at = self.region.position(self.next);
        (at, self.region.offset + u64::from(self.region.length) - at)
    }

    /// Skip sectors before the end of the ring that are in a hole of the file. They are zeros, and no sector of an entry
    /// is all zeros. Returns their number, which is 0 while buffered sectors are left.
    fn skip_hole(&mut self) -> io::Result<u32> {
        if (self.next - self.piece_at) as usize * SECTOR < self.piece.len() {
            return Ok(0);
        }
        let (at, to_end) = self.place();
        let hole = self.store.next_data(at)?.saturating_sub(at).min(to_end) / SECTOR as u64;
        self.next += hole;
        Ok(hole as u32)
    }
}

/// The valid entries with this GUID, by their start. They do not overlap: see [`Parser`].
///
/// Reads the ring at most twice, whatever its content.
pub(super) fn entries(store: &dyn Store, region: Region, guid: Uuid) -> io::Result<Vec<Place>> {
    let count = region.sectors();
    let mut sectors = Sectors::from(store, region, 0);
    let mut open: Option<(u32, Parser)> = None;
    let mut found = Vec::new();
    let mut at = 0;
    // An entry that begins near the end of the ring may end at its start.
    while at < count || open.is_some() {
        if open.is_none() {
            at += sectors.skip_hole()?;
            if at >= count {
                break;
            }
        }
        let sector = sectors.next()?;
        let mut step = match &mut open {
            Some((_, parser)) => parser.feed(sector),
            None => Step::Broken,
        };
        if step == Step::Broken && at < count {
            open = Parser::new(sector, region, guid).map(|parser| (at, parser));
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
