use super::*;
use crate::Extent;

const SHIFT: u32 = 21;
const SECTORS: usize = 4096;

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

/// Ticks for one look-up of 4 KiB: `cargo test --release -p paradisk-disk-formats --lib -- --ignored --nocapture cost_of_a_look_up`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_look_up() {
    let granules = 128u64;
    let map = BlockMap::new(granules << SHIFT, SHIFT);
    for kind in ["whole", "mixed"] {
        for granule in 0..granules {
            if kind == "whole" {
                map.set(granule, {
                    let mut claim = Claim::new(SECTORS);
                    claim.claim(Base { file: 1, offset: granule << 22 }, 0, SECTORS, |_| true);
                    claim
                });
            } else {
                map.set(granule, alternating(Some(1 << 30)));
            }
        }
        let mut extents = Extents::new();
        let mut best = u64::MAX;
        for _ in 0..20 {
            let mut random = 0x9E37_79B9_7F4A_7C15u64;
            let start = crate::tsc::ticks();
            for _ in 0..100_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let offset = (random >> 20) % ((granules << SHIFT) / 4096) * 4096;
                extents.clear();
                assert_eq!(map.map_read(offset, 4096, &mut extents), Mapping::Ready);
            }
            best = best.min((crate::tsc::ticks() - start) / 100_000);
        }
        println!("{kind}: {best} ticks");
    }
}

#[test]
fn a_mixed_granule_is_read_from_where_each_sector_is() {
    let map = BlockMap::new(1 << SHIFT, SHIFT);
    let mut extents = Extents::new();
    assert_eq!(map.map_read(0, 512, &mut extents), Mapping::Blocked);
    map.set(0, alternating(None));
    assert_eq!(map.map_read(60 * 512, 72 * 512, &mut extents), Mapping::Ready);
    let expected = [
        Extent { len: 4 * 512, place: Place::Zeros },
        Extent { len: 64 * 512, place: Place::File { file: 1, offset: (1 << 20) + 64 * 512 } },
        Extent { len: 4 * 512, place: Place::File { file: 2, offset: (1 << 22) + 128 * 512 } },
    ];
    assert_eq!(extents.as_slice(), expected);
    assert_eq!(map.map_write(0, 512, &mut extents), Mapping::Blocked, "the top has no block");
    map.allocated(0, 1 << 30, false);
    extents.clear();
    assert_eq!(map.map_write(3 * 512, 512, &mut extents), Mapping::Ready);
    assert_eq!(
        extents.as_slice(),
        [Extent { len: 512, place: Place::File { file: 0, offset: (1 << 30) + 3 * 512 } }]
    );
}

/// Random claims and writes against a list of where each sector is.
/// The top has a block, and no sector of the granule: what is below shows, or zeros.
#[test]
fn an_image_without_any_of_the_sectors_leaves_them_to_those_below() {
    let map = BlockMap::new(2 << SHIFT, SHIFT);
    for granule in 0..2 {
        let mut claim = Claim::new(SECTORS);
        claim.set_top(1 << 30);
        claim.claim(Base { file: 0, offset: 1 << 30 }, 0, SECTORS, |_| false);
        match granule {
            0 => claim.claim_run(Base { file: 1, offset: 1 << 22 }, 0, SECTORS),
            _ => claim.claim_zeros(0, SECTORS),
        }
        assert!(claim.complete());
        map.set(granule, claim);
    }
    let mut extents = Extents::new();
    assert_eq!(map.map_read((1 << SHIFT) - 4096, 8192, &mut extents), Mapping::Ready);
    let below = Place::File { file: 1, offset: (1 << 22) + (1 << SHIFT) - 4096 };
    let expected = [Extent { len: 4096, place: below }, Extent { len: 4096, place: Place::Zeros }];
    assert_eq!(extents.as_slice(), expected);
}

#[test]
fn what_is_written_comes_from_the_top_and_the_rest_stays() {
    let mut random = crate::conformance::Random(5);
    for _ in 0..50 {
        let size = (1 << 13) + random.below(40) * 512;
        let map = BlockMap::new(size, 12);
        let changes = AtomicU64::new(0);
        let sectors = (size / 512) as usize;
        let mut model: Vec<Option<(u32, u64)>> = vec![None; sectors];
        for granule in 0..size.div_ceil(4096) {
            let mut claim = Claim::new(map.sectors(granule));
            let top = random.below(2) == 0;
            if top {
                claim.set_top(0x10_0000 + granule * 8192);
            }
            for file in u32::from(!top)..3 {
                let bits = random.next();
                let base = Base { file, offset: 0x10_0000 + u64::from(file) * 0x1_0000 + granule * 8192 };
                claim.claim(base, 0, 8, |sector| bits >> sector & 1 == 1);
                for sector in 0..map.sectors(granule) {
                    let place = &mut model[granule as usize * 8 + sector];
                    if bits >> sector & 1 == 1 && place.is_none() {
                        *place = Some((file, base.offset + sector as u64 * 512));
                    }
                }
            }
            map.set(granule, claim);
        }
        for _ in 0..200 {
            let first = random.below(sectors as u64);
            let count = 1 + random.below((sectors as u64 - first).min(20));
            let (offset, len) = (first * 512, count * 512);
            let mut extents = Extents::new();
            if random.below(3) == 0 {
                for granule in offset >> 12..(offset + len).div_ceil(4096) {
                    map.allocated(granule, 0x10_0000 + granule * 8192, false);
                }
                assert_eq!(map.map_write(offset, len, &mut extents), Mapping::Ready);
                map.written(offset, len, &changes);
                for sector in first..first + count {
                    let granule = sector / 8;
                    model[sector as usize] = Some((0, 0x10_0000 + granule * 8192 + sector % 8 * 512));
                }
            }
            extents.clear();
            assert_eq!(map.map_read(offset, len, &mut extents), Mapping::Ready);
            let mut at = first as usize;
            for extent in extents.as_slice() {
                for sector in 0..(extent.len / 512) as usize {
                    let expected =
                        model[at].map_or(Place::Zeros, |(file, offset)| Place::File { file, offset });
                    let found = match extent.place {
                        Place::Zeros => Place::Zeros,
                        Place::File { file, offset } => {
                            Place::File { file, offset: offset + sector as u64 * 512 }
                        }
                    };
                    assert_eq!(found, expected, "sector {at}");
                    at += 1;
                }
            }
            assert_eq!(at as u64, first + count);
        }
        for presence in map.take_dirty() {
            for (sector, here) in presence.sectors.iter().enumerate() {
                let place = model[presence.granule as usize * 8 + sector];
                assert_eq!(*here, place.is_some_and(|(file, _)| file == 0));
            }
        }
        assert!(map.take_dirty().is_empty());
    }
}

/// A map of few pages, read by many while it forgets: nobody sees the place of another granule.
#[test]
fn what_is_forgotten_is_unknown_and_nothing_else() {
    const GRANULES: u64 = 64 * PAGE as u64;
    let map = BlockMap::new(GRANULES << SHIFT, SHIFT).forgetful(4 * PAGE as u64);
    let place = |granule: u64| Base { file: 0, offset: (granule + 1) << SHIFT };
    let enter = |granule: u64| {
        let mut claim = Claim::new(SECTORS);
        claim.claim_run(place(granule), 0, SECTORS);
        map.set(granule, claim);
    };
    map.set(7, alternating(Some(1 << 30)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..4u64 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let (mut random, mut known) = (crate::conformance::Random(seed), 0u64);
                let mut extents = Extents::new();
                while !stop.load(Ordering::Relaxed) || known == 0 {
                    let granule = 8 + random.below(GRANULES - 8);
                    extents.clear();
                    if map.map_read(granule << SHIFT, 4096, &mut extents) == Mapping::Ready {
                        let expected = Place::File { file: 0, offset: place(granule).offset };
                        assert_eq!(extents.as_slice(), [Extent { len: 4096, place: expected }], "{granule}");
                        known += 1;
                    }
                }
            });
        }
        let mut random = crate::conformance::Random(9);
        for _ in 0..200_000 {
            enter(8 + random.below(GRANULES - 8));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(map.slots.iter().filter(|slot| slot.get().is_some()).count(), 4);
    assert!(map.known(7), "what is mixed stays");
    let known = (0..GRANULES).filter(|granule| map.known(*granule)).count();
    assert!((1..=4 * PAGE).contains(&known), "{known}");
}
