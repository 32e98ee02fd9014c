//! Power failures: a chain over recorded files, cut after every change, even in the replay of its log, with any
//! combination of the unflushed changes lost.
//!
//! A run checks 12,500 states. For more, with other workloads: `PARADISK_TEST_EFFORT=4000 cargo test -p
//! paradisk-disk-formats vhdx::crash_tests -- --nocapture` checks 50 million.
//!
//! ```text
//! lives -> Workload::run (requests) -> Workload::crash (every cut) -> verify (reopen, replay, write, close)
//!   ^                                                                   |
//!   `---------------- the next life begins with one of the states ------'
//! ```

mod places;
mod reopen;
mod workload;

use places::Places;
use reopen::with;
use workload::Workload;

use super::testing::{Shape, UNIT, new_image, open, opened, read};
use crate::contract::info::SectorSize;
use crate::host::crash::{CrashFile, stamped, stores, value_of};
use crate::host::effort::effort;
use crate::host::store::Store;
use crate::map::chain_map::testing::{contents, hammer};
use crate::map::extent::{Extents, Place};
use crate::map::format::{Format, Mapping};

const MIB: u64 = 1 << 20;
/// Number of states of a run, multiplied by [`effort`].
const STATES: usize = 4_500;
/// Number of tests that share the states.
const TESTS: usize = 8;
/// Base of the unit values of parents; the unit's number is added.
const PARENT: u64 = 1 << 40;
const MIDDLE: u64 = 1 << 41;

/// A chain without the top image, and its values.
fn parents(shape: Shape, places: &Places, count: usize) -> (Vec<CrashFile>, Vec<u64>) {
    let (mut files, mut values) = (Vec::new(), vec![0; places.units.len()]);
    let per_sector = (places.sector / UNIT) as usize;
    for number in 0..count {
        let image = new_image(shape, files.first().map(CrashFile::image).as_ref());
        files.insert(0, CrashFile::of(image));
        let disk = open(&files, false).expect("a disk");
        for (sector, units) in values.chunks_mut(per_sector).enumerate() {
            // The first parent has most sectors of most blocks, the others some sectors of some blocks.
            let block = places.units[sector * per_sector] / places.block;
            let wanted = if number == 0 {
                sector % 5 != 3 && block != 2
            } else {
                sector % 3 == 1 && block.is_multiple_of(2)
            };
            if wanted {
                let value = if number == 0 { PARENT } else { MIDDLE } + sector as u64;
                disk.write_now(places.units[sector * per_sector], &stamped(value).repeat(per_sector))
                    .expect("space");
                units.fill(value);
            }
        }
        drop(disk);
    }
    if count > 0 {
        let disk = open(&files, true).expect("a disk");
        assert!(places.values(&disk, &files).expect("contents") == values, "the parents");
    }
    (files, values)
}

/// Lives of disks of a shape. Each starts from a state after the previous crash, until enough states were checked.
fn lives(shape: Shape, depth: usize, seed: u64) {
    lives_with(shape, depth, seed, None);
}

/// As [`lives`], with a map of `units` units.
fn lives_with(shape: Shape, depth: usize, seed: u64, units: Option<u32>) {
    let wanted = (STATES * effort() as usize).div_ceil(TESTS);
    let places = Places::new(shape);
    let (below, initial) = parents(shape, &places, depth - 1);
    let first = new_image(shape, below.first().map(CrashFile::image).as_ref());
    let (mut states, mut round, mut evictions) = (0, 0, 0);
    while states < wanted {
        let (mut image, mut initial) = (first.clone(), initial.clone());
        for life in 0..4 {
            let failures = (round + life) % 2 == 1;
            let mut work = Workload::new(&places, image, &below, initial, seed << 32 | round << 8 | life);
            work.units = units;
            let mut disk = open(&work.files, false).expect("a disk");
            if let Some(units) = units {
                disk = disk.with_map_units(units);
            }
            work.run(&disk, 24, failures);
            evictions += disk.map_memory().expect("a map").evictions;
            if life % 2 == 0 {
                drop(disk);
            } else {
                // The process is killed: the writes of closing the disk do not reach the file.
                work.file().fail(Some(0));
                drop(disk);
                work.file().fail(None);
            }
            let (looked_at, last) = work.crash(2, 5);
            states += looked_at;
            let files = with(&last, &below);
            initial = places.values(&open(&files, true).expect("a disk"), &files).expect("contents");
            image = last;
        }
        round += 1;
    }
    println!("{states} states after a crash in {round} rounds, {evictions} evictions");
    assert!(units.is_none() || evictions > 10, "{evictions}");
}

const SMALL: Shape =
    Shape { size: 4 * MIB + MIB / 2, block_size: 1 << 20, sector: SectorSize::B512, fixed: false };

#[test]
fn a_dynamic_disk_survives() {
    lives(SMALL, 1, 1);
}

#[test]
fn a_dynamic_disk_of_large_sectors_and_blocks_survives() {
    lives(Shape { size: 9 * MIB, block_size: 4 << 20, sector: SectorSize::B4096, ..SMALL }, 1, 2);
}

#[test]
fn a_fixed_disk_survives() {
    lives(Shape { fixed: true, ..SMALL }, 1, 3);
}

#[test]
fn a_differencing_disk_survives() {
    lives(SMALL, 2, 4);
}

#[test]
fn a_differencing_disk_of_large_sectors_survives() {
    lives(Shape { sector: SectorSize::B4096, ..SMALL }, 2, 5);
}

#[test]
fn a_chain_of_three_survives() {
    lives(Shape { size: 5 * MIB, block_size: 2 << 20, ..SMALL }, 3, 6);
}

#[test]
fn a_differencing_disk_with_a_small_map_survives() {
    // Units for a page, and for each of the four granules that are resolved together.
    lives_with(Shape { size: 8 * MIB + MIB / 2, ..SMALL }, 2, 7, Some(5));
}

#[test]
fn a_chain_of_three_with_a_small_map_survives() {
    // Granules of 2 MiB with three places take four units. A write spans two of the disk's five granules. Zeroing more
    // may fail.
    lives_with(Shape { size: 9 * MIB, block_size: 4 << 20, ..SMALL }, 3, 8, Some(9));
}

/// Chains of two to five images, each written by several threads through a map that constantly evicts.
#[test]
fn chains_with_small_maps_hold_what_was_written() {
    let shape = Shape { size: 12 * MIB, ..SMALL };
    let (mut files, mut evictions): (Vec<CrashFile>, u64) = (Vec::new(), 0);
    let mut values = vec![0; (shape.size / UNIT) as usize];
    for depth in 1..=5 {
        files.insert(0, CrashFile::of(new_image(shape, files.first().map(CrashFile::image).as_ref())));
        let stores = stores(&files);
        let disk = open(&files, false).expect("a disk").with_map_units(16);
        evictions += hammer(&disk, &stores, &mut values, depth).evictions;
        drop(disk);
        let disk = open(&files, true).expect("a disk");
        assert_eq!(contents(&disk, &stores), values, "depth {depth}");
    }
    assert!(evictions > 100, "{evictions}");
}

/// A guest touches many granules of a large disk: the map stays within its budget, even during a flush of all of them.
#[test]
fn a_map_stays_within_its_budget() {
    let shape = Shape { size: 2 << 40, ..SMALL };
    let parent = CrashFile::of(new_image(shape, None));
    let files = [CrashFile::of(new_image(shape, Some(&parent.image()))), parent];
    let disk = open(&files, false).expect("a disk").with_map_units(60);
    let place = |number: u64| number * 7919 % (2 << 20) * MIB;
    for round in 0..2 {
        for number in 0..400 {
            disk.write_now(place(number) + round * UNIT, &stamped(number + 1)).expect("space");
        }
        disk.flush().expect("a flush");
        let memory = disk.map_memory().expect("a map");
        assert!(memory.peak <= memory.budget && memory.evictions > 0, "{memory:?}");
    }
    drop(disk);
    let disk = open(&files, true).expect("a disk");
    for number in 0..400 {
        let mut bytes = [0; 3 * UNIT as usize];
        read(&disk, &files, &mut bytes, place(number)).expect("a read");
        let found: Vec<_> = bytes.chunks_exact(UNIT as usize).map(value_of).collect();
        assert_eq!(found, [Some(number + 1), Some(number + 1), Some(0)], "{number}");
    }
}

/// A write is mapped, its block is discarded, and other blocks are allocated before the payload is written.
#[test]
fn a_late_payload_reaches_no_other_block() {
    let files = [CrashFile::of(new_image(SMALL, None))];
    let disk = open(&files, false).expect("a disk");
    disk.write_now(0, &stamped(1)).expect("space");
    disk.flush().expect("a flush");
    let place = |offset: u64| {
        disk.prepare_write(offset, UNIT).expect("space");
        let mut extents = Extents::new();
        assert_eq!(disk.map_write(offset, UNIT, &mut extents), Ok(Mapping::Ready));
        match extents.as_slice() {
            [extent] => extent.place,
            other => panic!("{other:?}"),
        }
    };
    let epochs = disk.epochs().expect("a disk that is written");
    let (mut queue, mut other) = (epochs.enter(), epochs.enter());
    let generation = queue.begin(epochs);
    let late = place(0);
    let Place::File { offset: old, .. } = late else { panic!("{late:?}") };
    disk.discard(0, MIB).expect("a discard");
    for block in [0, 1, 2] {
        disk.flush().expect("a flush");
        // Requests of another queue begin and end.
        let generation = other.begin(epochs);
        assert_ne!(place(block * MIB), late, "block {block}");
        other.end(generation);
    }
    files[0].write_at(&stamped(2), old).expect("space");
    disk.written(0, UNIT);
    queue.end(generation);
    for block in [0, 1, 2] {
        let mut bytes = [1; UNIT as usize];
        read(&disk, &files, &mut bytes, block * MIB).expect("a read");
        assert_eq!(value_of(&bytes), Some(0), "block {block}");
    }
    // Another block gets the space, zeroed.
    disk.flush().expect("a flush");
    assert_eq!(place(3 * MIB), late);
    let mut bytes = [1; UNIT as usize];
    read(&disk, &files, &mut bytes, 3 * MIB).expect("a read");
    assert_eq!(value_of(&bytes), Some(0));
}

/// The changes exceed one log entry: a block must not be partially present before its chunk has a bitmap block.
#[test]
fn changes_of_several_entries_come_in_an_order_that_can_be_read() {
    const SIZE: u64 = 2 << 30;
    let shape = Shape { size: SIZE, ..SMALL };
    let parent = CrashFile::of(new_image(shape, None));
    let base = new_image(shape, Some(&parent.image()));
    let files = [CrashFile::of(base.clone()), parent];
    // Each bitmap takes a sector, and all together nearly one entry. The BAT takes its last sectors, and another entry.
    let blocks = || (0..123).map(|number| number * 16 * MIB);
    let disk = open(&files, false).expect("a disk");
    for at in blocks() {
        disk.write_now(at, &stamped(1)).expect("space");
    }
    let begun = files[0].len_of_log();
    disk.flush().expect("a flush");
    let mut cut_before = 0;
    let mut looked_at = 0;
    let pick = |cut: usize, open: usize| {
        let first = cut >= begun && std::mem::replace(&mut cut_before, cut) != cut;
        first.then(|| vec![true; open])
    };
    files[0].all_states(&base, pick, |cut, image| {
        looked_at += 1;
        let files = [CrashFile::of(image), files[1].clone()];
        let disk = open(&files, true).expect("a disk");
        for at in blocks().step_by(32) {
            let mut bytes = [0; UNIT as usize];
            read(&disk, &files, &mut bytes, at).unwrap_or_else(|why| panic!("cut at {cut}, {at:#x}: {why}"));
            assert!(matches!(value_of(&bytes), Some(0 | 1)), "cut at {cut}, {at:#x}");
        }
    });
    assert!(looked_at > 126, "{looked_at}");
}

/// The memory for blocks that a guest frees without a flush is bounded.
#[test]
fn many_freed_blocks_do_not_wait_for_a_flush() {
    let shape = Shape { size: 300 << 30, ..SMALL };
    let parent = CrashFile::of(new_image(shape, None));
    let files = [CrashFile::of(new_image(shape, Some(&parent.image()))), parent];
    let disk = open(&files, false).expect("a disk");
    disk.discard(0, shape.size).expect("a discard");
    let table = opened(&files[0], false).expect("metadata");
    let mut freed = 0u64;
    super::scan::scan(&*table.store, &table.layout, |_, _| freed += 1).expect("a table");
    assert!(freed >= (300 << 10) - (2 << 16), "{freed}");
    let mut bytes = [1; UNIT as usize];
    read(&disk, &files, &mut bytes, shape.size - UNIT).expect("a read");
    assert_eq!(value_of(&bytes), Some(0));
}
