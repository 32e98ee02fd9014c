//! Tests of the log with a ring of 16 sectors.

mod active;
mod crash;
mod entry;
mod hostile;
mod qemu;

use uuid::Uuid;

use super::spec::SECTOR;
use super::{Change, Region, Replay, Sizes, Update};
use crate::host::store::Store;
use crate::queue::conformance::Random;

/// The ring.
const REGION: Region = Region { offset: 256 << 10, length: 64 << 10 };
/// Size of the file in bytes.
const LEN: u64 = 320 << 10;
const SIZES: Sizes = Sizes { flushed: LEN, last: 1 << 20 };
const GUID: Uuid = Uuid::from_u128(0x0123_4567_89AB_CDEF_0123_4567_89AB_CDEF);

fn data(offset: u64, fill: impl FnMut(usize) -> u8) -> Update {
    Update::Data { offset, sector: Box::new(std::array::from_fn(fill)) }
}

/// Random changes between the headers and the log.
fn changes(count: usize, random: &mut Random) -> Vec<Update> {
    let mut change = || {
        let offset = (192 << 10) + random.below(8) * SECTOR as u64;
        match random.below(4) {
            0 => Update::Zero { offset, len: random.below(3) * SECTOR as u64 },
            _ => data(offset, |_| random.next() as u8),
        }
    };
    (0..count).map(|_| change()).collect()
}

/// The changes of a replay, in order.
fn updates(replay: &Replay, store: &dyn Store) -> Vec<Update> {
    let mut updates = Vec::new();
    let visited = replay.visit(store, |change| {
        updates.push(match change {
            Change::Data { offset, sector } => Update::Data { offset, sector: Box::new(*sector) },
            Change::Zero { offset, len } => Update::Zero { offset, len },
        });
        Ok(())
    });
    visited.expect("good");
    updates
}

/// Write an entry to the file, from sector `start` of the ring on.
fn put(file: &mut [u8], entry: &[u8], start: u32) {
    for (sector, at) in entry.chunks(SECTOR).zip(u64::from(start)..) {
        file[REGION.position(at) as usize..][..SECTOR].copy_from_slice(sector);
    }
}

/// Set an entry's checksum.
fn seal(entry: &mut [u8]) {
    entry[4..8].fill(0);
    let checksum = crc32c::crc32c(entry);
    entry[4..8].copy_from_slice(&checksum.to_le_bytes());
}
