//! Tools that change an image in place: their results, and that a power failure at any moment leaves the old or the new
//! disk.

use std::sync::Arc;

use uuid::Uuid;

use super::compact::compact;
use super::edit::Editor;
use super::journal::{DataGuid, Sectors};
use super::layout::{Entry, Slot};
use super::merge::zeros;
use super::resize::resize;
use super::scan::scan;
use super::spec::item;
use super::testing::{Shape, UNIT, check_in, new_image, open, opened, read};
use crate::contract::info::SectorSize;
use crate::formats::copy::content::Content;
use crate::formats::copy::overlay::Overlay;
use crate::formats::findings::Severity;
use crate::host::crash::{CrashFile, Image, stamped, stores};
use crate::host::store::Store;
use crate::map::format::Format;
use crate::queue::conformance::Random;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
/// Length of the runs that are written and checked.
const RUN: u64 = 4 * UNIT;
const PLACES: [u64; 3] = [0, MIB / 2, MIB - RUN];

fn shape() -> Shape {
    Shape { size: SIZE, block_size: MIB as u32, sector: SectorSize::B512, fixed: false }
}

fn runs(size: u64) -> impl Iterator<Item = u64> {
    (0..size / MIB).flat_map(|block| PLACES.map(|place| block * MIB + place))
}

/// The values of the runs up to `size`.
fn contents(files: &[CrashFile], size: u64) -> Result<Vec<Vec<u8>>, String> {
    let disk = open(files, true)?;
    let run = |at| {
        let mut data = vec![0; RUN as usize];
        read(&disk, files, &mut data, at).map_err(|error| error.to_string()).map(|()| data)
    };
    runs(size).map(run).collect()
}

/// A disk with some blocks written, some trimmed, and some written again.
fn used(parent: Option<&CrashFile>, seed: u64) -> Image {
    let below: Vec<CrashFile> = parent.into_iter().cloned().collect();
    let file = CrashFile::of(new_image(shape(), parent.map(CrashFile::image).as_ref()));
    let files = [vec![file.clone()], below].concat();
    let disk = open(&files, false).expect("a disk");
    let mut random = Random(seed);
    for at in runs(SIZE) {
        let data = stamped(seed << 32 | at).repeat((RUN / UNIT) as usize);
        match random.below(6) {
            0 => disk.discard(at / MIB * MIB, MIB).expect("a discard"),
            1 => disk.write_zeroes(at, RUN, true).expect("zeros"),
            2 => {}
            _ => disk.write_now(at, &data).expect("a write"),
        }
        if random.below(4) == 0 {
            disk.flush().expect("a flush");
        }
    }
    drop(disk);
    file.image()
}

/// Some of the states after a crash of `file`, which began as `base`, at each cut.
fn states(file: &CrashFile, base: &Image, mut visit: impl FnMut(usize, Image)) -> usize {
    let (mut random, mut at_cut, mut left, mut count) = (Random(3), usize::MAX, 0, 0);
    let pick = |cut: usize, open: usize| {
        if at_cut != cut {
            (at_cut, left) = (cut, 4);
        }
        let survivors = match left {
            0 => return None,
            4 => vec![true; open],
            3 => vec![false; open],
            _ => (0..open).map(|_| random.below(2) == 1).collect(),
        };
        left -= 1;
        Some(survivors)
    };
    file.all_states(base, pick, |cut, image| {
        count += 1;
        visit(cut, image);
    });
    count
}

fn no_damage(file: &CrashFile, cut: usize) {
    let report = check_in(Arc::new(file.clone()), false).expect("a file");
    assert!(report.worst() < Some(Severity::Damage), "cut at {cut}: {:?}", report.findings);
}

/// Run a tool, and cut the file after every change: the disk opens, has no damage, and has its data.
fn crash(base: &Image, below: &[CrashFile], size: u64, tool: impl Fn(&CrashFile)) -> (CrashFile, usize) {
    let with = |file: &CrashFile| [vec![file.clone()], below.to_vec()].concat();
    let expected = contents(&with(&CrashFile::of(base.clone())), size).expect("a disk");
    let file = CrashFile::of(base.clone());
    tool(&file);
    let count = states(&file, base, |cut, image| {
        let left = CrashFile::of(image);
        no_damage(&left, cut);
        let found = contents(&with(&left), size).unwrap_or_else(|why| panic!("cut at {cut}: {why}"));
        assert!(found == expected, "cut at {cut}: it holds something else");
        if cut % 64 == 5 {
            // The tool can be repeated.
            tool(&left);
            assert!(contents(&with(&left), size).expect("a disk") == expected, "cut at {cut}, done again");
        }
    });
    no_damage(&file, usize::MAX);
    assert!(contents(&with(&file), size).expect("a disk") == expected, "in the end");
    assert!(opened(&file, true).expect("a disk").headers.log_guid().is_nil(), "it is not closed");
    (file, count)
}

fn size_of(file: &CrashFile) -> u64 {
    opened(file, false).expect("a disk").layout.size
}

#[test]
fn resizing_leaves_the_old_size_or_the_new_one() {
    let mut count = 0;
    for seed in [1, 2] {
        let base = used(None, seed);
        // In place; then with a table that has to move; then shrink.
        for size in [SIZE + 3 * MIB / 2, 200 << 30] {
            let grow = |file: &CrashFile| resize(Arc::new(file.clone()), size, false).expect("growing");
            let (grown, states) = crash(&base, &[], SIZE, grow);
            assert_eq!(size_of(&grown), size);
            count += states;
            let shrink = |file: &CrashFile| resize(Arc::new(file.clone()), SIZE, true).expect("shrinking");
            let (shrunk, states) = crash(&grown.image(), &[], SIZE, shrink);
            assert_eq!(size_of(&shrunk), SIZE);
            count += states;
        }
    }
    println!("{count} states after a crash");
    assert!(count > 1_000, "{count}");
}

#[test]
fn what_is_added_reads_as_zeros_and_data_are_not_cut_off() {
    // The last block has bytes beyond the end of the disk.
    let odd = Shape { size: SIZE - MIB / 2, ..shape() };
    let file = CrashFile::of(new_image(odd, None));
    let disk = open(std::slice::from_ref(&file), false).expect("a disk");
    disk.write_now(SIZE - MIB / 2 - UNIT, &stamped(7)).expect("a write");
    drop(disk);
    let mut place = 0;
    let metadata = opened(&file, false).expect("a disk");
    scan(&file, &metadata.layout, |_, entry| place = entry.offset()).expect("a BAT");
    file.write_at(&stamped(9), place + MIB / 2).expect("a file");
    resize(Arc::new(file.clone()), SIZE, false).expect("growing");
    let disk = open(std::slice::from_ref(&file), true).expect("a disk");
    let mut unit = [1; UNIT as usize];
    read(&disk, std::slice::from_ref(&file), &mut unit, SIZE - MIB / 2).expect("a read");
    assert_eq!(unit, [0; UNIT as usize]);
    let refused = resize(Arc::new(file.clone()), SIZE - MIB, true).expect_err("data").to_string();
    assert!(refused.contains("data are there"), "{refused}");
    assert_eq!(size_of(&file), SIZE);
    resize(Arc::new(file.clone()), SIZE - MIB / 2, true).expect("shrinking");
    let refused = resize(Arc::new(file.clone()), MIB, false).expect_err("smaller").to_string();
    assert!(refused.contains("--shrink"), "{refused}");
}

#[test]
fn compacting_changes_nothing_through_any_crash() {
    let mut count = 0;
    let parent = CrashFile::of(used(None, 5));
    // A disk whose table was moved, and is larger than needed.
    let grown = CrashFile::of(used(None, 7));
    resize(Arc::new(grown.clone()), 200 << 30, false).expect("growing");
    resize(Arc::new(grown.clone()), SIZE, true).expect("shrinking");
    let tool = |file: &CrashFile| {
        compact(Arc::new(file.clone()), |_, _| true).expect("compacting");
    };
    let (file, states) = crash(&grown.image(), &[], SIZE, tool);
    count += states;
    assert_eq!(check_in(Arc::new(file.clone()), false).expect("a file").leaked, 0);
    assert!(file.image().len() < (4 + SIZE / MIB) * MIB + 1);
    for (seed, below) in [(3, vec![]), (4, vec![parent.clone()]), (6, vec![parent])] {
        let base = used(below.first(), seed);
        let (before, stored) = (base.len(), CrashFile::of(base.clone()).stored());
        let tool = |file: &CrashFile| {
            compact(Arc::new(file.clone()), |_, _| true).expect("compacting");
        };
        let (file, states) = crash(&base, &below, SIZE, tool);
        count += states;
        assert!(file.image().len() <= before && file.stored() <= stored);
        let report = check_in(Arc::new(file.clone()), false).expect("a file");
        assert_eq!((report.worst(), report.leaked), (None, 0), "{seed}: {:?}", report.findings);
    }
    println!("{count} states after a crash");
    assert!(count > 500, "{count}");
}

/// Blocks with holes, and a table with holes, are moved to the place of blocks that no entry refers to, and whose data are still there.
#[test]
fn moved_blocks_keep_their_holes_through_any_crash() {
    const LOST: u64 = 2;
    let parent = CrashFile::of(used(None, 5));
    for below in [vec![], vec![parent]] {
        let image = below.first().map(CrashFile::image);
        let file = CrashFile::of(new_image(shape(), image.as_ref()));
        let files = [vec![file.clone()], below.clone()].concat();
        let disk = open(&files, false).expect("a disk");
        for block in 0..2 * LOST {
            let units = if block < LOST { MIB } else { RUN } / UNIT;
            disk.write_now(block * MIB, &stamped(block << 20 | 7).repeat(units as usize)).expect("a write");
        }
        drop(disk);
        // The table is moved behind the blocks, and is larger than needed.
        resize(Arc::new(file.clone()), 200 << 30, false).expect("growing");
        resize(Arc::new(file.clone()), SIZE, true).expect("shrinking");
        let bat = opened(&file, false).expect("a disk").layout.bat.offset;
        let mut entries = vec![0; UNIT as usize];
        file.read_at(&mut entries, bat).expect("a file");
        entries[..8 * LOST as usize].fill(0);
        file.write_at(&entries, bat).expect("a file");
        let stored = file.stored();
        let compact = |file: &CrashFile| {
            compact(Arc::new(file.clone()), |_, _| true).expect("compacting");
        };
        let (file, _) = crash(&file.image(), &below, SIZE, compact);
        assert!(stored - file.stored() >= LOST * MIB, "{stored} {}", file.stored());
    }
}

/// The child records the next data write GUID of its parent, then is merged into the parent. After a cut anywhere, the
/// child opens over the parent, and reads as before.
#[test]
fn merging_can_be_done_again_after_any_crash() {
    const NEXT: Uuid = Uuid::from_u128(0xABCD);
    let parent = used(None, 11);
    let child = used(Some(&CrashFile::of(parent.clone())), 12);
    let now = opened(&CrashFile::of(parent.clone()), false).expect("a disk").headers.data_write_guid();
    let announce = |file: &CrashFile| {
        let editor = Editor::open(Arc::new(file.clone())).expect("a disk");
        let metadata = &editor.opened.metadata;
        let locator = metadata.locator.as_ref().expect("a parent").linked(now, Some(NEXT));
        let mut sectors = Sectors::default();
        let locator = locator.encode().expect("a locator");
        metadata.change(&*editor.store, &mut sectors, item::PARENT_LOCATOR, &locator).expect("space");
        editor.commit_alone(sectors, DataGuid::Unchanged).expect("a log");
    };
    let linked = |child: &CrashFile, parent: &CrashFile| {
        let child = opened(child, false).expect("a child");
        let found = opened(parent, false).expect("a parent").headers.data_write_guid();
        let (one, two) = child.metadata.locator.expect("a parent").linkages();
        found == one || Some(found) == two
    };
    let below = CrashFile::of(parent.clone());
    let (child, announced) = crash(&child, std::slice::from_ref(&below), SIZE, announce);
    assert!(linked(&child, &below));

    let expected = contents(&[child.clone(), below], SIZE).expect("a chain");
    let merge = |file: &CrashFile| {
        let disk = open(std::slice::from_ref(file), false).expect("a disk").with_identity(NEXT);
        let above = open(std::slice::from_ref(&child), true).expect("a disk");
        let [over, under] = [&child, file].map(|file| stores([file]));
        let mut overlay = Overlay::new(Content::over(&above, &over), Content::over(&disk, &under), true);
        overlay.write(0..SIZE, |_| true).expect("a merge");
        let image = opened(&child, false).expect("a child");
        for run in zeros(&image).flat_map(|runs| runs.expect("a BAT")) {
            disk.write_zeroes(run.start, run.end - run.start, true).expect("zeros");
        }
        disk.close().expect("a flush");
    };
    let file = CrashFile::of(parent.clone());
    merge(&file);
    let merged = states(&file, &parent, |cut, image| {
        let left = CrashFile::of(image);
        no_damage(&left, cut);
        assert!(linked(&child, &left), "cut at {cut}: the child does not know its parent");
        let found = contents(&[child.clone(), left.clone()], SIZE).expect("a chain");
        assert!(found == expected, "cut at {cut}: the child reads otherwise");
        if cut % 64 == 7 {
            merge(&left);
            assert!(contents(&[left], SIZE).expect("a disk") == expected, "cut at {cut}, merged again");
        }
    });
    assert!(contents(std::slice::from_ref(&file), SIZE).expect("a disk") == expected, "in the end");
    println!("{announced} and {merged} states after a crash");
    assert!(announced > 50 && merged > 300, "{announced}, {merged}");
}

/// The report names what the repair removes. The repaired image is good.
#[test]
fn repairs() {
    let base = used(None, 21);
    let bat = opened(&CrashFile::of(base.clone()), false).expect("a disk").layout.bat.offset;
    let damages = [
        ("header", 64 << 10),
        ("header", 128 << 10),
        ("region table", 192 << 10),
        ("region table", 256 << 10),
        ("BAT entry", bat),
    ];
    for (field, at) in damages {
        let file = CrashFile::of(base.clone());
        file.write_at(&[0xEE; 512], at).expect("a file");
        let found = check_in(Arc::new(file.clone()), false).expect("a file");
        assert!(found.findings.iter().any(|finding| finding.field.starts_with(field)), "{field}: {found:?}");
        let lossless = field != "BAT entry";
        assert_eq!(found.worst() < Some(Severity::Damage), lossless, "{field}: {found:?}");
        check_in(Arc::new(file.clone()), true).expect("a file");
        let left = check_in(Arc::new(file.clone()), false).expect("a file");
        assert!(left.worst() <= Some(Severity::Leak), "{field}: {:?}", left.findings);
        let files = std::slice::from_ref(&file);
        let found = contents(files, SIZE).expect("a disk");
        if lossless {
            assert!(found == contents(&[CrashFile::of(base.clone())], SIZE).expect("a disk"), "{field}");
        }
    }
}

/// An entry with two harmless deviations: reserved bits, and an offset without a block.
#[test]
fn one_repair_removes_all_deviations_of_an_entry() {
    let shape = Shape { size: SIZE, block_size: MIB as u32, sector: SectorSize::B512, fixed: false };
    let file = CrashFile::of(new_image(shape, None));
    let at = opened(&file, false).expect("a disk").layout.bat.offset;
    let mut sector = vec![0; 512];
    file.read_at(&mut sector, at).expect("a file");
    sector[..8].copy_from_slice(&(5u64 << 20 | 7 << 3).to_le_bytes());
    file.write_at(&sector, at).expect("a file");
    let repaired = check_in(Arc::new(file.clone()), true).expect("a file");
    assert_eq!(repaired.findings.len(), 2, "{repaired:?}");
    assert_eq!(check_in(Arc::new(file), true).expect("a file").findings, []);
}

/// Every other block is one of zeros, as in an image made to use up memory: the runs come in batches.
#[test]
fn blocks_of_zeros_are_found_a_part_at_a_time() {
    const BLOCKS: u64 = 200_000;
    let shape = Shape { size: BLOCKS * MIB, block_size: MIB as u32, sector: SectorSize::B512, fixed: false };
    let parent = new_image(shape, None);
    let child = CrashFile::of(new_image(shape, Some(&parent)));
    let layout = opened(&child, false).expect("a child").layout;
    let entry = |index| match layout.slot(index) {
        Slot::Payload(block) if block % 2 == 0 => Entry::ZERO,
        _ => Entry::NOT_PRESENT,
    };
    let mut table: Vec<u8> = (0..layout.entries()).flat_map(|index| entry(index).0.to_le_bytes()).collect();
    table.resize(table.len().next_multiple_of(512), 0);
    child.write_at(&table, layout.bat.offset).expect("a file");
    let image = opened(&child, false).expect("a child");
    let (mut next, mut most) = (0, 0);
    for runs in zeros(&image) {
        let runs = runs.expect("a BAT");
        most = most.max(runs.len());
        for run in runs {
            assert_eq!(run, next * MIB..(next + 1) * MIB);
            next += 2;
        }
    }
    assert_eq!(next, BLOCKS);
    assert!(most <= 32 << 10, "{most}");
}
