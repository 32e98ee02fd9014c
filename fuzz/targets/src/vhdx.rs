//! A file that calls itself a VHDX: opened, read, written.
//!
//! An image is too large for an input, so the input has changes of an image: a byte that says what is done, one that says where, then
//! records of a place and bytes. With the lowest bit of the first byte set, headers and region tables get valid checksums, so that
//! the code behind that check is reached.

use std::os::unix::fs::FileExt;

use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhdx::spec::{HEADERS_AT, MIB, REGION_TABLES_AT};
use paradisk_disk_formats::vhdx::{self, CreateOptions};
use paradisk_disk_formats::{Access, Format, FormatName, Image, OpenOptions, Repair, Shrink};
use tempfile::TempDir;

use crate::common::folder::temporary;
use crate::common::image::{self, Stored, read_some, seal_vhdx};

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
    folder: TempDir,
    images: Vec<Stored>,
}

fn use_it(format: &dyn Format, write: bool, place: u8) {
    let content = Content::new(format);
    read_some(content);
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

fn make() -> Images {
    let folder = temporary();
    let (parent, path) = (folder.path().join("parent.vhdx"), folder.path().join("fuzzed.vhdx"));
    let options = CreateOptions { block_size: Some(1 << 20), ..CreateOptions::default() };
    vhdx::create_dynamic(&parent, SIZE, options).expect("a parent");
    let mut images = Vec::new();
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
        let dirty = Stored::read(&path);
        drop(disk);
        images.extend([Stored::read(&path), dirty]);
        std::fs::remove_file(&path).expect("a file");
    }
    Images { folder, images }
}

thread_local! {
    // Not in a static: its folder is removed when the thread ends.
    static IMAGES: Images = make();
}

pub(crate) fn run(data: &[u8]) {
    IMAGES.with(|images| run_with(images, data));
}

fn run_with(images: &Images, data: &[u8]) {
    let [flags, place, records @ ..] = data else { return };
    let stored = &images.images[usize::from(flags >> 4) % images.images.len()];
    let path = images.folder.path().join("fuzzed.vhdx");
    let file = stored.write(&path);
    for (area, at, bytes) in image::records(records) {
        let (start, len) = AREAS[usize::from(area) % AREAS.len()];
        let at = u64::from(at) * if len > 1 << 16 { 61 } else { 1 };
        file.write_all_at(bytes, start + at % len).expect("a write");
    }
    if flags & 1 != 0 {
        seal_vhdx(&file);
    }
    if flags & 2 != 0 {
        file.set_len(u64::from(*place) * stored.len / 256).expect("a cut");
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
}
