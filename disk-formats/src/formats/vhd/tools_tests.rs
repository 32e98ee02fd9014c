//! Tools that change an image in place: their results, and that a power failure at any moment leaves the old or the new
//! disk.

use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::check::check_in;
use super::compact::compact_in;
use super::edit::Editor;
use super::fixed::FixedVhd;
use super::footer::{self, Subformat};
use super::layer::Layer;
use super::layout::{self, Layout};
use super::locator::NewLocator;
use super::merge::announce;
use super::resize::{check_resize, resize_in};
use super::spec::SECTOR;
use super::testing::{SECTORS, SIZE, disk_info, layer, layout_of, new_image, open, open_over, parent};
use crate::contract::error::IoError;
use crate::formats::copy::content::Content;
use crate::formats::copy::overlay::Overlay;
use crate::formats::copy::rebase_copy::RebaseCopy;
use crate::formats::findings::Severity;
use crate::host::backing::{Access, BackingFile};
use crate::host::crash::{CrashFile, stamped, stores};
use crate::host::faults::{Call, Fault, Host};
use crate::host::store::Store;
use crate::map::extent::Extents;
use crate::map::format::{Format, Mapping};
use crate::queue::conformance::Random;

/// A disk with some blocks written, some with zeros, some twice.
pub(super) fn used(subformat: Subformat, block_size: u32, seed: u64) -> (Vec<u8>, Vec<u64>) {
    use_image(CrashFile::new(new_image(subformat, block_size)), seed)
}

/// The same of an image without blocks.
pub(super) fn use_image(file: CrashFile, seed: u64) -> (Vec<u8>, Vec<u64>) {
    let subformat = layout_of(&file).expect("an image").0.subformat;
    let base = parent();
    let over = (subformat == Subformat::Differencing).then_some(&base);
    let disk = open(&file, over, false).expect("a disk");
    let mut random = Random(seed);
    for round in 0..24 {
        let first = random.below(SECTORS);
        let count = 1 + random.below((SECTORS - first).min(12));
        let zeros = round % 3 == 0;
        let value = |sector: u64| if zeros { 0 } else { round << 20 | sector };
        let data: Vec<u8> = (first..first + count).flat_map(|sector| stamped(value(sector))).collect();
        disk.write_now(first * SECTOR, &data).expect("a write");
    }
    disk.flush().expect("a flush");
    let values = disk.values().expect("contents").into_iter().map(|value| value.expect("a value")).collect();
    drop(disk);
    (file.bytes(), values)
}

/// Run `tool` on an image, and cut the file after every change. `good` checks the content of each state.
pub(super) fn crash(
    image: &[u8],
    over: Option<&CrashFile>,
    tool: impl Fn(&CrashFile),
    good: impl Fn(&[Option<u64>]) -> bool,
) -> usize {
    let file = CrashFile::new(image.to_vec());
    tool(&file);
    let (mut states, mut random) = (0, Random(9));
    for cut in 0..=file.len_of_log() {
        let total = 1u64 << file.open_changes(cut).min(4);
        let mut number = 0;
        let pick = |changes: usize| {
            number += 1;
            let survives = |at: usize| match changes <= 4 {
                true => (number - 1) >> at & 1 == 1,
                false => number == 1 || number > 2 && random.below(2) == 1,
            };
            (number <= total).then(|| (0..changes).map(survives).collect())
        };
        file.after_crash(image, cut, pick, |left| {
            states += 1;
            let left = CrashFile::new(left);
            let report = check_in(&left, false).expect("a file");
            assert!(report.worst() != Some(Severity::Damage), "cut at {cut}: {:?}", report.findings);
            let disk = open(&left, over, true).unwrap_or_else(|why| panic!("cut at {cut}: {why}"));
            assert!(good(&disk.values().expect("contents")), "cut at {cut}: other contents");
        });
    }
    let report = check_in(&CrashFile::new(file.bytes()), false).expect("a file");
    assert!(report.worst() <= Some(Severity::Leak), "{:?}", report.findings);
    states
}

pub(super) fn same(values: &[Option<u64>], expected: &[u64]) -> bool {
    values.len() == expected.len()
        && values.iter().zip(expected).all(|(value, expected)| *value == Some(*expected))
}

const KINDS: [(Subformat, u32); 4] = [
    (Subformat::Dynamic, 4096),
    (Subformat::Dynamic, 16 << 10),
    (Subformat::Differencing, 4096),
    (Subformat::Differencing, 32 << 10),
];

#[test]
fn compacting_keeps_the_contents_through_any_crash() {
    let base = parent();
    let mut states = 0;
    for (number, (subformat, block_size)) in KINDS.into_iter().enumerate() {
        let (image, values) = used(subformat, block_size, 31 + number as u64);
        let over = (subformat == Subformat::Differencing).then_some(&base);
        let compact = |file: &CrashFile| {
            let stored = file.stored();
            let done = compact_in(file, |_, _| true).expect("compacting");
            assert!(done.after <= done.before && file.stored() <= stored, "{done:?}");
        };
        states += crash(&image, over, compact, |left| same(left, &values));
        // A second run changes nothing.
        let file = CrashFile::new(image);
        compact(&file);
        let again = compact_in(&file, |_, _| true).expect("compacting");
        assert_eq!((again.released, again.moved, again.before), (0, 0, again.after));
    }
    println!("{states} states after a crash");
}

/// Blocks with holes are moved to the places of blocks that no entry refers to, and whose data are still there.
#[test]
fn moved_blocks_keep_their_holes_through_any_crash() {
    const LOST: u64 = 2;
    let base = parent();
    for subformat in [Subformat::Dynamic, Subformat::Differencing] {
        let over = (subformat == Subformat::Differencing).then_some(&base);
        let file = CrashFile::new(new_image(subformat, 16 << 10));
        let disk = open(&file, over, false).expect("a disk");
        for block in 0..2 * LOST {
            let data: Vec<u8> = (0..32).flat_map(|sector| stamped(block << 20 | 1 << 16 | sector)).collect();
            // The last blocks have 4,096 bytes of data each.
            let (at, len) = if block < LOST { (0, data.len()) } else { (4096, 4096) };
            disk.write_now((block << 14) + at, &data[..len]).expect("a write");
        }
        drop(disk);
        let (_, _, layout) = layout_of(&file).expect("a layout");
        let mut entries = vec![0; SECTOR as usize];
        file.read_at(&mut entries, layout.bat).expect("a file");
        entries[..4 * LOST as usize].fill(0xFF);
        file.write_at(&entries, layout.bat).expect("a file");
        let disk = open(&file, over, true).expect("a disk");
        let values: Vec<u64> = disk.values().expect("contents").into_iter().flatten().collect();
        drop(disk);
        let compact = |file: &CrashFile| {
            let stored = file.stored();
            assert_eq!(compact_in(file, |_, _| true).expect("compacting").moved, LOST);
            // Without the data of the lost blocks.
            assert!(stored - file.stored() >= LOST << 14, "{stored} {}", file.stored());
        };
        crash(&file.bytes(), over, compact, |left| same(left, &values));
    }
}

#[test]
fn blocks_of_zeros_go_and_the_last_blocks_fill_their_place() {
    let file = CrashFile::new(new_image(Subformat::Dynamic, 4096));
    let disk = open(&file, None, false).expect("a disk");
    for block in 0..8u64 {
        let value = if block % 2 == 0 { 0 } else { 7 };
        // Written first, so that the zeros are stored, too.
        disk.write_now(block * 4096, &stamped(1).repeat(8)).expect("a write");
        disk.write_now(block * 4096, &stamped(value).repeat(8)).expect("a write");
    }
    disk.flush().expect("a flush");
    drop(disk);
    let before = file.bytes().len();
    let done = compact_in(&file, |_, _| true).expect("compacting");
    assert_eq!((done.released, done.moved), (4, 2));
    assert_eq!(before - file.bytes().len(), 4 * 8192, "bitmap, padding and data of four blocks");
    let report = check_in(&file, false).expect("a file");
    assert_eq!((report.allocated_blocks, report.leaked, report.findings.len()), (4, 0, 0));
}

#[test]
fn resizing_keeps_the_contents_through_any_crash() {
    let base = parent();
    let mut states = 0;
    for (number, (subformat, block_size)) in KINDS.into_iter().enumerate() {
        let (image, values) = used(subformat, block_size, 77 + number as u64);
        let over = (subformat == Subformat::Differencing).then_some(&base);
        for size in [SIZE + 512, SIZE + 4096, 4 * SIZE, 64 * SIZE] {
            let resize = |file: &CrashFile| resize_in(file, size, false).expect("resizing");
            let grown = (size / SECTOR) as usize;
            states += crash(&image, over, resize, |left| {
                let (known, new) = left.split_at(values.len().min(left.len()));
                same(known, &values)
                    && [0, grown - values.len()].contains(&new.len())
                    && new.iter().all(|value| *value == Some(0))
            });
            // Shrink again: the added range has no data.
            let file = CrashFile::new(image.clone());
            resize(&file);
            let refused = resize_in(&file, SIZE, false).expect_err("a smaller size").to_string();
            assert!(refused.contains("--shrink"), "{refused}");
            resize_in(&file, SIZE, true).expect("shrinking");
            let disk = open(&file, over, true).expect("a disk");
            assert!(same(&disk.values().expect("contents"), &values));
        }
    }
    println!("{states} states after a crash");
}

#[test]
fn a_tail_with_data_is_not_cut_off() {
    let file = CrashFile::new(new_image(Subformat::Dynamic, 4096));
    let disk = open(&file, None, false).expect("a disk");
    disk.write_now(100 * SECTOR, &stamped(5)).expect("a write");
    drop(disk);
    let refused = resize_in(&file, 100 * SECTOR, true).expect_err("data in the tail").to_string();
    assert!(refused.contains("expected at least 51712 bytes: there is data"), "{refused}");
    resize_in(&file, 101 * SECTOR, true).expect("shrinking");
    let disk = open(&file, None, true).expect("a disk");
    assert_eq!(disk.values().expect("contents").last(), Some(&Some(5)));
}

#[test]
fn a_new_parent_is_named_or_the_old_one() {
    let (image, values) = used(Subformat::Differencing, 4096, 5);
    let base = parent();
    let rebase = |file: &CrashFile| {
        let mut editor = Editor::open(file).expect("a disk");
        let mut header = editor.sparse.as_ref().expect("a header").header;
        header.parent_unique_id = [0xAB; 16];
        let path = |length: usize| NewLocator { platform_code: *b"W2ru", path: vec![b'x'; length] };
        editor.switch(header, None, Some(&[path(40), path(1400)])).expect("a switch");
    };
    let states = crash(&image, Some(&base), rebase, |left| same(left, &values));
    println!("{states} states after a crash");
    let file = CrashFile::new(image);
    rebase(&file);
    let (found, header, _) = layout_of(&file).expect("a layout");
    assert_eq!((found.footer.data_offset.get(), header.parent_unique_id), (512, [0xAB; 16]));
    assert_eq!(header.parent_locators[1].data_length.get(), 1400);
}

/// A merge is interrupted: read through the child, all data are as before. Returns the number of bytes cloned.
fn merge_and_crash(parent_image: &[u8], child_image: Vec<u8>) -> u64 {
    let child = CrashFile::new(child_image);
    let chain = |parent: &CrashFile| {
        let (_, _, layout) = layout_of(parent).expect("a layout");
        let over: Layer = layer(parent, layout);
        open_over(&child, Some(over), true).expect("a chain").values().expect("contents")
    };
    let expected = chain(&CrashFile::new(parent_image.to_vec()));
    let merge = |file: &CrashFile| {
        let disk = open(file, None, false).expect("a disk");
        let above = open(&child, None, true).expect("a disk");
        let [child, file] = [&child, file].map(|file| stores([file]));
        let mut overlay = Overlay::new(Content::over(&above, &child), Content::over(&disk, &file), true);
        overlay.write(0..SIZE, |_| true).expect("a merge");
        disk.flush().expect("a flush");
        overlay.done()
    };
    let file = CrashFile::new(parent_image.to_vec());
    let done = merge(&file);
    // The child is deleted now, so only flushed changes count.
    let mut none = true;
    let nothing = |changes: usize| std::mem::take(&mut none).then(|| vec![false; changes]);
    file.after_crash(parent_image, file.len_of_log(), nothing, |image| {
        let parent = CrashFile::new(image);
        assert_eq!(open(&parent, None, true).expect("a disk").values(), Ok(expected.clone()));
    });
    let mut random = Random(3);
    for cut in 0..=file.len_of_log() {
        let mut left = 6;
        let pick = |changes: usize| {
            left -= 1;
            (left >= 0).then(|| (0..changes).map(|_| random.below(2) == 1).collect())
        };
        file.after_crash(parent_image, cut, pick, |image| {
            let parent = CrashFile::new(image);
            assert!(chain(&parent) == expected, "cut at {cut}: the child reads otherwise");
            if cut % 16 == 0 {
                assert_eq!(merge(&parent), done);
                let merged = open(&parent, None, true).expect("a disk").values();
                assert_eq!(merged, Ok(expected.clone()), "cut at {cut}");
            }
        });
    }
    done.shared
}

#[test]
fn merging_can_be_done_again_after_any_crash() {
    let (parent, _) = used(Subformat::Dynamic, 8192, 11);
    let (child, _) = used(Subformat::Differencing, 4096, 12);
    assert_eq!(merge_and_crash(&parent, child), 0, "blocks as small as this are read and written");
}

/// The same with clones of whole blocks: one that the parent does not have, one that it has.
#[test]
fn merging_by_clones_can_be_done_again_after_any_crash() {
    let image = |subformat, first: u64, value: u64| {
        let file = CrashFile::new(new_image(subformat, 64 << 10));
        let base = parent();
        let over = (subformat == Subformat::Differencing).then_some(&base);
        let disk = open(&file, over, false).expect("a disk");
        let data: Vec<u8> = (first..SECTORS).flat_map(|sector| stamped(value | sector)).collect();
        disk.write_now(first * SECTOR, &data).expect("a write");
        drop(disk);
        file.bytes()
    };
    let half = image(Subformat::Dynamic, SECTORS / 2, 1 << 30);
    let whole = image(Subformat::Differencing, 0, 1 << 31);
    assert_eq!(merge_and_crash(&half, whole), SIZE);
    // A block of which the child has all but the start (the part is too short for a clone), and another block.
    let most = image(Subformat::Differencing, 8, 1 << 31);
    assert_eq!(merge_and_crash(&half, most), SIZE / 2);
}

/// Differences are copied, then the parent is switched. After a cut anywhere, the disk reads the same data over the
/// parent that it has recorded.
#[test]
fn a_new_parent_with_other_contents_changes_nothing_through_any_crash() {
    const NEW: [u8; 16] = [0xAB; 16];
    let over_new = || {
        let (image, _) = used(Subformat::Dynamic, 8192, 41);
        CrashFile::new(image)
    };
    for (seed, block_size) in [(42, 4096), (43, 32 << 10)] {
        let (image, values) = used(Subformat::Differencing, block_size, seed);
        let (base, new) = (parent(), over_new());
        let (_, _, new_layout) = layout_of(&new).expect("a layout");
        let file = CrashFile::new(image.clone());
        let disk = open(&file, Some(&base), false).expect("a disk");
        let above = open(&new, None, true).expect("a disk");
        let (old_files, new_files) = (stores([&file, &base]), stores([&new]));
        let copy = RebaseCopy::new(Content::over(&disk, &old_files), Content::over(&above, &new_files), None);
        let copied = copy.run(|_, _| true).expect("a comparison");
        assert!(copied > 0 && copied < SIZE, "{copied}");
        disk.flush().expect("a flush");
        drop(disk);
        let mut editor = Editor::open(&file).expect("a disk");
        let mut header = editor.sparse.as_ref().expect("a header").header;
        header.parent_unique_id = NEW;
        editor.switch(header, None, None).expect("a switch");
        let (mut random, mut states, mut switched) = (Random(5), 0, 0);
        for cut in 0..=file.len_of_log() {
            let mut left = 6;
            let pick = |changes: usize| {
                left -= 1;
                (left >= 0).then(|| (0..changes).map(|_| left == 5 || random.below(2) == 1).collect())
            };
            file.after_crash(&image, cut, pick, |left| {
                let left = CrashFile::new(left);
                let (_, header, _) = layout_of(&left).expect("a layout");
                states += 1;
                let disk = if header.parent_unique_id == NEW {
                    switched += 1;
                    open_over(&left, Some(layer(&new, new_layout)), true)
                } else {
                    open(&left, Some(&base), true)
                };
                let found = disk.expect("a disk").values().expect("contents");
                assert!(same(&found, &values), "cut at {cut}: other contents");
            });
        }
        assert!(switched > 0 && switched < states, "{switched} of {states}");
    }
}

/// If the copy of the footer is damaged, the trailing footer must be kept until the copy is repaired.
#[test]
fn a_bad_copy_of_the_footer_does_not_become_the_only_one() {
    let (mut image, values) = used(Subformat::Dynamic, 4096, 8);
    image[40] ^= 1;
    let resize = |file: &CrashFile| resize_in(file, 64 * SIZE, false).expect("resizing");
    crash(&image, None, resize, |left| same(&left[..values.len()], &values));
}

/// A fixed disk whose second half is zeros, with `behind` bytes between its data and its footer.
fn fixed(behind: u64) -> Vec<u8> {
    let footer = footer::new(Subformat::Fixed, SIZE, u64::MAX, [7; 16], std::time::SystemTime::now());
    let mut image = parent().bytes();
    image[SIZE as usize / 2..].fill(0);
    image.resize((SIZE + behind) as usize, 0x5A);
    image.extend_from_slice(footer.as_bytes());
    image
}

/// After a cut anywhere, the disk has the old or the new size, with its data and zeros: there is no footer in its data.
#[test]
fn resizing_a_fixed_disk_leaves_no_footer_in_its_data() {
    let mut states = 0;
    for (behind, size) in [0, SECTOR, SIZE]
        .into_iter()
        .flat_map(|behind| [2 * SIZE, SIZE + SECTOR, SIZE - SECTOR, SIZE / 2].map(|size| (behind, size)))
    {
        let image = fixed(behind);
        let good = |bytes: &[u8], sizes: &[u64], why: &str| {
            let found = footer::find(&CrashFile::new(bytes.to_vec()));
            let found = found.unwrap_or_else(|bad| panic!("{behind} {size}, {why}: {bad:?}"));
            assert!(sizes.contains(&found.size), "{behind} {size}, {why}: {}", found.size);
            let (data, half) = (&bytes[..found.size as usize], SIZE as usize / 2);
            assert!(data[..half] == image[..half], "{behind} {size}, {why}: other contents");
            assert!(data[half..].iter().all(|byte| *byte == 0), "{behind} {size}, {why}: not zeros");
        };
        let file = CrashFile::new(image.clone());
        resize_in(&file, size, true).expect("resizing");
        let mut random = Random(4);
        for cut in 0..=file.len_of_log() {
            let mut left = 16;
            let pick = |changes: usize| {
                left -= 1;
                (left >= 0).then(|| (0..changes).map(|_| left == 15 || random.below(2) == 1).collect())
            };
            file.after_crash(&image, cut, pick, |bytes| {
                states += 1;
                good(&bytes, &[SIZE, size], &format!("cut at {cut}"));
                // The same resize can be repeated, or another one made.
                for again in [size, 3 * SIZE, SIZE / 2] {
                    let left = CrashFile::new(bytes.clone());
                    resize_in(&left, again, true).expect("resizing again");
                    good(&left.bytes(), &[again], &format!("cut at {cut}, then {again}"));
                }
            });
        }
        let bytes = file.bytes();
        assert_eq!(bytes.len() as u64, size + SECTOR);
        good(&bytes, &[size], "in the end");
    }
    println!("{states} states after a crash");
}

/// Virtual PC derives the size from the geometry, which may omit bytes at the end of a fixed disk. These bytes stay
/// before the footer.
#[test]
fn a_new_stamp_of_a_fixed_disk_leaves_what_its_size_leaves_out() {
    let mut footer = footer::new(Subformat::Fixed, SIZE, u64::MAX, [7; 16], std::time::SystemTime::now());
    footer.creator_application = *b"vpc ";
    (footer.cylinders, footer.heads, footer.sectors_per_track) = (3.into(), 4, 17);
    footer.seal();
    let mut image = parent().bytes();
    image.extend_from_slice(footer.as_bytes());
    let base = CrashFile::new(image.clone());
    let editor = Editor::open(&base).expect("a disk");
    assert_eq!((editor.size, editor.end().expect("a file")), (3 * 4 * 17 * SECTOR, SIZE));
    let child = CrashFile::new(new_image(Subformat::Differencing, 4096));
    announce(&child, &base, true).expect("a new stamp");
    let bytes = base.bytes();
    assert_eq!(bytes.len(), image.len());
    assert!(bytes[..SIZE as usize] == image[..SIZE as usize], "other contents");
    let (found, at) = footer::trailing(&base, image.len() as u64).expect("a file").expect("a footer");
    assert!(at == SIZE && found.time_stamp.get() > footer.time_stamp.get());
}

/// After a crash of a fixed disk, either the time stamp has changed, or nothing.
#[test]
fn the_stamp_of_a_fixed_disk_is_flushed_before_its_data() {
    let image = fixed(0);
    let stamp = |bytes: &[u8]| {
        let found = footer::find(&CrashFile::new(bytes.to_vec())).expect("a footer");
        found.footer.time_stamp.get()
    };
    let before = stamp(&image);
    type Work = fn(&FixedVhd, &CrashFile);
    let works: [Work; 2] = [
        |disk, file| {
            let mut extents = Extents::new();
            assert_eq!(disk.map_write(0, SECTOR, &mut extents), Ok(Mapping::Blocked));
            disk.prepare_write(0, SECTOR).expect("a session");
            assert_eq!(disk.map_write(0, SECTOR, &mut extents), Ok(Mapping::Ready));
            file.write_at(&stamped(1), 0).expect("a write");
            disk.prepare_write(SECTOR, SECTOR).expect("a session");
            file.write_at(&stamped(2), SECTOR).expect("a write");
        },
        |disk, _| disk.write_zeroes(0, SECTOR, true).expect("zeros"),
    ];
    for work in works {
        let file = CrashFile::new(image.clone());
        let found = footer::find(&file).expect("a footer");
        let disk = FixedVhd::new(disk_info(&found, false), Arc::new(file.clone()), Vec::new(), &found);
        let mut extents = Extents::new();
        assert_eq!(disk.map_read(0, SECTOR, &mut extents), Ok(Mapping::Ready));
        assert_eq!(file.len_of_log(), 0, "reading changes nothing");
        work(&disk, &file);
        let mut changed = 0;
        for cut in 0..=file.len_of_log() {
            let mut number = 0;
            let pick = |changes: usize| {
                number += 1;
                (number <= 1 << changes)
                    .then(|| (0..changes).map(|at| (number - 1) >> at & 1 == 1).collect::<Vec<_>>())
            };
            file.after_crash(&image, cut, pick, |bytes| {
                let same = bytes[..SIZE as usize] == image[..SIZE as usize];
                assert!(same || stamp(&bytes) != before, "cut at {cut}");
                changed += usize::from(!same);
            });
        }
        assert!(changed > 0 && stamp(&file.bytes()) > before);
        assert_eq!(disk.discard(0, SECTOR), Err(IoError::Unsupported));
    }
}

/// The reserved space of a locator is not reliable: a block in it that does not overlap the path is valid.
#[test]
fn the_hint_of_a_locators_space_costs_no_block() {
    let (image, values) = used(Subformat::Differencing, 4096, 5);
    let base = parent();
    let file = CrashFile::new(image);
    let mut editor = Editor::open(&file).expect("a disk");
    let header = editor.sparse.as_ref().expect("a header").header;
    let path = NewLocator { platform_code: *b"W2ru", path: vec![b'x'; 40] };
    editor.switch(header, None, Some(&[path])).expect("a switch");
    // The locator reserves the whole file.
    let mut editor = Editor::open(&file).expect("a disk");
    let mut header = editor.sparse.as_ref().expect("a header").header;
    header.parent_locators[0].data_offset = SECTOR.into();
    header.parent_locators[0].data_space = (1 << 20).into();
    editor.switch(header, None, None).expect("a switch");
    let report = check_in(&file, true).expect("a file");
    assert!(report.worst() < Some(Severity::Damage), "{:?}", report.findings);
    assert_eq!(report.findings.iter().filter(|finding| finding.field == "BAT entry").count(), 0);
    assert_eq!(check_in(&file, true).expect("a file").findings, [], "repaired again");
    let before = file.len().expect("a file");
    let disk = open(&file, Some(&base), true).expect("a disk");
    assert!(same(&disk.values().expect("contents"), &values));
    assert_eq!(file.len().expect("a file"), before, "opening moves no footer");
}

/// What the header of a disk without a parent has in place of locators means nothing, and space that a locator claims beyond the end of the file
/// is no reason to leave gaps.
#[test]
fn only_locators_that_count_cost_space() {
    for subformat in [Subformat::Dynamic, Subformat::Differencing] {
        let (image, values) = used(subformat, 4096, 31);
        let base = parent();
        let over = (subformat == Subformat::Differencing).then_some(&base);
        let compacted = |change: &dyn Fn(&mut super::spec::DynamicHeader)| {
            let file = CrashFile::new(image.clone());
            let mut editor = Editor::open(&file).expect("a disk");
            let mut header = editor.sparse.as_ref().expect("a header").header;
            change(&mut header);
            editor.switch(header, None, None).expect("a switch");
            let report = check_in(&file, false).expect("a file");
            assert!(report.worst() < Some(Severity::Damage), "{subformat:?}: {:?}", report.findings);
            let done = compact_in(&file, |_, _| true).expect("compacting");
            let disk = open(&file, over, true).expect("a disk");
            assert!(same(&disk.values().expect("contents"), &values));
            (done.moved, file.len().expect("a file"))
        };
        let without = compacted(&|_| ());
        assert!(without.0 > 0 || subformat == Subformat::Differencing);
        let claimed = compacted(&|header| {
            let locator = &mut header.parent_locators[3];
            locator.platform_code = *b"W2ru";
            locator.data_offset = SECTOR.into();
            locator.data_length = 40.into();
            locator.data_space = u32::MAX.into();
        });
        assert_eq!(claimed, without, "{subformat:?}");
        if subformat == Subformat::Dynamic {
            let garbage = compacted(&|header| {
                let locators = header.parent_locators.iter_mut().zip(1u64..);
                locators.for_each(|(locator, number)| {
                    locator.platform_code = [0x5A; 4];
                    locator.data_offset = ((number << 40) | (number * SECTOR)).into();
                    locator.data_length = (number as u32 * 4096).into();
                });
            });
            assert_eq!(garbage, without);
        }
    }
}

/// An image whose second block has data, with its parent, and the entry of that block.
fn with_one_block(subformat: Subformat) -> (CrashFile, Option<CrashFile>, Layout, u32) {
    let file = CrashFile::new(new_image(subformat, 16 << 10));
    let over = (subformat == Subformat::Differencing).then(parent);
    let disk = open(&file, over.as_ref(), false).expect("a disk");
    disk.write_now(0, &stamped(5).repeat(64)).expect("a write");
    drop(disk);
    let (_, _, layout) = layout_of(&file).expect("a layout");
    let entry = super::layer::read_bat(&file, &layout, 0, 2).expect("a table")[1];
    (file, over, layout, entry)
}

/// The footer is directly behind the last block. Where Hyper-V has put it in the place of the next block, so do sessions and tools.
#[test]
fn footers_stay_aligned_where_they_are() {
    for aligned in [false, true] {
        let (file, ..) = with_one_block(Subformat::Dynamic);
        let place = |file: &CrashFile| {
            let (found, header, layout) = layout_of(file).expect("a layout");
            let table =
                super::layer::read_bat(file, &layout, 0, u64::from(layout.used_entries())).expect("a table");
            let end = super::alloc::end_of(
                &table,
                (found.subformat, &header),
                &layout,
                None,
                file.bytes().len() as u64,
            );
            assert_ne!(end, layout.next_block(end));
            (found.source.trailing(), end, layout.next_block(end))
        };
        let (at, end, next) = place(&file);
        assert_eq!(at, Some(end));
        if aligned {
            let footer = file.bytes()[end as usize..].to_vec();
            file.write_at(&[0; 512], end).expect("zeros");
            file.write_at(&footer, next).expect("a footer");
        }
        let good = |file: &CrashFile, after: &str| {
            let (at, end, next) = place(file);
            assert_eq!(at, Some(if aligned { next } else { end }), "{after}");
            assert_eq!(check_in(file, false).expect("a file").findings, [], "{after}");
        };
        good(&file, "the start");
        let disk = open(&file, None, false).expect("a disk");
        disk.write_now(64 * SECTOR, &stamped(6).repeat(32)).expect("a write");
        disk.write_now(0, &stamped(0).repeat(32)).expect("a write");
        drop(disk);
        good(&file, "a session");
        compact_in(&file, |_, _| true).expect("compacting");
        good(&file, "compacting");
        resize_in(&file, 64 * SIZE, false).expect("growing");
        assert_eq!(layout_of(&file).expect("a layout").2.bat, 1536, "in its place");
        good(&file, "growing");
    }
}

/// The truncated part of a block is lost, and is reported. Until it is repaired, nothing is written: zeros in place of what is lost would hide
/// the loss.
#[test]
fn a_block_that_is_cut_off_is_damage() {
    for subformat in [Subformat::Dynamic, Subformat::Differencing] {
        let (file, over, layout, entry) = with_one_block(subformat);
        let over = over.as_ref();
        let there = layout.block_range(entry).1 as usize - 4096;
        let image = file.bytes();
        let cut = image[..there].to_vec();
        let mut with_footer = cut.clone();
        with_footer.extend_from_slice(&image[..512]);
        for bytes in [cut, with_footer] {
            let file = CrashFile::new(bytes.clone());
            let report = check_in(&file, false).expect("a file");
            assert_eq!(report.worst(), Some(Severity::Damage), "{:?}", report.findings);
            let refusals = [
                resize_in(&file, 4 * SIZE, false).expect_err("a resize").to_string(),
                resize_in(&file, SIZE / 2, true).expect_err("a resize").to_string(),
                compact_in(&file, |_, _| true).expect_err("compacting").to_string(),
                Editor::open(&file).err().expect("a merge, a rebase").to_string(),
                open(&file, over, false).err().expect("a session"),
            ];
            for refusal in refusals {
                assert!(refusal.contains("cut off at byte") && refusal.contains("--repair"), "{refusal}");
            }
            assert!(open(&file, over, true).is_ok() && file.bytes() == bytes, "changed");
            check_in(&file, true).expect("a file");
            assert_eq!(check_in(&file, false).expect("a file").worst(), None);
            let repaired = file.bytes();
            // The footers have a new stamp.
            assert!(repaired[512..there] == image[512..there], "data that were there are changed");
            assert!(
                repaired[there..there + 4096].iter().all(|byte| *byte == 0),
                "zeros in place of a footer"
            );
        }
    }
}

/// A block that the repair gives up may be the last in the file. What the file has of it stays.
#[test]
fn the_repair_cuts_no_bytes_of_a_lost_block() {
    let (image, _) = used(Subformat::Dynamic, 16 << 10, 5);
    let file = CrashFile::new(image.clone());
    let (_, _, layout) = layout_of(&file).expect("a layout");
    let table = super::layer::read_bat(&file, &layout, 0, 8).expect("a table");
    let last = (0..8).max_by_key(|block| Some(table[*block]).filter(|entry| *entry != u32::MAX)).unwrap();
    // It overlaps the block before it, or its bitmap is beyond the end of the file.
    for entry in [table[last] - 16, (image.len() / 512) as u32] {
        let mut bytes = image.clone();
        let at = layout.bat as usize + 4 * last;
        bytes[at..at + 4].copy_from_slice(&entry.to_be_bytes());
        let file = CrashFile::new(bytes);
        let report = check_in(&file, true).expect("a file");
        assert!(report.findings.iter().any(|finding| finding.field == "BAT entry"), "{:?}", report.findings);
        let left = file.bytes();
        let data = layout.data_at(table[last]) as usize..layout.block_range(table[last]).1 as usize;
        assert!(left[data.clone()] == image[data], "cut");
        assert_eq!(check_in(&file, false).expect("a file").worst(), Some(Severity::Leak));
    }
}

/// Some programs store less than the last block, and the footer in its place. The tools move the footer, and leave none of it in the block.
#[test]
fn a_footer_inside_the_last_block_leaves_it() {
    type Tool = fn(&CrashFile);
    let tools: [Tool; 4] = [
        |file| resize_in(file, 64 * SIZE, false).expect("resizing"),
        |file| assert_eq!(compact_in(file, |_, _| true).expect("compacting").released, 0),
        |file| drop(Editor::open(file).expect("an editor")),
        |file| drop(open(file, None, false).expect("a disk")),
    ];
    let file = CrashFile::new(new_image(Subformat::Dynamic, 16 << 10));
    let disk = open(&file, None, false).expect("a disk");
    disk.write_now(0, &stamped(5)).expect("a write");
    drop(disk);
    let (found, _, layout) = layout_of(&file).expect("a layout");
    let entry = super::layer::read_bat(&file, &layout, 0, 1).expect("a table")[0];
    let (bitmap, data) = (Layout::bitmap_at(entry) as usize, layout.data_at(entry) as usize);
    let mut image = file.bytes()[..data + 4096].to_vec();
    // Eight sectors are written, as the bits say.
    image[bitmap..bitmap + 512].fill(0);
    image[bitmap] = 0xFF;
    image.extend_from_slice(found.footer.as_bytes());
    for tool in tools {
        let file = CrashFile::new(image.clone());
        tool(&file);
        let (_, _, layout) = layout_of(&file).expect("a layout");
        let entry = super::layer::read_bat(&file, &layout, 0, 1).expect("a table")[0];
        let (data, end) = (layout.data_at(entry) as usize, layout.block_range(entry).1 as usize);
        let bytes = file.bytes();
        assert!(
            bytes[data..data + 512] == stamped(5) && bytes[data + 512..end].iter().all(|byte| *byte == 0)
        );
        assert!(check_in(&file, false).expect("a file").worst() <= Some(Severity::Leak));
    }
}

/// What a reader does not see is no reason to refuse a smaller size: bytes under clear bits.
#[test]
fn only_what_a_reader_sees_is_data() {
    for subformat in [Subformat::Dynamic, Subformat::Differencing] {
        let (file, _, _, entry) = with_one_block(subformat);
        let set = |bits: u8| {
            let mut bitmap = [0; 512];
            bitmap[0] = bits;
            file.write_at(&bitmap, Layout::bitmap_at(entry)).expect("a bitmap");
        };
        set(0x80);
        let refused = resize_in(&file, 16 << 10, true).expect_err("data").to_string();
        assert!(refused.contains("at least 16896 bytes"), "{refused}");
        let cleared = |end: u64| {
            let range = 16 << 10..end;
            check_resize(Arc::new(file.clone()), 16 << 10, true, std::slice::from_ref(&range))
        };
        cleared(16896).expect("the range is zeroed before");
        assert!(cleared(16 << 10).is_err());
        set(0);
        resize_in(&file, 16 << 10, true).expect("shrinking");
        resize_in(&file, SIZE, false).expect("growing");
        let disk = open(&file, None, true).expect("a disk");
        let values = disk.values().expect("contents");
        assert!(values[..32].iter().all(|value| *value == Some(5)), "{values:?}");
        assert!(values[32..].iter().all(|value| *value == Some(0)), "{values:?}");
    }
}

/// The end of a block that becomes readable is zeroed before the size changes.
#[test]
fn growing_from_inside_a_block_exposes_nothing_through_any_crash() {
    let file = CrashFile::new(new_image(Subformat::Dynamic, 16 << 10));
    let disk = open(&file, None, false).expect("a disk");
    disk.write_now(0, &stamped(5).repeat(8)).expect("a write");
    drop(disk);
    resize_in(&file, 8 * SECTOR, true).expect("shrinking");
    let (_, _, layout) = layout_of(&file).expect("a layout");
    let entry = super::layer::read_bat(&file, &layout, 0, 1).expect("a table")[0];
    file.write_at(&stamped(6).repeat(24), layout.data_at(entry) + 8 * SECTOR).expect("remains");
    for size in [32 * SECTOR, SIZE, 64 * SIZE] {
        crash(
            &file.bytes(),
            None,
            |file| resize_in(file, size, false).expect("resizing"),
            |left| {
                let (known, new) = left.split_at(8);
                known.iter().all(|value| *value == Some(5)) && new.iter().all(|value| *value == Some(0))
            },
        );
    }
}

/// A table that could not locate the blocks is refused before anything is changed.
#[test]
fn a_size_with_too_many_blocks_is_refused() {
    let file = CrashFile::new(new_image(Subformat::Dynamic, 4096));
    let before = file.bytes();
    for (size, why) in [
        (1 << 40, "with blocks of 4096 bytes, at most 67108864 blocks"),
        (2041 << 30, "2040 GiB"),
        (SIZE + 1, "whole sectors"),
    ] {
        let refused = resize_in(&file, size, false).expect_err("too large").to_string();
        assert!(refused.contains(why), "{refused}");
        assert!(file.bytes() == before);
    }
    assert_eq!(layout::check_blocks(2040 << 30, 2 << 20), Ok(()));
    let far = layout::check_blocks(2040 << 30, 64 << 10).expect_err("bitmaps take too much");
    assert!(far.contains("below 2 TiB"), "{far}");
}

#[test]
fn compacting_stops_on_request() {
    let (image, _) = used(Subformat::Dynamic, 4096, 31);
    let file = CrashFile::new(image);
    let done = compact_in(&file, |_, _| false).expect("compacting");
    assert_eq!(done.moved, 0);
    let done = compact_in(&file, |_, _| true).expect("compacting");
    assert!(done.moved > 0);
}

/// No space at any moment: the disk has the old or the new size, and its footer.
#[test]
fn resizing_without_space_leaves_the_disk_as_it_was() {
    for subformat in [Subformat::Dynamic, Subformat::Fixed] {
        let image = match subformat {
            Subformat::Fixed => fixed(0),
            _ => used(subformat, 4096, 8).0,
        };
        for after in 0.. {
            let file = CrashFile::new(image.clone());
            file.fail_growth(Some(after));
            let done = resize_in(&file, 64 * SIZE, false);
            file.fail_growth(None);
            let report = check_in(&file, false).expect("a file");
            assert!(report.findings.is_empty(), "{after}: {:?}", report.findings);
            if done.is_ok() {
                break;
            }
            assert!(file.bytes() == image, "{after}: changed");
        }
    }
}

/// The host has no space for the added range, or fails the flush before the footer is changed: the file is as it was.
#[test]
fn a_fixed_disk_that_cannot_grow_has_its_old_file() {
    let image = fixed(0);
    let grow = |fault| {
        let host = Host::new();
        let path = host.folder().join("disk.vhd");
        std::fs::write(&path, &image).expect("a file");
        host.settle();
        let file = BackingFile::open(&path, Access::default()).expect("a file");
        host.arm(fault);
        let done = resize_in(&file, 64 * SIZE, false);
        let calls = host.disarm();
        drop(file);
        (done, calls, std::fs::read(&path).expect("a file"))
    };
    let (_, calls, _) = grow(None);
    let first = |wanted| calls.iter().position(|call| *call == wanted).expect("such a call");
    let (flush, space) = (first(Call::Sync), first(Call::Allocate));
    assert!(flush < space, "{calls:?}");
    for fault in [(flush, Fault::Loses(Errno::IO)), (space, Fault::Fails(Errno::NOSPC))] {
        let (done, _, left) = grow(Some(fault));
        done.expect_err("it cannot grow");
        assert!(left == image, "{fault:?}: {} bytes", left.len());
    }
}
