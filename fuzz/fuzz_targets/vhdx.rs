//! A file that calls itself a VHDX: opened, read, written.
//!
//! An image is too large for an input, so the input has changes of an image: a byte that says what is done, one that says where, then
//! records of a place and bytes. With the lowest bit of the first byte set, headers and region tables get valid checksums, so that
//! the code behind that check is reached.
#![no_main]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use paradisk_disk_formats::image::{Content, Runs};
use paradisk_disk_formats::vhdx::spec::{HEADER_SIZE, HEADERS_AT, MIB, REGION_TABLES_AT, TABLE_SIZE};
use paradisk_disk_formats::vhdx::{self, CreateOptions};
use paradisk_disk_formats::{Access, Format, FormatName, Image, OpenOptions, Repair, Shrink};

const SIZE: u64 = 6 * MIB;

/// Areas that the records change: start and bytes. The first byte of a record selects one.
const AREAS: [(u64, u64); 12] = [
    (HEADERS_AT[0], 128),
    (HEADERS_AT[1], 128),
    (REGION_TABLES_AT[0], 128),
    (REGION_TABLES_AT[1], 128),
    // The log: an entry's header and descriptors, then data.
    (MIB, 256),
    (MIB, 64 << 10),
    // The metadata: table, and items.
    (2 * MIB, 256),
    ((2 * MIB) + (64 << 10), 1024),
    // The BAT: of blocks, and of bitmaps.
    (3 * MIB, 64),
    (3 * MIB + (32 << 10), 16),
    // Bitmaps, and anything.
    (4 * MIB, 9 * MIB),
    (0, 9 * MIB),
];

/// Images as they are made: dynamic, differencing; clean, and with a log. Their parent's path is the same for all.
struct Images {
    folder: tempfile::TempDir,
    images: Vec<Vec<(u64, Vec<u8>)>>,
    lengths: Vec<u64>,
}

fn use_it(format: &dyn Format, write: bool, place: u8) {
    let content = Content::new(format);
    // Bounded: a disk may claim 64 TiB.
    let mut buffer = [0; 4096];
    for step in 0..16 {
        let offset = content.capacity() / 16 * step / 4096 * 4096;
        if offset + 4096 <= content.capacity() {
            let _ = content.read_at(&mut buffer, offset);
        }
    }
    let _ = Runs::new(content).take(64).count();
    if write && content.capacity() >= MIB {
        let offset = content.capacity() / 256 * u64::from(place) / 4096 * 4096;
        let offset = offset.min(content.capacity() - MIB) / 4096 * 4096;
        let _ = content.write_at(&[0x5A; 4096], offset);
        let _ = format.write_zeroes(offset + 4096, 4096, true);
        let _ = format.flush();
        let _ = format.discard(offset / MIB * MIB, MIB);
        let _ = content.write_at(&[0xA5; 4096], 0);
        let _ = format.write_zeroes(0, MIB, place & 1 != 0);
        let _ = format.flush();
    }
}

/// The file without the pages of zeros.
fn pages(path: &Path) -> (u64, Vec<(u64, Vec<u8>)>) {
    let bytes = std::fs::read(path).expect("a file");
    let pages =
        bytes.chunks(4096).zip((0..).step_by(4096)).filter(|(page, _)| page.iter().any(|byte| *byte != 0));
    (bytes.len() as u64, pages.map(|(page, at)| (at, page.to_vec())).collect())
}

fn make() -> Images {
    let folder = tempfile::tempdir().expect("a folder");
    let (parent, path) = (folder.path().join("parent.vhdx"), folder.path().join("fuzzed.vhdx"));
    let options = CreateOptions { block_size: Some(1 << 20), ..CreateOptions::default() };
    vhdx::create_dynamic(&parent, SIZE, options).expect("a parent");
    let (mut images, mut lengths) = (Vec::new(), Vec::new());
    for differencing in [false, true] {
        match differencing {
            false => vhdx::create_dynamic(&path, SIZE, options),
            true => vhdx::create_differencing(&path, &parent, Some(1 << 20)),
        }
        .expect("an image");
        let disk = OpenOptions::new(&path).open_format().expect("a disk");
        for block in [0, 2, 5] {
            Content::new(&*disk).write_at(&[0x11; 8192], block * MIB).expect("a write");
        }
        disk.flush().expect("a flush");
        // Still open: with a log.
        let dirty = pages(&path);
        drop(disk);
        for (length, image) in [pages(&path), dirty] {
            images.push(image);
            lengths.push(length);
        }
        std::fs::remove_file(&path).expect("a file");
    }
    Images { folder, images, lengths }
}

/// Good checksums for headers and region tables.
fn seal(file: &std::fs::File) {
    let parts = HEADERS_AT.map(|at| (at, HEADER_SIZE)).into_iter();
    for (at, len) in parts.chain(REGION_TABLES_AT.map(|at| (at, TABLE_SIZE))) {
        let mut bytes = vec![0; len];
        if file.read_exact_at(&mut bytes, at).is_ok() {
            bytes[4..8].fill(0);
            let checksum = crc32c::crc32c(&bytes).to_le_bytes();
            file.write_all_at(&checksum, at + 4).expect("a write");
        }
    }
}

fuzz_target!(|data: &[u8]| {
    static IMAGES: OnceLock<Images> = OnceLock::new();
    let images = IMAGES.get_or_init(make);
    let [flags, place, records @ ..] = data else { return };
    let number = usize::from(flags >> 4) % images.images.len();
    let path = images.folder.path().join("fuzzed.vhdx");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .expect("a file");
    file.set_len(images.lengths[number]).expect("free space");
    for (at, page) in &images.images[number] {
        file.write_all_at(page, *at).expect("a write");
    }
    // A record: area, place in it (two bytes), number of bytes, the bytes.
    for record in records.chunks_exact(12).take(64) {
        let (start, len) = AREAS[usize::from(record[0]) % AREAS.len()];
        let at = u64::from(u16::from_le_bytes([record[1], record[2]]));
        let at = if len > 1 << 16 { at * 61 } else { at };
        let bytes = &record[4..4 + 1 + usize::from(record[3]) % 8];
        file.write_all_at(bytes, start + at % len).expect("a write");
    }
    if flags & 1 != 0 {
        seal(&file);
    }
    if flags & 2 != 0 {
        file.set_len(u64::from(*place) * images.lengths[number] / 256).expect("a cut");
    }
    drop(file);
    let write = flags & 4 != 0;
    let options = OpenOptions { read_only: !write, ..OpenOptions::new(&path) };
    if let Ok(format) = options.open_format() {
        use_it(&*format, write, *place);
    }
    if let Ok(alone) = vhdx::open_alone(&path, Access { read_only: !write, direct: false }) {
        use_it(&*alone, write, *place);
    }
    if flags & 8 != 0 {
        let image = Image::of_format(&path, FormatName::Vhdx);
        let _ = image.check(Repair::Repair);
        let shrink = if place & 1 != 0 { Shrink::Allow } else { Shrink::Refuse };
        let _ = image.resize(u64::from(*place) * MIB, shrink);
        let _ = image.compact(|_, _| true);
    }
});
