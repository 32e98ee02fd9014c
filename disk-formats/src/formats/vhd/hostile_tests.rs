//! Images with invalid fields: the error names every field that is out of range, and no content causes a panic or an
//! access outside of the file.

use zerocopy::{FromBytes, IntoBytes};

use super::check::check_in;
use super::compact::compact_in;
use super::footer::Subformat;
use super::resize::resize_in;
use super::spec::{DynamicHeader, FOOTER_SIZE, Footer, HEADER_SIZE, SECTOR};
use super::testing::{SECTORS, SIZE, new_image, open, parent};
use crate::formats::findings::Severity;
use crate::host::crash::{CrashFile, stamped};
use crate::map::format::Format;
use crate::queue::conformance::Random;

const BLOCK: u32 = 4096;
const BAT: usize = 1536;

/// A disk with two blocks.
fn good(subformat: Subformat) -> Vec<u8> {
    let file = CrashFile::new(new_image(subformat, BLOCK));
    let base = parent();
    let disk = open(&file, (subformat == Subformat::Differencing).then_some(&base), false).expect("a disk");
    for block in [0, 5] {
        disk.write_now(block * u64::from(BLOCK), &stamped(9).repeat(3)).expect("a write");
    }
    disk.flush().expect("a flush");
    drop(disk);
    file.bytes()
}

fn with_header(image: &[u8], change: impl FnOnce(&mut DynamicHeader)) -> Vec<u8> {
    let mut image = image.to_vec();
    let bytes = &mut image[FOOTER_SIZE..FOOTER_SIZE + HEADER_SIZE];
    let mut header = DynamicHeader::read_from_bytes(bytes).expect("a header");
    change(&mut header);
    header.seal();
    bytes.copy_from_slice(header.as_bytes());
    image
}

fn with_footers(image: &[u8], change: impl Fn(&mut Footer)) -> Vec<u8> {
    let mut image = image.to_vec();
    for at in [0, image.len() - FOOTER_SIZE] {
        let bytes = &mut image[at..at + FOOTER_SIZE];
        let mut footer = Footer::read_from_bytes(bytes).expect("a footer");
        change(&mut footer);
        footer.seal();
        bytes.copy_from_slice(footer.as_bytes());
    }
    image
}

fn with_entry(image: &[u8], block: usize, entry: u32) -> Vec<u8> {
    let mut image = image.to_vec();
    image[BAT + block * 4..][..4].copy_from_slice(&entry.to_be_bytes());
    image
}

fn refusal(image: &[u8]) -> String {
    match open(&CrashFile::new(image.to_vec()), None, false) {
        Ok(_) => panic!("it opened"),
        Err(why) => why,
    }
}

#[test]
fn each_field_of_the_header_is_checked_and_named() {
    let image = good(Subformat::Dynamic);
    let mut flipped = image.clone();
    flipped[FOOTER_SIZE + 800] ^= 1;
    assert!(refusal(&flipped).contains("dynamic header checksum"), "{}", refusal(&flipped));
    type Change = fn(&mut DynamicHeader);
    let cases: [(Change, &str); 12] = [
        (|header| header.cookie[0] = 0, "dynamic header cookie"),
        (|header| header.header_version = 2.into(), "dynamic header version"),
        (|header| header.block_size = 0.into(), "block size"),
        (|header| header.block_size = 4095.into(), "block size"),
        (|header| header.block_size = 256.into(), "block size"),
        (|header| header.max_table_entries = 31.into(), "max table entries"),
        (|header| header.max_table_entries = u32::MAX.into(), "max table entries"),
        (|header| header.max_table_entries = (1 << 26).into(), "table offset"),
        (|header| header.table_offset = 1537.into(), "table offset"),
        (|header| header.table_offset = 0.into(), "table offset"),
        (|header| header.table_offset = 1024.into(), "table offset"),
        (|header| header.table_offset = u64::MAX.into(), "table offset"),
    ];
    for (number, (change, field)) in cases.into_iter().enumerate() {
        let refused = refusal(&with_header(&image, change));
        assert!(refused.contains(field), "{number}: {refused}");
    }
    let moved = with_footers(&image, |footer| footer.data_offset = (1u64 << 40).into());
    assert!(refusal(&moved).contains("data offset"));
    let larger = with_footers(&image, |footer| footer.current_size = (2 * SIZE).into());
    assert!(refusal(&larger).contains("max table entries"), "{}", refusal(&larger));
}

#[test]
fn each_entry_of_the_table_is_checked_and_all_are_reported() {
    let image = good(Subformat::Dynamic);
    let first = u32::from_be_bytes(image[BAT..BAT + 4].try_into().expect("an entry"));
    let end = (image.len() as u64 / SECTOR) as u32;
    for entry in [0, 1, 2, 3, end, end + 100, u32::MAX - 1, first, first + 1, first.wrapping_sub(1)] {
        let bad = with_entry(&image, 7, entry);
        assert!(refusal(&bad).contains("BAT entry"), "{entry}: {}", refusal(&bad));
        let file = CrashFile::new(bad);
        let report = check_in(&file, false).expect("a file");
        assert_eq!(report.worst(), Some(Severity::Damage), "{entry}");
        check_in(&file, true).expect("a file");
        assert!(
            check_in(&file, false).expect("a file").worst() <= Some(Severity::Leak),
            "{entry}: not repaired"
        );
        let disk = open(&file, None, false).expect("a repaired disk");
        let lost = entry == first || entry == first + 1 || entry == first.wrapping_sub(1);
        let values = disk.values().expect("contents");
        assert_eq!(values[40], Some(9), "{entry}: the block that was not in question");
        assert!(lost || values[0] == Some(9), "{entry}");
    }
    let mut bad = image;
    for block in 8..12 {
        bad = with_entry(&bad, block, 1 + block as u32 % 2);
    }
    let report = check_in(&CrashFile::new(bad), false).expect("a file");
    assert_eq!(report.findings.iter().filter(|finding| finding.field == "BAT entry").count(), 4);
}

#[test]
fn either_footer_serves() {
    let image = good(Subformat::Dynamic);
    let expected = open(&CrashFile::new(image.clone()), None, true).expect("a disk").values();
    let end = image.len();
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [Damage<'_>; 6] = [
        &|image| image[8] ^= 1,
        &|image| image[..512].fill(0),
        &|image| image[end - 500] ^= 1,
        &|image| image[end - 512..].fill(0),
        &|image| image.truncate(end - 512),
        // Truncate in the middle of the last block: the part before the cut is readable.
        &|image| image.truncate(end - 512 - 2048),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let mut image = image.clone();
        damage(&mut image);
        let file = CrashFile::new(image);
        let disk = open(&file, None, true).unwrap_or_else(|why| panic!("{number}: {why}"));
        assert_eq!(disk.values(), expected, "{number}");
        drop(disk);
        let report = check_in(&file, true).expect("a file");
        assert!(
            !report.findings.is_empty() && report.findings.iter().all(|finding| finding.repaired.is_some()),
            "{number}"
        );
        assert_eq!(check_in(&file, false).expect("a file").worst(), None, "{number}");
        // It is writable, too.
        let disk = open(&file, None, false).expect("a disk");
        disk.write_now(0, &stamped(4)).expect("a write");
        disk.write_now(SIZE - SECTOR, &stamped(4)).expect("a write");
    }
    // If both copies are damaged, the error says so.
    let mut image = image;
    image[8] ^= 1;
    image[end - 500] ^= 1;
    assert!(refusal(&image).contains("footer checksum"));
}

/// All kinds of requests.
fn use_it(file: &CrashFile, over: Option<&CrashFile>, random: &mut Random) -> bool {
    let _ = check_in(file, false);
    let mut opened = false;
    for read_only in [true, false] {
        let Ok(disk) = open(file, over, read_only) else { continue };
        opened = true;
        let _ = disk.values();
        if !read_only {
            for _ in 0..4 {
                let sector = random.below((disk.info().capacity / SECTOR).min(4 * SECTORS));
                let _ = disk.write_now(sector * SECTOR, &stamped(1));
                let _ = disk.write_zeroes(sector * SECTOR, SECTOR, true);
            }
            let _ = disk.flush();
        }
    }
    let _ = compact_in(&CrashFile::new(file.bytes()), |_, _| true);
    let _ = resize_in(&CrashFile::new(file.bytes()), SIZE * 2, false);
    let _ = check_in(file, true);
    opened
}

/// Images with some bytes changed, with right or wrong checksums: they are refused or usable, without a panic.
#[test]
fn no_content_makes_it_panic() {
    let base = parent();
    let (mut random, mut opened) = (Random(77), 0);
    let images = [good(Subformat::Dynamic), good(Subformat::Differencing)];
    let rounds = 3000;
    for round in 0..rounds {
        let number = round % 2;
        let mut image = images[number].clone();
        for _ in 0..1 + random.below(4) {
            // Mostly metadata: footers, header, BAT, the first bitmap.
            let at = match random.below(8) {
                0..3 => random.below(512),
                3..6 => 512 + random.below(HEADER_SIZE as u64),
                6 => BAT as u64 + random.below(128),
                _ => random.below(image.len() as u64),
            };
            image[at as usize] = match random.below(3) {
                0 => 0xFF,
                1 => 0,
                _ => random.next() as u8,
            };
        }
        if random.below(8) == 0 {
            image.truncate(random.below(image.len() as u64) as usize / 512 * 512);
        }
        if random.below(4) != 0 && image.len() > 4096 {
            image = with_header(&image, |_| {});
            let copy: Vec<u8> = image[..FOOTER_SIZE].to_vec();
            let end = image.len();
            image[end - FOOTER_SIZE..].copy_from_slice(&copy);
            image = with_footers(&image, |_| {});
        }
        let over = (number == 1).then_some(&base);
        opened += usize::from(use_it(&CrashFile::new(image), over, &mut random));
    }
    println!("{opened} of {rounds} opened");
    assert!(opened > rounds / 10 && opened < rounds);
}
