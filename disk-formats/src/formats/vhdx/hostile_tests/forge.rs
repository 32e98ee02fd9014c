//! Images with chosen bytes changed, and the results of opening them.
//!
//! The checksums of changed headers and region tables are corrected, so that a test reaches the check behind the
//! checksum.

use zerocopy::{FromBytes, IntoBytes};

use super::super::spec::{HEADER_SIZE, HEADERS_AT, Header, MIB, REGION_TABLES_AT, TABLE_SIZE};
use super::super::testing::{Shape, new_image, open, read};
use crate::contract::info::SectorSize;
use crate::host::crash::{CrashFile, Image, stamped, value_of};

/// Offsets of the structures of a new image.
pub(super) const LOG: u64 = MIB;
pub(super) const METADATA: u64 = 2 * MIB;
pub(super) const BAT: u64 = 3 * MIB;
pub(super) const SHAPE: Shape =
    Shape { size: 6 * MIB, block_size: 1 << 20, sector: SectorSize::B512, fixed: false };
/// Blocks that are written: the first and the last 4 KiB of each have the value `VALUE` plus its number.
pub(super) const WRITTEN: [u64; 3] = [0, 2, 5];
pub(super) const VALUE: u64 = 0xAB00;

/// A disk with three blocks; a differencing disk has an empty parent.
pub(super) fn good(differencing: bool) -> (Image, Vec<CrashFile>) {
    let below = if differencing { vec![new_image(SHAPE, None)] } else { Vec::new() };
    let files: Vec<CrashFile> =
        std::iter::once(new_image(SHAPE, below.first())).chain(below).map(CrashFile::of).collect();
    let disk = open(&files, false).expect("a disk");
    for block in WRITTEN {
        disk.write_now(block * MIB, &stamped(VALUE + block).repeat(8)).expect("a write");
        disk.write_now((block + 1) * MIB - 4096, &stamped(VALUE + block).repeat(8)).expect("a write");
    }
    drop(disk);
    let image = files[0].image();
    (image, files[1..].to_vec())
}

pub(super) fn put(image: &Image, at: u64, bytes: &[u8]) -> Image {
    let mut image = image.clone();
    image.write(bytes, at);
    image
}

pub(super) fn get<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    image.read(&mut bytes, at);
    bytes
}

/// Change these headers, and correct their checksums.
pub(super) fn with_headers(image: &Image, which: &[usize], change: impl Fn(&mut Header)) -> Image {
    let mut image = image.clone();
    for at in which.iter().map(|which| HEADERS_AT[*which]) {
        let mut header = Header::read_from_bytes(&get::<HEADER_SIZE>(&image, at)).expect("a header");
        change(&mut header);
        header.seal();
        image.write(header.as_bytes(), at);
    }
    image
}

/// Change both region tables, and correct their checksums.
pub(super) fn with_tables(image: &Image, change: impl Fn(&mut [u8])) -> Image {
    let mut image = image.clone();
    for at in REGION_TABLES_AT {
        let mut table = get::<TABLE_SIZE>(&image, at);
        change(&mut table);
        table[4..8].fill(0);
        let checksum = crc32c::crc32c(&table);
        table[4..8].copy_from_slice(&checksum.to_le_bytes());
        image.write(&table, at);
    }
    image
}

pub(super) fn with_entry(image: &Image, index: u64, entry: u64) -> Image {
    put(image, BAT + index * 8, &entry.to_le_bytes())
}

pub(super) fn entry(image: &Image, index: u64) -> u64 {
    u64::from_le_bytes(get(image, BAT + index * 8))
}

pub(super) fn files(image: &Image, below: &[CrashFile]) -> Vec<CrashFile> {
    std::iter::once(CrashFile::of(image.clone())).chain(below.iter().cloned()).collect()
}

pub(super) fn refusal(image: &Image, below: &[CrashFile]) -> String {
    let all = files(image, below);
    let why = open(&all, false).err().expect("it opened");
    assert_eq!(all[0].len_of_log(), 0, "changed before it was refused: {why}");
    why
}

/// The first value of each block; `None` if it cannot be read.
pub(super) fn values(image: &Image, below: &[CrashFile]) -> Vec<Option<u64>> {
    let files = files(image, below);
    let disk = open(&files, true).expect("a disk");
    let value = |block: u64| {
        let mut bytes = [0; 512];
        read(&disk, &files, &mut bytes, block * MIB).ok().and_then(|()| value_of(&bytes))
    };
    (0..6).map(value).collect()
}

pub(super) const EXPECTED: [Option<u64>; 6] =
    [Some(VALUE), Some(0), Some(VALUE + 2), Some(0), Some(0), Some(VALUE + 5)];
