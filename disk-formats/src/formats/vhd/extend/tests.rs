use zerocopy::IntoBytes;

use super::super::check::check_in;
use super::super::create;
use super::super::footer::Subformat;
use super::super::layer::read_bat;
use super::super::resize::resize_in;
use super::super::testing::{SIZE, layout_of, new_image, open, parent};
use super::super::tools_tests::{crash, same, use_image, used};
use super::*;
use crate::formats::findings::Severity;
use crate::host::crash::{CrashFile, stamped};
use crate::queue::conformance::Random;

/// An image without blocks: perhaps with locators behind the table, perhaps with unused bytes before the first block.
fn empty(random: &mut Random, subformat: Subformat, block_size: u32) -> CrashFile {
    let file = CrashFile::new(new_image(subformat, block_size));
    let (found, ..) = layout_of(&file).unwrap();
    let path = |length: usize| NewLocator { platform_code: *b"W2ru", path: vec![b'x'; length] };
    let locators = [path(40), path(1 + random.below(2000) as usize)];
    let locators: &[NewLocator] = if subformat == Subformat::Differencing { &locators } else { &[] };
    let header = create::header(SIZE, block_size);
    create::write_sparse(&file, found.footer.as_bytes(), header, locators).unwrap();
    if random.below(2) == 0 {
        let footer = file.len().unwrap() - SECTOR;
        file.write_at(&[0; 512], footer).unwrap();
        file.write_at(found.footer.as_bytes(), footer + SECTOR * random.below(9)).unwrap();
    }
    file
}

/// Where the table is, its entries in use, and whether all blocks lie behind it.
fn table(file: &CrashFile) -> (u64, u32, bool) {
    let (_, _, layout) = layout_of(file).unwrap();
    let end = layout.bat + Layout::bat_bytes(layout.entries);
    let entries = read_bat(file, &layout, 0, u64::from(layout.entries)).unwrap();
    let behind =
        entries.iter().filter(|entry| **entry != UNALLOCATED).all(|entry| Layout::bitmap_at(*entry) >= end);
    (layout.bat, layout.entries, behind)
}

/// Random blocks in random order, each kind of disk.
#[test]
fn a_table_grows_in_its_place_through_any_crash() {
    let (base, mut states) = (parent(), 0);
    for seed in 0..12 {
        let mut random = Random(seed * 2 + 1);
        let subformat = if seed % 2 == 0 { Subformat::Dynamic } else { Subformat::Differencing };
        let block_size = 512 << (seed % 3 * 2);
        let (image, values) = use_image(empty(&mut random, subformat, block_size), seed + 40);
        let over = (subformat == Subformat::Differencing).then_some(&base);
        // 16 KiB, and up to 64 KiB, of table.
        let (factor, odd) = if block_size == 512 { (16 + random.below(48), 0) } else { (64, 1) };
        let size = factor * SIZE + odd * SECTOR;
        let resize = |file: &CrashFile| resize_in(file, size, false).expect("resizing");
        states += crash(&image, over, resize, |left| {
            let (known, new) = left.split_at(values.len().min(left.len()));
            same(known, &values)
                && [0, (size - SIZE) / SECTOR].contains(&(new.len() as u64))
                && new.iter().all(|value| *value == Some(0))
        });
        let file = CrashFile::new(image);
        resize(&file);
        let entries = size.div_ceil(u64::from(block_size)) as u32;
        assert_eq!(table(&file), (1536, entries, true), "seed {seed}");
        // It has not used up its place: it can grow again.
        resize_in(&file, 4 * size, false).expect("resizing");
        assert_eq!(
            table(&file),
            (1536, (4 * size).div_ceil(u64::from(block_size)) as u32, true),
            "seed {seed}"
        );
        // What is left of the space of a block that has moved is unused.
        let report = check_in(&file, false).expect("a file");
        assert!(report.worst() <= Some(Severity::Leak), "seed {seed}: {:?}", report.findings);
        let disk = open(&file, over, true).expect("a disk");
        assert!(same(&disk.values().expect("contents")[..values.len()], &values), "seed {seed}");
    }
    println!("{states} states after a crash");
}

/// A failure of any write leaves an image with the old or the new size, on which the resize can be run again. What an attempt has left behind
/// the table is not taken for unknown data, unless smaller blocks than Hyper-V's have left gaps in which there may be some.
#[test]
fn a_failed_write_leaves_the_image() {
    for (block_size, factor) in [(512, 64), (16 << 10, 256), (16 << 10, 32)] {
        let (image, values) = used(Subformat::Dynamic, block_size, 3);
        let mut failures = 0;
        for fails in 0.. {
            let file = CrashFile::new(image.clone());
            file.fail(Some(fails));
            let done = resize_in(&file, factor * SIZE, false);
            file.fail(None);
            let report = check_in(&file, false).expect("a file");
            assert!(report.worst() <= Some(Severity::Redundancy), "{:?}", report.findings);
            resize_in(&file, factor * SIZE, false).unwrap_or_else(|error| panic!("after {fails}: {error}"));
            if block_size > 512 {
                assert_eq!(table(&file).0, 1536, "after {fails}");
            }
            let left = open(&file, None, true).expect("a disk").values().expect("contents");
            let size = left.len() as u64 * SECTOR;
            assert!(size == factor * SIZE && same(&left[..values.len()], &values), "after {fails}");
            if done.is_ok() {
                break;
            }
            failures += 1;
        }
        assert!(failures > 5, "{failures}");
    }
}

/// Data between the table and the first block that are not of this program stay, and so the table is put behind the blocks.
#[test]
fn unknown_data_behind_the_table_stay() {
    let file = CrashFile::new(new_image(Subformat::Dynamic, 4096));
    let footer = layout_of(&file).unwrap().0.footer;
    let at = file.len().unwrap() - SECTOR;
    file.write_at(&stamped(77), at).unwrap();
    file.write_at(footer.as_bytes(), at + SECTOR).unwrap();
    let (image, values) = use_image(file, 5);
    let file = CrashFile::new(image);
    resize_in(&file, 64 * SIZE, false).unwrap();
    let (bat, entries, _) = table(&file);
    assert!(bat > 1536 && entries == 2048, "{bat}");
    let mut unknown = [0; 512];
    file.read_at(&mut unknown, at).unwrap();
    assert_eq!(unknown, stamped(77));
    let left = open(&file, None, true).expect("a disk").values().expect("contents");
    assert!(same(&left[..values.len()], &values));
}
