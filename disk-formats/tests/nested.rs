//! Images inside disks.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{bytes, can_direct, image};
use disk_formats::conformance::{Driver, Fresh, Peek, Suite};
use disk_formats::image::Content;
use disk_formats::vhdx::{self, CreateOptions};
use disk_formats::{
    Disk, EngineKind, Format, FormatName, IoError, OpenError, OpenOptions, Raw, SectorSize, vhd,
};

const CAPACITY: u64 = 16 << 20;
const MIB: u64 = 1 << 20;
const BOTH: [(EngineKind, &str); 2] = [(EngineKind::IoUring, "io_uring"), (EngineKind::Threads, "threads")];
const SMALL: CreateOptions =
    CreateOptions { block_size: Some(1 << 20), logical_sector: None, physical_sector: None };
const LARGE_SECTORS: CreateOptions = CreateOptions { logical_sector: Some(SectorSize::B4096), ..SMALL };

/// Makes an image of this size at the path.
type Create = fn(&Path, u64);

const FIXED_VHD: Create = |path, size| vhd::create_fixed(path, size).expect("an image");
const DYNAMIC_VHD: Create = |path, size| vhd::create_dynamic(path, size, None).expect("an image");
const SMALL_VHD: Create = |path, size| vhd::create_dynamic(path, size, Some(16 << 10)).expect("an image");
const DYNAMIC_VHDX: Create = |path, size| vhdx::create_dynamic(path, size, SMALL).expect("an image");
const FIXED_VHDX: Create = |path, size| vhdx::create_fixed(path, size, SMALL).expect("an image");
const VHDX_4096: Create = |path, size| vhdx::create_dynamic(path, size, LARGE_SECTORS).expect("an image");
/// A child of its own kind over nothing but zeros.
const CHILD_VHDX: Create = |path, size| {
    let parent = path.with_extension("parent");
    DYNAMIC_VHDX(&parent, size);
    vhdx::create_differencing(path, &parent, Some(1 << 20)).expect("an image");
};
const CHILD_VHD: Create = |path, size| {
    let parent = path.with_extension("parent");
    DYNAMIC_VHD(&parent, size);
    vhd::create_differencing(path, &parent, Some(64 << 10)).expect("an image");
};

fn inside(path: &Path, suffix: &str) -> PathBuf {
    format!("{}{suffix}", path.display()).into()
}

fn open(path: &Path) -> Result<Arc<dyn Format>, OpenError> {
    OpenOptions::new(path).open_format()
}

fn refused(path: &Path, expected: &str) {
    let error = open(path).err().expect("it is refused").to_string();
    assert!(error.contains(expected), "{error}\nexpected: {expected}");
}

/// Make the file `inner` the content of the disk at `outer`, as `image convert --from-format raw` would.
fn put(inner: &Path, outer: &Path, at: u64) {
    let disk = open(outer).expect("an outer disk");
    let data = fs::read(inner).expect("an inner image");
    for (number, chunk) in data.chunks(MIB as usize).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            let offset = at + number as u64 * MIB;
            Content::new(&*disk).write_at(chunk, offset).expect("room");
        }
    }
    disk.flush().expect("a good disk");
}

/// An image in an image in a folder: `outer` around `inner`, which has `CAPACITY` and room for all of its blocks.
fn make(path: &Path, outer: Create, inner: Create) {
    let file = path.with_file_name("inner");
    inner(&file, CAPACITY);
    outer(path, 2 * CAPACITY);
    put(&file, path, 0);
    for file in [&file, &file.with_extension("parent")] {
        let _ = fs::remove_file(file);
    }
}

/// A second open of copies of the files, after a power failure as it were.
fn peek(path: &Path, suffix: &'static str) -> Option<Peek> {
    let path = path.to_path_buf();
    Some(Box::new(move |offset, data| {
        let folder = path.parent().expect("a folder");
        let copies = tempfile::tempdir().expect("a temporary folder");
        for entry in fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), copies.path().join(entry.file_name())).expect("a copy");
        }
        let copy = inside(&copies.path().join(path.file_name().expect("a name")), suffix);
        let disk = OpenOptions { read_only: true, ..OpenOptions::new(copy) }.open().expect("a disk");
        data.copy_from_slice(&Driver::new(&*disk, EngineKind::Threads, 1).read(offset, data.len()));
    }))
}

fn conforms(name: &str, file: &str, suffix: &'static str, create: &dyn Fn(&Path)) {
    for direct in [false, true] {
        if direct && !can_direct() {
            println!("skipped {name} with O_DIRECT: no direct I/O in the temporary directory");
            continue;
        }
        let make = |read_only: bool| {
            let (folder, path) = image(file);
            create(&path);
            let options =
                OpenOptions { read_only, direct: Some(direct), ..OpenOptions::new(inside(&path, suffix)) };
            let disk: Arc<dyn Disk> = options.open().expect("a disk");
            assert_eq!(disk.info().capacity, CAPACITY);
            Fresh { disk, peek: peek(&path, suffix), hold: Box::new(folder) }
        };
        Suite {
            name: &format!("{name}{}", if direct { " direct" } else { "" }),
            make: &|| make(false),
            make_read_only: Some(&|| make(true)),
            engines: &BOTH,
            keeps_data: true,
        }
        .run();
    }
}

#[test]
fn vhd_in_vhd() {
    conforms("VHD in VHD", "disk.vhd", "//", &|path| make(path, DYNAMIC_VHD, DYNAMIC_VHD));
    conforms("small blocks in small blocks", "disk.vhd", "//", &|path| make(path, SMALL_VHD, SMALL_VHD));
    conforms("fixed in dynamic", "disk.vhd", "//", &|path| make(path, DYNAMIC_VHD, FIXED_VHD));
    conforms("dynamic in fixed", "disk.vhd", "//", &|path| make(path, FIXED_VHD, DYNAMIC_VHD));
}

#[test]
fn vhdx_in_vhdx() {
    conforms("VHDX in VHDX", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, DYNAMIC_VHDX));
    conforms("fixed in dynamic", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, FIXED_VHDX));
    conforms("4096 in 512", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, VHDX_4096));
    conforms("4096 in 4096", "disk.vhdx", "//", &|path| make(path, VHDX_4096, VHDX_4096));
}

#[test]
fn one_in_the_other() {
    conforms("VHD in VHDX", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, DYNAMIC_VHD));
    conforms("VHDX in VHD", "disk.vhd", "//", &|path| make(path, SMALL_VHD, DYNAMIC_VHDX));
    conforms("VHDX in a differencing VHD", "disk.vhd", "//", &|path| make(path, CHILD_VHD, DYNAMIC_VHDX));
    conforms("VHD in a differencing VHDX", "disk.vhdx", "//", &|path| make(path, CHILD_VHDX, SMALL_VHD));
}

#[test]
fn two_levels() {
    conforms("three VHDs", "disk.vhd", "////", &|path| {
        let middle = path.with_file_name("middle.vhd");
        make(&middle, DYNAMIC_VHD, DYNAMIC_VHD);
        vhd::create_dynamic(path, 3 * CAPACITY, None).expect("an image");
        put(&middle, path, 0);
        fs::remove_file(middle).expect("a file");
    });
    conforms("three VHDX", "disk.vhdx", "////", &|path| {
        let middle = path.with_file_name("middle.vhdx");
        make(&middle, DYNAMIC_VHDX, DYNAMIC_VHDX);
        DYNAMIC_VHDX(path, 4 * CAPACITY);
        put(&middle, path, 0);
        fs::remove_file(middle).expect("a file");
    });
}
