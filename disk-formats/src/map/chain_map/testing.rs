//! Requests on disks over recorded files as a queue makes them. A disk with a small map, used by several threads at once, and
//! the expected value of each sector.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::contract::disk::MapMemory;
use crate::contract::error::IoError;
use crate::formats::copy::content::Content;
use crate::host::store::{Store, io_error};
use crate::map::extent::Extents;
use crate::map::format::{Flush, Format, Mapping};
use crate::queue::conformance::Random;

/// Number of threads that read and write. Thread n uses the sectors with the remainder n.
const THREADS: u64 = 3;

fn stamped(value: u64, sector: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(sector / 8)
}

/// Map a range for a write, after it was prepared if necessary. `None`: the preparation has failed.
pub(crate) fn map_for_write(disk: &dyn Format, offset: u64, len: u64) -> Option<Extents> {
    let mut extents = Extents::new();
    if disk.map_write(offset, len, &mut extents) == Ok(Mapping::Blocked) {
        disk.prepare_write(offset, len).ok()?;
        extents.clear();
        assert_eq!(disk.map_write(offset, len, &mut extents), Ok(Mapping::Ready));
    }
    Some(extents)
}

/// Flush a disk whose only writable file is `file`.
pub(crate) fn flush(disk: &dyn Format, file: &dyn Store) -> Result<(), IoError> {
    match disk.flush_kind() {
        Flush::Format => disk.flush(),
        Flush::SyncFiles => file.sync().map_err(io_error),
    }
}

/// The value of each sector of a disk: its first eight bytes.
pub(crate) fn contents(disk: &dyn Format, stores: &[Arc<dyn Store>]) -> Vec<u64> {
    let content = Content::over(disk, stores);
    let sector = disk.info().logical_sector.bytes() as usize;
    let mut values = Vec::new();
    let mut bytes = vec![0; sector];
    for at in (0..disk.info().capacity).step_by(sector) {
        content.read_at(&mut bytes, at).expect("a read");
        let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        assert_eq!(bytes, stamped(value, sector), "the sector at {at:#x}");
        values.push(value);
    }
    values
}

/// Some threads read and write their own sectors, and one thread flushes. Checks what is read, and updates `values`.
pub(crate) fn hammer(
    disk: &dyn Format,
    stores: &[Arc<dyn Store>],
    values: &mut [u64],
    seed: u64,
) -> MapMemory {
    let content = Content::over(disk, stores);
    let sector = disk.info().logical_sector.bytes() as usize;
    let stop = AtomicBool::new(false);
    let before = values.to_vec();
    std::thread::scope(|scope| {
        let (stop, before) = (&stop, &before);
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random((seed * THREADS + thread) << 1 | 1);
                    let own = |random: &mut Random| {
                        let number = random.below(before.len() as u64 / THREADS) * THREADS + thread;
                        (number as usize, number * sector as u64)
                    };
                    let mut values = before.clone();
                    let mut bytes = vec![0; sector];
                    for number in 0..400 {
                        let (at, offset) = own(&mut random);
                        if random.below(3) == 0 {
                            values[at] = (seed << 32) + (thread << 24) + number;
                            content.write_at(&stamped(values[at], sector), offset).expect("a write");
                        } else {
                            content.read_at(&mut bytes, offset).expect("a read");
                            assert_eq!(bytes, stamped(values[at], sector), "the sector at {offset:#x}");
                        }
                    }
                    values
                })
            })
            .collect();
        let flusher = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                disk.flush().expect("a flush");
                std::thread::yield_now();
            }
        });
        for (thread, worker) in workers.into_iter().enumerate() {
            let own = worker.join().expect("no panic");
            for at in (thread..values.len()).step_by(THREADS as usize) {
                values[at] = own[at];
            }
        }
        stop.store(true, Ordering::Relaxed);
        flusher.join().expect("no panic");
    });
    disk.flush().expect("a flush");
    let memory = disk.map_memory().expect("a map");
    assert!(memory.bytes <= memory.budget && memory.peak <= memory.budget, "{memory:?}");
    memory
}
