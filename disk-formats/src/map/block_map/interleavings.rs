//! Readers, writers, evictions and flushes of a block map, in all interleavings.
//!
//! The granules have two sectors, and the map has one unit for a mixed granule beside that of the page. So a granule that is resolved
//! evicts the other, and reuses its unit.

use super::{claim, entry};
use crate::map::extent::{Extents, Place};
use crate::map::format::Mapping;
use interleave::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use interleave::sync::{Arc, Mutex};
use interleave::{Fault, explore, finds, sync, thread};

use claim::Claim;
use entry::Base;
use map::BlockMap;
use pool::Scan;

mod sizes {
    pub(super) const WORDS: usize = 2;
    pub(super) const CHUNK: usize = 3;
}

#[allow(dead_code, reason = "the models do not use everything")]
#[path = "map.rs"]
mod map;
#[allow(dead_code, reason = "as above")]
#[path = "mixed.rs"]
mod mixed;
#[allow(dead_code, reason = "as above")]
#[path = "pool.rs"]
mod pool;

const SHIFT: u32 = 10;
const SECTORS: usize = 2;

/// The offset of a granule's start in a file. It identifies both.
const fn start(file: u32, granule: u64) -> u64 {
    (file as u64 + 1) << 20 | granule << SHIFT
}

/// A disk of two granules, and what its top image records of granule 0.
struct Model {
    map: BlockMap,
    recorded: [AtomicBool; SECTORS],
    /// As in `SparseDisk`: changes, and how many of them the images record.
    changes: AtomicU64,
    flushed: AtomicU64,
    /// One thread at a time resolves, and one flushes.
    allocator: Mutex<()>,
    flushes: Mutex<()>,
}

impl Model {
    /// Granule 0 is known.
    fn new() -> Arc<Self> {
        let model = Self {
            map: BlockMap::with_units(2 << SHIFT, SHIFT, 2),
            recorded: Default::default(),
            changes: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            allocator: Mutex::new(()),
            flushes: Mutex::new(()),
        };
        model.resolve(0);
        Arc::new(model)
    }

    /// The top file has a block for each granule; the sectors that it does not have yet are in file 1.
    fn resolve(&self, granule: u64) {
        let _one_at_a_time = self.allocator.lock().unwrap();
        let mut claim = Claim::new(SECTORS);
        claim.set_top(start(0, granule));
        let recorded = |sector: usize| granule == 0 && self.recorded[sector].load(Ordering::Relaxed);
        claim.claim(Base { file: 0, offset: start(0, granule) }, 0, SECTORS, recorded);
        claim.claim_run(Base { file: 1, offset: start(1, granule) }, 0, SECTORS);
        // If the other granule is dirty, there is no unit.
        let stored = self.map.set(granule, &claim, true);
        assert!(matches!(stored, Ok(()) | Err(map::Refused::Full)));
    }

    /// The file of each sector of the granule; `None` if it is unknown.
    fn read(&self, granule: u64) -> Option<Vec<u32>> {
        let mut extents = Extents::new();
        let mapped =
            self.map.map_read(granule << SHIFT, 1 << SHIFT, &mut extents).expect("a granule with places");
        let mut files = Vec::new();
        for extent in extents.as_slice().iter().filter(|_| mapped == Mapping::Ready) {
            let Place::File { file, offset } = extent.place else { panic!("zeros") };
            assert_eq!(
                offset,
                start(file, granule) + 512 * files.len() as u64,
                "the place of another granule"
            );
            files.extend(std::iter::repeat_n(file, (extent.len / 512) as usize));
        }
        (mapped == Mapping::Ready).then_some(files)
    }

    /// A write of granule 0 to the top file has completed.
    fn written(&self, sector: usize) {
        self.map.written(512 * sector as u64, 512, &self.changes);
    }

    /// As `SparseDisk::flush`, with a part of `ChainMap::record`: returns when the images record all changes that were there before.
    fn flush(&self) {
        if self.flushed.load(Ordering::Acquire) >= self.changes.load(Ordering::Acquire) {
            return;
        }
        let _one_at_a_time = self.flushes.lock().unwrap();
        let changes = self.changes.load(Ordering::Acquire);
        let mut unresolved = self.map.evicted_writes();
        while {
            unresolved.iter().for_each(|granule| self.resolve(*granule));
            let open = self.map.evicted_writes();
            unresolved.retain(|granule| open.contains(granule));
            let mut scan = Scan::default();
            while !scan.is_over() {
                let dirty = self.map.take_dirty(&mut scan, 1);
                for granule in &dirty {
                    assert_eq!(granule.granule, 0, "nobody writes to granule 1");
                    let present = self.map.presence(0).expect("a granule that is recorded is not evicted")[0];
                    for sector in (0..SECTORS).filter(|sector| present >> sector & 1 == 1) {
                        self.recorded[sector].store(true, Ordering::Relaxed);
                    }
                }
                self.map.recorded(&dirty, true);
            }
            !unresolved.is_empty()
        } {}
        self.flushed.store(changes, Ordering::Release);
    }

    fn is_recorded(&self, sector: usize) -> bool {
        self.recorded[sector].load(Ordering::Relaxed)
    }
}

/// One thread resolves granule 1, which reuses the unit of granule 0, and granule 0 again. The other reads granule 0.
fn read_while_units_are_reused() {
    let model = Model::new();
    let resolver = Arc::clone(&model);
    let resolver = thread::spawn(move || {
        resolver.resolve(1);
        resolver.resolve(0);
    });
    // Checks the places.
    let _files = model.read(0);
    resolver.join().unwrap();
    // The reader may have kept the unit from being evicted.
    model.resolve(0);
    assert_eq!(model.read(0), Some(vec![1, 1]));
}

/// Two writes complete, and each is flushed by the thread that made it.
fn flush_each_write() {
    let model = Model::new();
    let other = Arc::clone(&model);
    let write = |model: &Model, sector| {
        model.written(sector);
        model.flush();
        assert!(model.is_recorded(sector), "a flush has lost sector {sector}");
    };
    let other = thread::spawn(move || write(&other, 1));
    write(&model, 0);
    other.join().unwrap();
    assert_eq!(model.read(0), Some(vec![0, 0]));
}

/// A write of granule 0 completes before, while or after the granule is evicted and resolved again.
fn write_while_the_granule_is_evicted() {
    let model = Model::new();
    let resolver = Arc::clone(&model);
    let resolver = thread::spawn(move || {
        resolver.resolve(1);
        resolver.resolve(0);
    });
    model.written(0);
    if let Some(files) = model.read(0) {
        assert_eq!(files, [0, 1], "the write is lost");
    }
    model.flush();
    assert!(model.is_recorded(0), "a flush has lost the write");
    resolver.join().unwrap();
    model.resolve(0);
    assert_eq!(model.read(0), Some(vec![0, 1]));
}

/// The protections: the second stamp check of `BlockMap::map_read`, and the fence of `Pool::fill`.
#[test]
fn a_reader_never_uses_a_unit_of_another_granule() {
    explore(2, read_while_units_are_reused);
    finds(Fault::NoFences, 2, read_while_units_are_reused);
}

/// The protection: `Unit::unpin` sets `DIRTY`.
#[test]
fn a_flush_records_every_write_that_completed_before() {
    explore(2, flush_each_write);
    finds(Fault::RelaxedLoads, 2, flush_each_write);
}

/// The protections: `Pool::evict` keeps units that are `DIRTY`, `arrived_evicted` looks again under the lock, and `BlockMap::set` applies evicted
/// writes.
#[test]
fn a_write_that_completes_after_an_eviction_is_not_lost() {
    explore(2, write_while_the_granule_is_evicted);
    finds(Fault::RelaxedStores, 2, write_while_the_granule_is_evicted);
}
