//! Images with invalid fields: the error names every field that is out of range, and no content causes a panic,
//! unbounded work, or access to another block's data.

mod forge;

use forge::{
    BAT, EXPECTED, LOG, METADATA, SHAPE, VALUE, entry, files, get, good, put, refusal, values, with_entry,
    with_headers, with_tables,
};
use uuid::Uuid;
use zerocopy::FromBytes;

use super::header::Headers;
use super::layout::Entry;
use super::log::{Log, Sizes, Update};
use super::spec::{HEADER_SIZE, HEADERS_AT, Header, MIB, REGION_TABLES_AT, item};
use super::testing::{Shape, new_image, open, opened, read};
use crate::host::crash::{CrashFile, Image, stamped, value_of};
use crate::host::store::Store;
use crate::map::format::Format;
use crate::queue::conformance::Random;

#[test]
fn each_field_of_the_headers_is_checked_and_named() {
    let (image, below) = good(false);
    type Change = fn(&mut Header);
    let set_log = |header: &mut Header| header.log_guid = [7; 16];
    let cases: &[(Change, &str)] = &[
        (|header| header.signature[0] = 0, "header signature"),
        (|header| header.version = 2.into(), "header version"),
        (|header| header.version = 0.into(), "header version"),
        (|header| (header.log_version, header.log_guid) = (1.into(), [7; 16]), "log version"),
        (set_log, "log GUID"),
        (|header| header.log_length = 0.into(), "log length"),
        (|header| header.log_length = (MIB as u32 + 4096).into(), "log length"),
        (|header| header.log_length = (u32::MAX >> 20 << 20).into(), "log length"),
        (|header| header.log_length = (1 << 30).into(), "log offset"),
        (|header| header.log_offset = 0.into(), "log offset"),
        (|header| header.log_offset = (MIB + 4096).into(), "log offset"),
        (|header| header.log_offset = (u64::MAX >> 20 << 20).into(), "log offset"),
        (|header| header.log_offset = (1 << 40).into(), "log offset"),
        (|header| header.log_offset = METADATA.into(), "region"),
        (|header| header.sequence_number = u64::MAX.into(), "header sequence number"),
    ];
    for (number, (change, field)) in cases.iter().enumerate() {
        let bad = with_headers(&image, &[0, 1], change);
        let refused = refusal(&bad, &below);
        assert!(refused.contains(&format!("\"{field}\"")), "{number}: {refused}");
    }
    // The log version does not matter if there is no log.
    assert_eq!(
        values(&with_headers(&image, &[0, 1], |header| header.log_version = 1.into()), &below),
        EXPECTED
    );
    // A read-only disk needs no further sequence number.
    let last = with_headers(&image, &[0], |header| header.sequence_number = u64::MAX.into());
    assert_eq!(values(&last, &below), EXPECTED);
}

#[test]
fn either_header_serves_and_the_newer_one_counts() {
    let (image, below) = good(false);
    for which in 0..2 {
        let flipped = put(&image, HEADERS_AT[which] + 2000, &[1]);
        assert_eq!(values(&flipped, &below), EXPECTED);
        // The header is repaired when the disk is written.
        let all = files(&flipped, &below);
        let disk = open(&all, false).expect("a disk");
        disk.write_now(0, &stamped(1)).expect("a write");
        drop(disk);
        assert!(!opened(&all[0], false).expect("headers").headers.other_bad);
        // The inactive header may contain anything.
        let numbers: Vec<u64> = HEADERS_AT
            .iter()
            .map(|at| Header::read_from_bytes(&get::<HEADER_SIZE>(&image, *at)).expect("a header"))
            .map(|header| header.sequence_number.get())
            .collect();
        let changed = with_headers(&image, &[which], |header| header.version = 9.into());
        let newer = numbers[which] > numbers[1 - which];
        assert_eq!(open(&files(&changed, &below), true).is_ok(), !newer, "{which}");
    }
    let both = HEADERS_AT.iter().fold(image.clone(), |image, at| put(&image, at + 2000, &[1]));
    assert!(refusal(&both, &below).contains("\"header checksum\""));
    let neither = HEADERS_AT.iter().fold(image.clone(), |image, at| put(&image, *at, &[0; 4096]));
    assert!(refusal(&neither, &below).contains("\"header signature\""));
    let equal = with_headers(&image, &[0, 1], |header| header.sequence_number = 5.into());
    assert_eq!(values(&equal, &below), EXPECTED);
    let differ = with_headers(&equal, &[1], |header| header.data_write_guid = [9; 16]);
    assert!(refusal(&differ, &below).contains("\"header sequence number\""));
    assert!(refusal(&put(&image, 0, b"vhdxfilf"), &below).contains("\"file type identifier\""));
}

#[test]
fn each_field_of_the_region_tables_is_checked_and_named() {
    let (image, below) = good(false);
    // Offsets of the two entries. An entry has 16 bytes of GUID, then offset, length, required.
    let (one, other) = (16, 48);
    let offset = |at: usize, to: u64| {
        move |table: &mut [u8]| table[at + 16..at + 24].copy_from_slice(&to.to_le_bytes())
    };
    let length = |at: usize, to: u32| {
        move |table: &mut [u8]| table[at + 24..at + 28].copy_from_slice(&to.to_le_bytes())
    };
    let count = |to: u32| move |table: &mut [u8]| table[8..12].copy_from_slice(&to.to_le_bytes());
    type Change<'a> = &'a dyn Fn(&mut [u8]);
    let cases: &[(Change<'_>, &str)] = &[
        (&|table| table[0] = 0, "region table signature"),
        (&count(2048), "region table entry count"),
        (&count(u32::MAX), "region table entry count"),
        (&count(0), "region table"),
        (&count(1), "region table"),
        // The third entry is empty, without a GUID.
        (&count(3), "region"),
        (&offset(one, 0), "region"),
        (&offset(one, BAT + 4096), "region"),
        (&offset(one, METADATA), "region"),
        (&offset(one, LOG), "region"),
        (&offset(one, 1 << 50), "region"),
        (&offset(one, u64::MAX >> 20 << 20), "region"),
        (&length(one, 0), "region"),
        (&length(one, 4096), "region"),
        (&length(one, u32::MAX >> 20 << 20), "region"),
        (&length(other, 2 << 20), "region"),
        (&|table| table.copy_within(one..one + 32, other), "region"),
        (&|table| table[one..one + 16].fill(3), "region"),
    ];
    for (number, (change, field)) in cases.iter().enumerate() {
        let refused = refusal(&with_tables(&image, change), &below);
        assert!(refused.contains(&format!("\"{field}\"")), "{number}: {refused}");
    }
    // An unknown region that is not required is preserved.
    let unknown = with_tables(&image, |table| {
        table[8] = 3;
        table[80..96].fill(3);
        let end = image.len();
        table[96..104].copy_from_slice(&end.to_le_bytes());
        table[104..108].copy_from_slice(&(MIB as u32).to_le_bytes());
    });
    let foreign = vec![0x77; MIB as usize];
    let unknown = put(&unknown, image.len(), &foreign);
    let all = files(&unknown, &below);
    let disk = open(&all, false).expect("a disk");
    disk.write_now(MIB, &stamped(1)).expect("a write");
    drop(disk);
    let mut found = vec![0; MIB as usize];
    all[0].image().read(&mut found, image.len());
    assert!(found == foreign);
    // One valid table is enough.
    for at in REGION_TABLES_AT {
        assert_eq!(values(&put(&image, at + 5000, &[1]), &below), EXPECTED);
    }
    let both = REGION_TABLES_AT.iter().fold(image.clone(), |image, at| put(&image, at + 5000, &[1]));
    assert!(refusal(&both, &below).contains("\"region table checksum\""));
}

/// The offsets of an item's table entry and content.
fn find_item(image: &Image, id: Uuid) -> (u64, u64) {
    let at = (0..6).map(|number| METADATA + 32 + number * 32);
    let at = at.into_iter().find(|at| get::<16>(image, *at) == id.to_bytes_le()).expect("the item");
    (at, METADATA + u64::from(u32::from_le_bytes(get(image, at + 16))))
}

#[test]
fn each_item_of_the_metadata_is_checked_and_named() {
    let (image, below) = good(true);
    let (table, content) = find_item(&image, item::FILE_PARAMETERS);
    let size = find_item(&image, item::VIRTUAL_DISK_SIZE).1;
    let (logical_entry, logical) = find_item(&image, item::LOGICAL_SECTOR_SIZE);
    let physical = find_item(&image, item::PHYSICAL_SECTOR_SIZE).1;
    let (locator_entry, locator) = find_item(&image, item::PARENT_LOCATOR);
    let word = |value: u32| value.to_le_bytes().to_vec();
    let long = |value: u64| value.to_le_bytes().to_vec();
    let region = MIB as u32;
    let cases: &[(u64, Vec<u8>, &str)] = &[
        (METADATA, vec![0], "metadata table signature"),
        (METADATA + 10, 2048u16.to_le_bytes().to_vec(), "metadata entry count"),
        (METADATA + 10, u16::MAX.to_le_bytes().to_vec(), "metadata entry count"),
        (METADATA + 10, vec![0, 0], "file parameters"),
        // The additional entries are empty, and so have the same GUID.
        (METADATA + 10, vec![8, 0], "metadata item"),
        (table, vec![0x55; 16], "metadata item"),
        (table + 16, word(0), "metadata item"),
        (table + 16, word(65535), "metadata item"),
        (table + 16, word(region - 4), "metadata item"),
        (table + 16, word(u32::MAX), "metadata item"),
        (table + 16, get::<4>(&image, logical_entry + 16).to_vec(), "metadata item"),
        (table + 20, word(u32::MAX), "metadata item"),
        (table + 20, word(0), "metadata item"),
        (table + 20, word(4), "file parameters"),
        (table + 24, word(item::IS_USER | item::IS_REQUIRED), "metadata item"),
        (table + 24, word(item::IS_USER), "file parameters"),
        (logical_entry, get::<16>(&image, table).to_vec(), "metadata item"),
        (logical_entry, item::INCOMPLETE_FILE.to_bytes_le().to_vec(), "incomplete file item"),
        (content, word(0), "block size"),
        (content, word(1 << 19), "block size"),
        (content, word(3 << 20), "block size"),
        (content, word(1 << 29), "block size"),
        (content, word(1 << 31), "block size"),
        (size, long(0), "virtual disk size"),
        (size, long(1000), "virtual disk size"),
        (size, long((64 << 40) + 512), "virtual disk size"),
        (size, long(u64::MAX), "virtual disk size"),
        (size, long(64 << 40), "BAT region"),
        (size, long(200 << 40), "virtual disk size"),
        (logical, word(1024), "logical sector size"),
        (logical, word(0), "logical sector size"),
        (physical, word(123), "physical sector size"),
        (locator_entry + 24, word(item::IS_USER), "parent locator"),
        (locator, vec![0; 16], "parent locator"),
        (locator + 18, vec![0, 0], "parent locator"),
        (locator + 18, vec![0xFF, 0xFF], "parent locator"),
        (locator + 20, word(u32::MAX), "parent locator"),
        (locator + 20, word(0), "parent locator"),
        (locator + 24, word(1 << 20), "parent locator"),
        (locator + 28, vec![0xFF, 0xFF], "parent locator"),
        (locator + 28, vec![3, 0], "parent locator"),
        (locator + 30, vec![0, 0], "parent locator"),
    ];
    for (number, (at, bytes, field)) in cases.iter().enumerate() {
        let refused = refusal(&put(&image, *at, bytes), &below);
        assert!(refused.contains(&format!("\"{field}\"")), "{number}: {refused}");
    }
}

#[test]
fn each_entry_of_the_table_is_checked_and_named() {
    for differencing in [false, true] {
        let (image, below) = good(differencing);
        let first = entry(&image, 0) >> 20 << 20;
        let end = image.len();
        let outside = [0, LOG, METADATA, BAT, end, end + MIB, 1 << 50, u64::MAX >> 20 << 20, first];
        let state = if differencing { 7 } else { 6 };
        let mut cases: Vec<(u64, u64)> = outside.iter().map(|at| (3, at | state)).collect();
        // Trimmed blocks that keep space have offsets, too.
        cases.extend([LOG, end, first].map(|at| (3, at | 3)));
        cases.extend([LOG, end, first].map(|at| (3, at | 1)));
        cases.extend([(3, 4), (3, 5), (3, first | 5)]);
        if differencing {
            let bitmap = 4096;
            let states = [1, 2, 3, 4, 5];
            cases.extend(states.map(|state| (bitmap, state)));
            cases.extend([LOG, end, first].map(|at| (bitmap, at | 6)));
        }
        for (index, value) in cases {
            let bad = with_entry(&image, index, value);
            let refused = refusal(&bad, &below);
            assert!(refused.contains("\"BAT entry\""), "{index} {value:#x}: {refused}");
            // A read-only disk can read the other blocks, and never reads headers or data outside of the file.
            let found = values(&bad, &below);
            if index == 4096 {
                continue;
            }
            assert_eq!([found[0], found[2], found[5]], [EXPECTED[0], EXPECTED[2], EXPECTED[5]], "{value:#x}");
        }
        // Invalid entries of bitmap blocks are reported when they are needed.
        if differencing {
            for value in [0, 4, 2 << 20 | 2, end | 6, 6, u64::MAX >> 20 << 20 | 6] {
                let bad = with_entry(&image, 4096, value);
                let found = values(&bad, &below);
                assert!(found[0].is_none() && found[1] == Some(0), "{value:#x}: {found:?}");
            }
        }
    }
}

/// A partially present block without a parent counts as fully present.
#[test]
fn a_partial_block_without_a_parent_is_whole() {
    let (image, below) = good(false);
    let bad = with_entry(&image, 0, entry(&image, 0) & !7 | 7);
    assert_eq!(values(&bad, &below), EXPECTED);
    let all = files(&bad, &below);
    let disk = open(&all, false).expect("a disk");
    disk.write_now(4096, &stamped(1)).expect("a write");
    disk.discard(2 * MIB, MIB).expect("a discard");
    disk.flush().expect("a flush");
}

/// A truncated file: the missing part cannot be read, and never reads as another block's data.
#[test]
fn truncated_files_show_nothing_foreign() {
    for differencing in [false, true] {
        let (image, below) = good(differencing);
        let places =
            (0..image.len() / MIB).flat_map(|at| [0, 1, 512, 4096, 65536, 600_000].map(|odd| at * MIB + odd));
        for len in places {
            let mut short = image.clone();
            short.resize(len);
            for read_only in [true, false] {
                let all = files(&short, &below);
                let Ok(disk) = open(&all, read_only) else { continue };
                assert!(len > BAT, "{len}");
                if !read_only {
                    // New blocks and old ones.
                    for block in [1, 3] {
                        let _ = disk.write_now(block * MIB, &stamped(1).repeat(2048));
                    }
                    let _ = disk.write_now(2 * MIB + 8192, &stamped(VALUE + 2));
                    disk.flush().expect("a flush");
                }
                for sector in 0..6 * MIB / 4096 {
                    let (block, mut bytes) = (sector / 256, [0; 4096]);
                    if read(&disk, &all, &mut bytes, sector * 4096).is_err() {
                        continue;
                    }
                    for unit in bytes.chunks(512) {
                        let Some(value) = value_of(unit) else {
                            assert!(len % 512 != 0, "{len:#x}: block {block} is torn");
                            continue;
                        };
                        let may = [0, VALUE + block, if block == 1 || block == 3 { 1 } else { 0 }];
                        assert!(may.contains(&value), "{len:#x}: block {block} holds {value:#x}");
                    }
                }
            }
        }
    }
}

/// The last block may reach beyond the end of the file. Its data are its own, and no other block is allocated there.
#[test]
fn a_last_block_that_is_cut_short_keeps_its_space() {
    let shape = Shape { size: 8 * MIB, block_size: 4 << 20, ..SHAPE };
    let whole = CrashFile::of(new_image(shape, None));
    let disk = open(std::slice::from_ref(&whole), false).expect("a disk");
    disk.write_now(4 * MIB, &stamped(4)).expect("a write");
    drop(disk);
    let end = whole.len().expect("a length");
    for missing in [1, 512, MIB - 512, MIB, 2 * MIB + 4096, 3 * MIB] {
        let mut image = whole.image();
        image.resize(end - missing);
        let files = [CrashFile::of(image)];
        let disk = open(&files, false).expect("a disk");
        let offsets = [0, 4 * MIB - 512, 4 * MIB, 5 * MIB, 8 * MIB - 512];
        for offset in offsets {
            disk.write_now(offset, &stamped(offset + 1)).expect("a write");
        }
        drop(disk);
        let disk = open(&files, true).expect("a disk");
        for unit in (0..8 * MIB).step_by(512) {
            let mut bytes = [0; 512];
            read(&disk, &files, &mut bytes, unit).expect("a read");
            let expected = if offsets.contains(&unit) { unit + 1 } else { 0 };
            assert_eq!(value_of(&bytes), Some(expected), "{unit:#x} without {missing} bytes");
        }
    }
}

/// The image with a log of these changes.
fn with_log(image: &Image, updates: &[Update], sizes: Sizes) -> Image {
    let file = CrashFile::of(image.clone());
    let guid = Uuid::from_u128(77);
    let mut headers: Headers = opened(&file, false).expect("an image").headers;
    let mut log = Log::start(&file, headers.log_region(), guid, sizes).expect("space");
    log.append(&file, updates, sizes).expect("space");
    headers.update(&file, |header| header.log_guid = guid.to_bytes_le()).expect("space");
    file.image()
}

#[test]
fn a_log_that_reaches_outside_is_refused_before_anything_changes() {
    let (image, below) = good(false);
    let sizes = Sizes { flushed: image.len(), last: image.len() };
    let data = |offset| Update::Data { offset, sector: Box::new([0x77; 4096]) };
    let zeros = |offset, len| Update::Zero { offset, len };
    let targets = [0, 64 << 10, 128 << 10, (192 << 10) - 4096, LOG, LOG + MIB - 4096, u64::MAX << 12];
    for target in targets {
        for update in [data(target), zeros(target, 4096)] {
            let bad = with_log(&image, &[data(BAT), update], sizes);
            let refused = refusal(&bad, &below);
            assert!(refused.contains("\"file offset of a log descriptor\""), "{target:#x}: {refused}");
            assert!(open(&files(&bad, &below), true).is_err());
        }
    }
    let longer = Sizes { flushed: image.len() + MIB, last: image.len() };
    assert!(refusal(&with_log(&image, &[], longer), &below).contains("\"flushed file offset\""));
    let endless = Sizes { flushed: 0, last: u64::MAX };
    assert!(refusal(&with_log(&image, &[], endless), &below).contains("\"last file offset\""));
    // A large but valid offset: the host decides.
    let far = with_log(&image, &[data(1 << 45)], sizes);
    assert!(open(&files(&far, &below), false).is_err());
    let all = files(&far, &below);
    let disk = open(&all, true).expect("a disk");
    let mut bytes = [0; 512];
    read(&disk, &all, &mut bytes, 0).expect("a read");
    assert_eq!(value_of(&bytes), Some(VALUE));
}

/// The metadata that a log produces are checked like all metadata.
#[test]
fn a_log_that_makes_bad_metadata_is_found_out() {
    let (image, below) = good(false);
    let sizes = Sizes { flushed: image.len(), last: image.len() };
    let zeros = |offset| [Update::Zero { offset, len: 65536 }];
    for (at, field) in [(METADATA, "metadata table signature"), (METADATA + 65536, "logical sector size")] {
        for read_only in [true, false] {
            let why = open(&files(&with_log(&image, &zeros(at), sizes), &below), read_only).err();
            assert!(why.as_ref().is_some_and(|why| why.contains(field)), "{why:?}");
        }
    }
    // The log changes payload: with the log in memory, such blocks cannot be read.
    let payload = entry(&image, 0) >> 20 << 20;
    let logged = with_log(&image, &[Update::Zero { offset: payload, len: 4096 }], sizes);
    let found = values(&logged, &below);
    assert_eq!((found[0], found[2]), (None, EXPECTED[2]));
    let all = files(&logged, &below);
    drop(open(&all, false).expect("a disk"));
    assert_eq!(values(&all[0].image(), &below)[0], Some(0));
}

/// Use a disk with all kinds of requests.
fn use_it(image: &Image, below: &[CrashFile], random: &mut Random) -> bool {
    let mut opened = false;
    for read_only in [true, false] {
        let files = files(image, below);
        let Ok(disk) = open(&files, read_only) else { continue };
        opened = true;
        let (size, sector) = (disk.info().capacity, u64::from(disk.info().logical_sector.bytes()));
        let mut place = || {
            let near = size.min(8 * MIB) / sector;
            let at = if random.below(8) == 0 { size / sector - 1 } else { random.below(near) };
            (at * sector, (1 + random.below(64)).min(size / sector - at) * sector)
        };
        for step in 0..6 {
            let (offset, len) = place();
            let mut bytes = vec![0; len as usize];
            let _ = read(&disk, &files, &mut bytes, offset);
            if !read_only {
                let _ = disk.write_now(offset, &bytes);
                let (offset, len) = place();
                let _ = disk.write_zeroes(offset, len, step % 2 == 0);
                let (offset, _) = place();
                let offset = offset / MIB * MIB;
                let _ = disk.discard(offset, MIB.min(size - offset));
                if step % 3 == 2 {
                    let _ = disk.flush();
                }
            }
        }
    }
    opened
}

/// Images with some bytes changed, with right or wrong checksums: they are refused or usable, without a panic.
#[test]
fn no_content_makes_it_panic() {
    let mut random = Random(77);
    let mut images = Vec::new();
    for differencing in [false, true] {
        let (image, below) = good(differencing);
        // Without a log, and with a log that is not replayed.
        let file = CrashFile::of(image.clone());
        let all: Vec<CrashFile> = std::iter::once(file.clone()).chain(below.iter().cloned()).collect();
        let disk = open(&all, false).expect("a disk");
        disk.write_now(4 * MIB, &stamped(3)).expect("a write");
        disk.flush().expect("a flush");
        images.push((image, below.clone()));
        images.push((file.image(), below));
        drop(disk);
    }
    let (mut opened, rounds) = (0, 4000);
    for round in 0..rounds {
        let (image, below) = &images[round % images.len()];
        let mut image = image.clone();
        for _ in 0..1 + random.below(4) {
            // Mostly in used parts of the file.
            let at = match random.below(10) {
                0 => HEADERS_AT[random.below(2) as usize] + random.below(96),
                1 => REGION_TABLES_AT[random.below(2) as usize] + random.below(96),
                2 => LOG + random.below(4) * 4096 + random.below(160),
                3 => METADATA + random.below(256),
                4 | 5 => METADATA + 65536 + random.below(512),
                6 | 7 => BAT + random.below(64),
                8 => BAT + 4096 * 8 + random.below(8),
                _ => random.below(image.len()),
            };
            let byte = match random.below(4) {
                0 => 0xFF,
                1 => 0,
                2 => get::<1>(&image, at)[0] ^ 1 << random.below(8),
                _ => random.next() as u8,
            };
            image.write(&[byte], at);
        }
        if random.below(8) == 0 {
            let len = random.below(image.len());
            image.resize(len);
        }
        if random.below(4) != 0 && image.len() > MIB {
            image = with_headers(&image, &[0, 1], |_| {});
            image = with_tables(&image, |_| {});
        }
        opened += usize::from(use_it(&image, below, &mut random));
    }
    println!("{opened} of {rounds} opened");
    assert!(opened > rounds / 10 && opened < rounds);
}

/// A BAT of the largest disk without allocated blocks: the cost of reading and writing depends on its used entries.
#[test]
fn a_disk_of_64_tib_costs_what_is_used() {
    let shape = Shape { size: 64 << 40, block_size: 256 << 20, ..SHAPE };
    let all = vec![CrashFile::of(new_image(shape, None))];
    let disk = open(&all, false).expect("a disk");
    disk.write_now((64 << 40) - 4096, &stamped(5).repeat(8)).expect("a write");
    disk.discard(0, 64 << 40).expect("a discard");
    disk.write_zeroes(0, 64 << 40, true).expect("zeros");
    disk.flush().expect("a flush");
    let mut bytes = [0; 512];
    read(&disk, &all, &mut bytes, (64 << 40) - 512).expect("a read");
    assert_eq!(value_of(&bytes), Some(0));
    let bad = Entry::fully(1 << 60);
    assert_eq!(bad.offset(), 1 << 60);
}
