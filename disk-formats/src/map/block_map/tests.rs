use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::claim::Sectors;
use super::entry::{NO_BASE, lane_shift, place_word};
use super::map::{BROKEN, Known, OUTSIDE, Refused};
use super::mixed::{most_units, parts_of};
use super::pool::UNIT;
use super::*;
use crate::map::extent::{Extent, Extents, Place};
use crate::map::format::Mapping;
use crate::queue::conformance::Random;

const SHIFT: u32 = 21;
const SECTORS: usize = 4096;

fn enter(map: &BlockMap, granule: u64, claim: &Claim) {
    assert_eq!(map.set(granule, claim, true), Ok(()), "{granule}");
}

fn map_of(size: u64, shift: u32) -> BlockMap {
    BlockMap::new(size, shift, DEFAULT_MEMORY)
}

/// Map a range for reading; `None` if it is unknown.
fn read(map: &BlockMap, offset: u64, len: u64) -> Option<Vec<Extent>> {
    let mut extents = Extents::new();
    match map.map_read(offset, len, &mut extents) {
        Ok(Mapping::Ready) => Some(extents.as_slice().to_vec()),
        other => {
            assert_eq!(other, Ok(Mapping::Blocked));
            None
        }
    }
}

/// A granule whose sectors alternate between files, 64 at a time.
fn alternating(top: Option<u64>) -> Claim {
    let mut claim = Claim::new(SECTORS);
    if let Some(offset) = top {
        claim.set_top(offset);
    }
    for (file, offset) in [(0, 1 << 30), (1, 1 << 20), (2, 1 << 22)] {
        if file == 0 && top.is_none() {
            continue;
        }
        claim.claim(Base { file, offset }, 0, SECTORS, |sector| (sector / 64) % 3 == file as usize);
    }
    claim
}

/// Ticks for one look-up of 4 KiB: `cargo test --release -p paradisk-disk-formats --lib -- --ignored --nocapture
/// cost_of_a_look_up`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_look_up() {
    let granules = 128u64;
    for kind in ["whole", "mixed", "top or one other"] {
        let map = map_of(granules << SHIFT, SHIFT);
        for granule in 0..granules {
            if kind == "whole" {
                let mut claim = Claim::new(SECTORS);
                claim.claim(Base { file: 1, offset: granule << 22 }, 0, SECTORS, |_| true);
                enter(&map, granule, &claim);
            } else if kind == "mixed" {
                enter(&map, granule, &alternating(Some(1 << 30)));
            } else {
                let mut claim = Claim::new(SECTORS);
                claim.set_top(1 << 30);
                claim.claim(Base { file: 0, offset: 1 << 30 }, 0, SECTORS, |sector| sector / 64 % 2 == 0);
                claim.claim_run(Base { file: 1, offset: granule << 22 }, 0, SECTORS);
                enter(&map, granule, &claim);
            }
        }
        let mut extents = Extents::new();
        let mut best = u64::MAX;
        for _ in 0..20 {
            let mut random = 0x9E37_79B9_7F4A_7C15u64;
            let start = crate::host::sys::ticks();
            for _ in 0..100_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let offset = (random >> 20) % ((granules << SHIFT) / 4096) * 4096;
                extents.clear();
                assert_eq!(map.map_read(offset, 4096, &mut extents), Ok(Mapping::Ready));
            }
            best = best.min((crate::host::sys::ticks() - start) / 100_000);
        }
        println!("{kind}: {best} ticks");
    }
}

#[test]
fn a_mixed_granule_is_read_from_where_each_sector_is() {
    let map = map_of(1 << SHIFT, SHIFT);
    let mut extents = Extents::new();
    assert_eq!(map.map_read(0, 512, &mut extents), Ok(Mapping::Blocked));
    enter(&map, 0, &alternating(None));
    assert_eq!(map.map_read(60 * 512, 72 * 512, &mut extents), Ok(Mapping::Ready));
    let expected = [
        Extent { len: 4 * 512, place: Place::Zeros },
        Extent { len: 64 * 512, place: Place::File { file: 1, offset: (1 << 20) + 64 * 512 } },
        Extent { len: 4 * 512, place: Place::File { file: 2, offset: (1 << 22) + 128 * 512 } },
    ];
    assert_eq!(extents.as_slice(), expected);
    assert_eq!(map.map_write(0, 512, &mut extents), Mapping::Blocked, "the top has no block");
    assert_eq!(map.allocated(0, 1 << 30, false, true), Ok(()));
    extents.clear();
    assert_eq!(map.map_write(3 * 512, 512, &mut extents), Mapping::Ready);
    assert_eq!(
        extents.as_slice(),
        [Extent { len: 512, place: Place::File { file: 0, offset: (1 << 30) + 3 * 512 } }]
    );
}

/// The top has a block for the granule, but none of its sectors: they are read from the images below, or as zeros.
#[test]
fn an_image_without_any_of_the_sectors_leaves_them_to_those_below() {
    let map = map_of(2 << SHIFT, SHIFT);
    for granule in 0..2 {
        let mut claim = Claim::new(SECTORS);
        claim.set_top(1 << 30);
        claim.claim(Base { file: 0, offset: 1 << 30 }, 0, SECTORS, |_| false);
        match granule {
            0 => claim.claim_run(Base { file: 1, offset: 1 << 22 }, 0, SECTORS),
            _ => claim.claim_zeros(0, SECTORS),
        }
        assert!(claim.complete());
        enter(&map, granule, &claim);
    }
    let mut extents = Extents::new();
    assert_eq!(map.map_read((1 << SHIFT) - 4096, 8192, &mut extents), Ok(Mapping::Ready));
    let below = Place::File { file: 1, offset: (1 << 22) + (1 << SHIFT) - 4096 };
    let expected = [Extent { len: 4096, place: below }, Extent { len: 4096, place: Place::Zeros }];
    assert_eq!(extents.as_slice(), expected);
}

/// The state of the images after the last flush, and a map over them.
struct Model {
    map: BlockMap,
    shift: u32,
    /// For each sector the number of its place (0: the top file): in the images, and now.
    images: Vec<u16>,
    now: Vec<u16>,
    /// Number of places of a granule.
    places: u16,
    changes: AtomicU64,
}

impl Model {
    fn new(random: &mut Random, granules: u64, shift: u32, places: u16, units: u32) -> Self {
        let size = (granules << shift) - 512 * random.below(8);
        let images: Vec<u16> = (0..size / 512).map(|_| random.below(u64::from(places) + 1) as u16).collect();
        let map = BlockMap::with_units(size, shift, units);
        Self { map, shift, now: images.clone(), images, places, changes: AtomicU64::new(0) }
    }

    /// Location of a granule in a place. The last place is zeros.
    fn base(&self, granule: u64, place: u16) -> Option<Base> {
        let offset = (u64::from(place) << 32) + (granule << self.shift);
        let file = u32::from(place != 0) * (1 + u32::from(place) % 3);
        (place == 0 || place != self.places).then_some(Base { file, offset: offset + (1 << 30) })
    }

    fn first(&self, granule: u64) -> usize {
        (granule as usize) << (self.shift - 9)
    }

    fn resolve(&self, granule: u64) -> Result<(), Refused> {
        let sectors = self.map.sectors(granule);
        let first = self.first(granule);
        let mut claim = Claim::new(sectors);
        claim.set_top(self.base(granule, 0).unwrap().offset);
        for place in 0..=self.places {
            match self.base(granule, place) {
                Some(base) => claim.claim(base, 0, sectors, |sector| self.images[first + sector] == place),
                None => claim.claim_zeros(0, sectors),
            }
        }
        self.map.set(granule, &claim, true)
    }

    fn make_known(&mut self, granule: u64) {
        while !self.map.known(granule) {
            if self.resolve(granule).is_err() {
                self.flush(3);
                assert_eq!(self.resolve(granule), Ok(()), "all is clean");
            }
        }
    }

    /// Flush in batches of `count`, as the formats do.
    fn flush(&mut self, count: usize) {
        let mut unresolved = self.map.evicted_writes();
        loop {
            unresolved.iter().for_each(|granule| _ = self.resolve(*granule));
            let open = self.map.evicted_writes();
            unresolved.retain(|granule| open.contains(granule));
            let mut scan = Scan::default();
            while !scan.is_over() {
                let dirty = self.map.take_dirty(&mut scan, count);
                for granule in dirty.iter().map(|dirty| dirty.granule) {
                    let presence = self.map.presence(granule).unwrap();
                    for sector in 0..self.map.sectors(granule) {
                        if presence[sector / 64] >> (sector % 64) & 1 == 1 {
                            let at = self.first(granule) + sector;
                            self.images[at] = 0;
                        }
                    }
                }
                self.map.recorded(&dirty, true);
            }
            if unresolved.is_empty() {
                return;
            }
        }
    }

    fn expect(&self, sector: usize, found: Place) {
        let granule = (sector >> (self.shift - 9)) as u64;
        let within = (sector - self.first(granule)) as u64 * 512;
        let expected = self
            .base(granule, self.now[sector])
            .map_or(Place::Zeros, |base| Place::File { file: base.file, offset: base.offset + within });
        assert_eq!(found, expected, "sector {sector}");
    }

    fn read(&mut self, first: usize, count: usize) {
        let (offset, len) = (first as u64 * 512, count as u64 * 512);
        let extents = loop {
            for granule in offset >> self.shift..(offset + len).div_ceil(1 << self.shift) {
                self.make_known(granule);
            }
            if let Some(extents) = read(&self.map, offset, len) {
                break extents;
            }
            // The others are dirty, so this one is evicted.
            self.flush(3);
        };
        let mut at = first;
        for extent in extents {
            for sector in 0..extent.len / 512 {
                self.expect(
                    at,
                    extent.place.advanced(if extent.place == Place::Zeros { 0 } else { sector * 512 }),
                );
                at += 1;
            }
        }
        assert_eq!(at, first + count);
    }
}

/// Random reads, writes and flushes over maps of few units, with sectors in few and in many places, and with evicted
/// writes.
#[test]
fn small_maps_forget_and_lose_nothing() {
    let mut random = Random(5);
    let mut evictions = 0;
    for round in 0..120 {
        let (shift, places) =
            [(12, 1), (16, 1), (16, 2), (16, 9), (17, 100), (18, 300), (21, 1), (21, 3)][round % 8];
        let granules = 40 + random.below(60);
        let units = match places {
            300 => 30,
            _ => 12 + random.below(30) as u32,
        };
        let mut model = Model::new(&mut random, granules, shift, places, units);
        let sectors = model.now.len() as u64;
        let mut held: Vec<(usize, usize)> = Vec::new();
        for _ in 0..400 {
            let first = random.below(sectors);
            let count = 1 + random.below((sectors - first).min(16)) as usize;
            let first = first as usize;
            match random.below(8) {
                0..3 => model.read(first, count),
                3..6 => {
                    let shift = model.shift - 9;
                    for granule in first >> shift..(first + count).div_ceil(1 << shift) {
                        model.make_known(granule as u64);
                    }
                    let mut extents = Extents::new();
                    if model.map.map_write(first as u64 * 512, count as u64 * 512, &mut extents)
                        == Mapping::Ready
                    {
                        held.push((first, count));
                    }
                }
                6 => model.flush(1 + random.below(5) as usize),
                _ => {}
            }
            if held.len() > random.below(6) as usize {
                let (first, count) = held.swap_remove(random.below(held.len() as u64) as usize);
                model.map.written(first as u64 * 512, count as u64 * 512, &model.changes);
                model.now[first..first + count].fill(0);
            }
            let memory = model.map.memory();
            assert!(memory.bytes <= memory.budget && memory.peak <= memory.budget, "{memory:?}");
        }
        model.flush(2);
        assert!(model.images == model.now, "round {round}: a flush has recorded everything");
        for granule in 0..granules {
            let first = model.first(granule);
            model.read(first, model.map.sectors(granule).min(64));
        }
        evictions += model.map.memory().evictions;
    }
    assert!(evictions > 1000, "{evictions}");
}

/// A granule with writes that are not recorded is not evicted. The caller that needs its unit gets [`Refused::Full`].
#[test]
fn what_is_dirty_stays_until_it_is_recorded() {
    let mut random = Random(3);
    let mut model = Model::new(&mut random, 8, 16, 1, 5);
    for granule in 0..4 {
        model.make_known(granule);
        model.map.written(granule << 16, 512, &model.changes);
        let first = model.first(granule);
        model.now[first] = 0;
    }
    assert_eq!(model.changes.load(Ordering::Relaxed), 4);
    assert_eq!(model.resolve(4), Err(Refused::Full));
    let mut scan = Scan::default();
    let taken = model.map.take_dirty(&mut scan, 2);
    assert_eq!(model.resolve(4), Err(Refused::Full), "being recorded is not recorded");
    model.map.recorded(&taken, false);
    let granules = |dirty: &[Dirty]| dirty.iter().map(|dirty| dirty.granule).collect::<BTreeSet<_>>();
    let again = model.map.take_dirty(&mut Scan::default(), 64);
    assert_eq!(granules(&again), (0..4).collect());
    // Written while it is being recorded, so it is dirty again.
    model.map.written(512, 512, &model.changes);
    model.map.recorded(&again, true);
    assert_eq!(model.resolve(4), Ok(()));
    let again = model.map.take_dirty(&mut Scan::default(), 64);
    assert_eq!(granules(&again), BTreeSet::from([0]));
    assert_eq!(model.map.memory().evictions, 1);
}

/// A granule that is completely in the top file takes no unit after that is recorded.
#[test]
fn a_granule_that_is_complete_gives_its_unit_back() {
    let map = map_of(4 << 16, 16);
    let mut claim = Claim::new(128);
    claim.set_top(1 << 30);
    claim.claim_run(Base { file: 1, offset: 1 << 20 }, 0, 128);
    enter(&map, 0, &claim);
    let before = map.memory().bytes;
    map.written(0, 1 << 16, &AtomicU64::new(0));
    assert!(map.in_top(0));
    let dirty = map.take_dirty(&mut Scan::default(), 64);
    assert_eq!(map.presence(0).unwrap()[..3], [u64::MAX, u64::MAX, 0]);
    map.recorded(&dirty, true);
    assert_eq!(map.memory().bytes, before - UNIT);
    let place = Place::File { file: 0, offset: 1 << 30 };
    assert_eq!(read(&map, 0, 1 << 16), Some(vec![Extent { len: 1 << 16, place }]));
    assert!(map.in_top(0) && map.take_dirty(&mut Scan::default(), 64).is_empty());
}

/// A granule of a chain of two takes half a KiB, not 8.
#[test]
fn two_places_take_one_unit() {
    let map = map_of(64 << SHIFT, SHIFT);
    let mut claim = Claim::new(SECTORS);
    claim.set_top(1 << 30);
    claim.claim(Base { file: 0, offset: 1 << 30 }, 0, SECTORS, |sector| sector % 2 == 0);
    claim.claim_run(Base { file: 1, offset: 0 }, 0, SECTORS);
    let empty = map.memory().bytes;
    for granule in 0..64 {
        enter(&map, granule, &claim);
    }
    assert_eq!(map.memory().bytes - empty, 65 * UNIT);
    const { assert!(UNIT <= 576) };
}

/// An inconsistent mapping, which only a bug can produce, is an error and does not read as zeros.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "a sector without a place"))]
fn a_lane_without_a_place_is_an_error() {
    let map = map_of(1 << SHIFT, SHIFT);
    enter(&map, 0, &alternating(Some(1 << 30)));
    let Known::Mixed(unit, _) = map.look_up(0) else { panic!("it is mixed") };
    let places =
        map.pool.unit(unit.words[mixed::PLACES].load(Ordering::Relaxed) as u32).expect("a unit of places");
    places.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    assert_eq!(map.map_read(0, 1 << SHIFT, &mut Extents::new()), Err(NO_BASE));
}

/// Many threads read and write while one resolves, evicts and flushes. No thread gets the place of another granule.
/// What was written before a read is visible to the read and to the images.
#[test]
fn concurrent_readers_and_writers_see_no_other_granule() {
    const GRANULES: u64 = 96;
    const SHIFT: u32 = 15;
    const SECTORS: u64 = 1 << (SHIFT - 9);
    let map = BlockMap::with_units(GRANULES << SHIFT, SHIFT, 20);
    let changes = AtomicU64::new(0);
    // The offset in the file identifies granule and sector. Odd granules have three images, even ones two.
    let base =
        |file: u32, granule: u64| Base { file, offset: ((u64::from(file) + 1) << 40) + (granule << SHIFT) };
    let all = (GRANULES * SECTORS) as usize;
    let flags = || -> Vec<AtomicBool> { std::iter::repeat_with(AtomicBool::default).take(all).collect() };
    let (images, done) = (flags(), flags());
    let resolve = |granule: u64| {
        let mut claim = Claim::new(SECTORS as usize);
        claim.set_top(base(0, granule).offset);
        let recorded = |sector: usize| images[(granule * SECTORS) as usize + sector].load(Ordering::Acquire);
        claim.claim(base(0, granule), 0, SECTORS as usize, recorded);
        claim.claim(base(2, granule), 0, SECTORS as usize, |sector| granule % 2 == 1 && sector % 3 == 0);
        claim.claim_run(base(1, granule), 0, SECTORS as usize);
        map.set(granule, &claim, true)
    };
    let record = || {
        let mut unresolved = map.evicted_writes();
        loop {
            unresolved.iter().for_each(|granule| _ = resolve(*granule));
            let open = map.evicted_writes();
            unresolved.retain(|granule| open.contains(granule));
            let mut scan = Scan::default();
            while !scan.is_over() {
                let dirty = map.take_dirty(&mut scan, 3);
                for granule in dirty.iter().map(|dirty| dirty.granule) {
                    let presence = map.presence(granule).unwrap()[0];
                    for sector in (0..SECTORS).filter(|sector| presence >> sector & 1 == 1) {
                        images[(granule * SECTORS + sector) as usize].store(true, Ordering::Release);
                    }
                }
                map.recorded(&dirty, true);
            }
            if unresolved.is_empty() {
                return;
            }
        }
    };
    let reads = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (asked, questions) = std::sync::mpsc::channel::<u64>();
        let (map, stop, done, reads, changes) = (&map, &stop, &done, &reads, &changes);
        for seed in 1..4u64 {
            let asked = asked.clone();
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut extents = Extents::new();
                while !stop.load(Ordering::Relaxed) {
                    let granule = random.below(GRANULES);
                    let first = random.below(SECTORS);
                    let count = 1 + random.below(SECTORS - first);
                    let (offset, at) =
                        ((granule << SHIFT) + first * 512, (granule * SECTORS + first) as usize);
                    extents.clear();
                    if random.below(3) == 0 {
                        // A single sector, so that the test does not write all sectors too soon.
                        if map.map_write(offset, 512, &mut extents) == Mapping::Ready {
                            let place =
                                Place::File { file: 0, offset: base(0, granule).offset + first * 512 };
                            assert_eq!(extents.as_slice(), [Extent { len: 512, place }]);
                            if random.below(4) == 0 {
                                std::thread::yield_now();
                            }
                            map.written(offset, 512, changes);
                            done[at].store(true, Ordering::Release);
                            continue;
                        }
                    } else {
                        let before: Vec<bool> =
                            (0..count as usize).map(|n| done[at + n].load(Ordering::Acquire)).collect();
                        if map.map_read(offset, count * 512, &mut extents) == Ok(Mapping::Ready) {
                            let mut sector = first;
                            for extent in extents.as_slice() {
                                for n in 0..extent.len / 512 {
                                    let Place::File { file, offset } = extent.place else { panic!("zeros") };
                                    assert_eq!(offset + n * 512, base(file, granule).offset + sector * 512);
                                    assert!(
                                        file == 0 || !before[(sector - first) as usize],
                                        "a write is lost"
                                    );
                                    sector += 1;
                                }
                            }
                            assert_eq!(sector, first + count);
                            reads.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                    }
                    let _ = asked.send(granule);
                }
            });
        }
        let mut random = Random(77);
        let mut round = 0;
        // The readers may not be scheduled for a while.
        while round < 60_000 || reads.load(Ordering::Relaxed) < 20_000 {
            let granule = questions.try_recv().unwrap_or_else(|_| random.below(GRANULES));
            if resolve(granule).is_err() || round % 500 == 0 {
                record();
            }
            round += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    record();
    let memory = map.memory();
    assert!(memory.peak <= memory.budget && memory.evictions > 1000, "{memory:?}");
    for (at, done) in done.iter().enumerate() {
        assert_eq!(done.load(Ordering::Acquire), images[at].load(Ordering::Acquire), "sector {at}");
    }
}

/// A link to a unit that does not exist is an error, and nothing is stored.
#[test]
fn a_granule_that_cannot_be_filled_is_refused() {
    let map = map_of(1 << SHIFT, SHIFT);
    let free = map.pool.counts();
    for (places, value) in [(300, 301), (20, 1)] {
        let places = vec![place_word(Base { file: 1, offset: 1 << 20 }); places];
        // A place that does not exist; a sector beyond the units of the granule.
        let sectors = if value == 1 { SECTORS + 1 } else { SECTORS };
        let sectors = Sectors { top: 0, places, values: vec![value; sectors] };
        let [lanes, others] = parts_of(sectors.values.len(), sectors.places.len());
        let mut slow = map.pool.lock();
        let units = map.take(&mut slow, 1 + lanes + others, false).expect("units");
        let others = if value == 1 { &units[2..] } else { &units[1..] };
        let unit = map.pool.fill(units[0]).expect("a unit");
        assert_eq!(map.mixed(unit).fill(others, lanes, lane_shift(sectors.places.len()), &sectors), None);
        units.iter().for_each(|unit| map.pool.free(&mut slow, *unit));
        if value != 1 {
            let entered = map.enter_mixed(&mut slow, 0, &sectors, false, true);
            assert!(entered == Err(BROKEN));
        }
        assert!(!map.known(0));
    }
    // Only the page was allocated.
    assert_eq!(map.pool.counts()[0], free[0] + 1);
}

/// Whether a broken invariant is detected: with assertions as a panic, else as an error. (A failed assertion of the
/// test itself would contain the text of the error, too.)
fn is_broken<E: Into<Refused>>(work: impl FnOnce() -> Result<(), E>) -> bool {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(done) => !cfg!(debug_assertions) && done.map_err(Into::into) == Err(BROKEN),
        Err(panic) => {
            panic.downcast_ref::<&str>() == Some(&"the block map has a link to a unit that does not exist")
        }
    }
}

/// A granule outside of the directory is an error, too.
#[test]
fn a_granule_outside_of_the_directory_is_an_error() {
    let mut map = map_of(1 << SHIFT, SHIFT);
    map.directory = Box::default();
    assert!(is_broken(|| map.set(0, &alternating(None), true)));
}

/// So is an allocation for a granule with more sectors than a unit has lanes.
#[test]
fn a_granule_that_is_too_large_for_a_unit_gets_no_block() {
    let map = map_of(1 << (SHIFT + 1), SHIFT + 1);
    let mut claim = Claim::new(2 * SECTORS);
    claim.claim_zeros(0, 2 * SECTORS);
    enter(&map, 0, &claim);
    assert!(is_broken(|| map.allocated(0, 1 << 30, false, true)));
    assert!(!map.known(0));
}

/// Nothing is recorded of a granule whose lanes are missing.
#[test]
fn sectors_of_a_granule_without_lanes_are_not_made_up() {
    let map = map_of(1 << SHIFT, SHIFT);
    enter(&map, 0, &alternating(Some(1 << 30)));
    assert!(map.presence(0).is_ok());
    let Known::Mixed(unit, _) = map.look_up(0) else { panic!("it is mixed") };
    unit.words[0].store(u64::from(u32::MAX), Ordering::Relaxed);
    assert_eq!(map.presence(0), Err(NO_BASE));
}

/// An evicted write beyond the end of its granule.
#[test]
fn an_evicted_write_outside_of_its_granule_is_an_error() {
    let map = map_of(1 << SHIFT, SHIFT);
    map.pool.lock().evicted_writes.push(0, &(SECTORS..SECTORS + 1));
    assert_eq!(map.set(0, &alternating(Some(1 << 30)), true), Err(OUTSIDE.into()));
    assert!(!map.known(0));
}

/// For each granule size and each number of places, a step fits the smallest map.
#[test]
fn the_smallest_map_has_units_for_a_step() {
    for shift in 9..=21 {
        let sectors = 1usize << (shift - 9);
        let most = (1..=sectors).map(|places| parts_of(sectors, places).iter().sum::<usize>()).max();
        assert!(most_units(shift) > most.unwrap_or(0) as u64, "{shift}");
        let map = BlockMap::new(1 << 40, shift, 0);
        let granules = step_of(shift) >> shift;
        for granule in 0..granules {
            let mut claim = Claim::new(sectors);
            claim.set_top(1 << 30);
            for sector in 0..sectors {
                claim.claim_run(Base { file: 1, offset: (sector as u64) << 30 }, sector, sector + 1);
            }
            assert_eq!(map.set(granule, &claim, true), Ok(()), "{shift}");
        }
        assert!((0..granules).all(|granule| map.known(granule)), "{shift}");
    }
}
