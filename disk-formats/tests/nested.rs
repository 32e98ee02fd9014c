//! Nested images.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{LARGE_SECTORS, SMALL, bytes, can_direct, check, image, run_suite};
use paradisk_disk_formats::conformance::{Driver, Fresh, Peek};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{
    Disk, EngineKind, Format, FormatName, IoError, Op, OpenError, OpenOptions, Raw, Severity, vhd, vhdx,
};
use paradisk_disk_formats::{Image, Repair};

const CAPACITY: u64 = 16 << 20;
const MIB: u64 = 1 << 20;

/// Creates an image of this size at the path.
type Create = fn(&Path, u64);

const FIXED_VHD: Create = |path, size| vhd::create_fixed(path, size).expect("an image");
const DYNAMIC_VHD: Create = |path, size| vhd::create_dynamic(path, size, None).expect("an image");
const SMALL_VHD: Create = |path, size| vhd::create_dynamic(path, size, Some(16 << 10)).expect("an image");
const DYNAMIC_VHDX: Create = |path, size| vhdx::create_dynamic(path, size, SMALL).expect("an image");
const FIXED_VHDX: Create = |path, size| vhdx::create_fixed(path, size, SMALL).expect("an image");
const VHDX_4096: Create = |path, size| vhdx::create_dynamic(path, size, LARGE_SECTORS).expect("an image");
/// A differencing disk over an empty parent.
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
    let mut data = fs::read(inner).expect("an inner image");
    data.resize(data.len().next_multiple_of(4096), 0);
    for (number, chunk) in data.chunks(MIB as usize).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            let offset = at + number as u64 * MIB;
            Content::new(&*disk).write_at(chunk, offset).expect("space");
        }
    }
    disk.flush().expect("a good disk");
}

/// Create an image in an image at `path`. `inner` has `CAPACITY`, and `outer` has space for all of its blocks.
fn make(path: &Path, outer: Create, inner: Create) {
    let file = path.with_file_name("inner");
    inner(&file, CAPACITY);
    outer(path, 2 * CAPACITY);
    put(&file, path, 0);
    for file in [&file, &file.with_extension("parent")] {
        let _ = fs::remove_file(file);
    }
}

/// Reads the disk by opening copies of its files, as after the end of the process.
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
    conforms_opened(name, file, suffix, &[false], create);
}

/// As [`conforms`], also with O_DIRECT.
fn conforms_both(name: &str, file: &str, suffix: &'static str, create: &dyn Fn(&Path)) {
    conforms_opened(name, file, suffix, &[false, true], create);
}

fn conforms_opened(name: &str, file: &str, suffix: &'static str, direct: &[bool], create: &dyn Fn(&Path)) {
    for direct in direct.iter().copied() {
        if direct && !can_direct() {
            println!("SKIP: {name} with O_DIRECT: no direct I/O in the temporary directory");
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
        run_suite(&format!("{name}{}", if direct { " direct" } else { "" }), &make);
    }
}

#[test]
fn vhd_in_vhd() {
    conforms_both("VHD in VHD", "disk.vhd", "//", &|path| make(path, DYNAMIC_VHD, DYNAMIC_VHD));
    conforms("small blocks in small blocks", "disk.vhd", "//", &|path| make(path, SMALL_VHD, SMALL_VHD));
    conforms("fixed in dynamic", "disk.vhd", "//", &|path| make(path, DYNAMIC_VHD, FIXED_VHD));
    conforms("dynamic in fixed", "disk.vhd", "//", &|path| make(path, FIXED_VHD, DYNAMIC_VHD));
}

#[test]
fn vhdx_in_vhdx() {
    conforms_both("VHDX in VHDX", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, DYNAMIC_VHDX));
    conforms("fixed in dynamic", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, FIXED_VHDX));
    conforms("4096 in 512", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, VHDX_4096));
    conforms("4096 in 4096", "disk.vhdx", "//", &|path| make(path, VHDX_4096, VHDX_4096));
}

#[test]
fn one_in_the_other() {
    conforms_both("VHD in VHDX", "disk.vhdx", "//", &|path| make(path, DYNAMIC_VHDX, DYNAMIC_VHD));
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

/// The whole content of a disk.
fn content(path: &Path) -> Vec<u8> {
    let disk = OpenOptions { read_only: true, ..OpenOptions::new(path) }.open_format().expect("a disk");
    let mut data = vec![0; Content::new(&*disk).capacity() as usize];
    Content::new(&*disk).read_at(&mut data, 0).expect("a good disk");
    data
}

fn write(path: &Path, data: &[u8], offset: u64) {
    let disk = open(path).expect("a disk");
    Content::new(&*disk).write_at(data, offset).expect("space");
    disk.flush().expect("a good disk");
}

/// Write the content of the disk at `outer` to a file.
fn take_out(outer: &Path, file: &Path) {
    fs::write(file, content(outer)).expect("a file");
}

#[test]
fn what_is_written_inside_is_there_when_the_image_is_taken_out_and_put_back() {
    for (name, outer, inner, file) in [
        ("disk.vhd", DYNAMIC_VHD, SMALL_VHD, "out.vhd"),
        ("disk.vhdx", DYNAMIC_VHDX, DYNAMIC_VHD, "out.vhd"),
        ("disk.vhdx", DYNAMIC_VHDX, DYNAMIC_VHDX, "out.vhdx"),
        ("disk.vhd", SMALL_VHD, FIXED_VHD, "out.vhd"),
    ] {
        let (folder, path) = image(name);
        make(&path, outer, inner);
        let (nested, out) = (inside(&path, "//"), folder.path().join(file));
        let mut expected = vec![0; CAPACITY as usize];
        for (seed, offset) in [(1, 512), (2, 5 * MIB - 4096), (3, CAPACITY - MIB)] {
            let data = bytes(MIB as usize, seed);
            write(&nested, &data, offset);
            expected[offset as usize..][..data.len()].copy_from_slice(&data);
        }
        assert!(content(&nested) == expected, "{name}");
        take_out(&path, &out);
        // The outer disk is larger than the fixed VHD, so the file does not end with its footer.
        if inner as usize != FIXED_VHD as usize {
            assert!(content(&out) == expected, "{name}: taken out");
            write(&out, &[0x77; 4096], 8 * MIB);
            expected[8 * MIB as usize..][..4096].fill(0x77);
            let again = folder.path().join("again").with_extension(path.extension().expect("one"));
            outer(&again, 2 * CAPACITY);
            put(&out, &again, 0);
            assert!(content(&inside(&again, "//")) == expected, "{name}: put back");
        }
        let report = Image::open(&nested).and_then(|image| image.check(Repair::ReportOnly));
        assert_eq!(report.expect("it can be read").findings, [], "{name}");
    }
}

/// Space that a guest frees is freed in both images, and can be reused.
#[test]
fn discards_reach_the_host() {
    use std::os::unix::fs::MetadataExt;
    for (name, outer, inner) in [
        ("disk.vhdx", DYNAMIC_VHDX, DYNAMIC_VHDX),
        ("disk.vhd", DYNAMIC_VHD, DYNAMIC_VHD),
        ("disk.vhdx", DYNAMIC_VHDX, DYNAMIC_VHD),
    ] {
        let (_folder, path) = image(name);
        make(&path, outer, inner);
        let stored = || fs::metadata(&path).expect("a file").blocks() * 512;
        let disk = open(&inside(&path, "//")).expect("a disk");
        let write = |seed| {
            let data = bytes(8 * MIB as usize, seed);
            Content::new(&*disk).write_at(&data, 0).expect("space");
            disk.flush().expect("a good disk");
            data
        };
        write(1);
        let full = stored();
        disk.discard(0, 8 * MIB).expect("it can");
        // Each of the two images reuses freed space only after its next flush.
        for _ in 0..3 {
            disk.write_zeroes(8 * MIB, MIB, true).expect("it can");
            Content::new(&*disk).write_at(&[1; 512], 9 * MIB).expect("space");
            disk.flush().expect("a good disk");
        }
        assert!(stored() + 6 * MIB < full, "{name}: {} of {full} bytes are stored", stored());
        let mut read = vec![1; 8 * MIB as usize];
        Content::new(&*disk).read_at(&mut read, 0).expect("a good disk");
        assert!(read.iter().all(|byte| *byte == 0));
        let data = write(2);
        drop(disk);
        assert!(content(&inside(&path, "//"))[..8 * MIB as usize] == data, "{name}");
    }
}

/// Concurrent writes, reads and discards: each sector reads as it was written last, or as zeros after a discard.
#[test]
fn blocks_that_come_and_go_never_show_foreign_data() {
    let (_folder, path) = image("disk.vhdx");
    make(&path, DYNAMIC_VHDX, DYNAMIC_VHDX);
    let disk = OpenOptions::new(inside(&path, "//")).open().expect("a disk");
    std::thread::scope(|scope| {
        for lane in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                let mut driver = Driver::new(&**disk, EngineKind::IoUring, 4);
                let (start, tag) = (lane * 4 * MIB, lane + 1);
                for round in 0..40u64 {
                    let data = bytes(MIB as usize, (tag << 4) + round % 16);
                    let at = start + round % 4 * MIB;
                    driver.write(at, &data);
                    assert!(driver.read(at, MIB as usize) == data, "lane {lane}, round {round}");
                    if round % 3 == 0 {
                        driver.run(Op::Discard, at, MIB, &[]).expect("it can");
                        assert!(driver.read(at, MIB as usize).iter().all(|byte| *byte == 0));
                    }
                    if round % 5 == 0 {
                        driver.run(Op::Flush, 0, 0, &[]).expect("it can");
                    }
                }
            });
        }
    });
    drop(disk);
    let worst = check(&path, false).expect("it can be read").worst();
    assert!(worst <= Some(Severity::Leak), "{worst:?}");
    assert_eq!(
        Image::open(inside(&path, "//")).unwrap().check(Repair::ReportOnly).expect("it can be read").findings,
        []
    );
}

#[test]
fn a_full_container_leaves_the_disk_as_it_was() {
    for (name, outer, inner, space) in [
        ("disk.vhd", DYNAMIC_VHD, DYNAMIC_VHD, 5 * MIB),
        // Two blocks fit exactly, but not the footer after them.
        ("disk.vhd", DYNAMIC_VHD, DYNAMIC_VHD, 4 * MIB + 4096),
        ("disk.vhdx", DYNAMIC_VHDX, DYNAMIC_VHDX, 7 * MIB),
    ] {
        let (folder, path) = image(name);
        let file = folder.path().join("inner");
        inner(&file, CAPACITY);
        outer(&path, space);
        put(&file, &path, 0);
        let nested = inside(&path, "//");
        let disk = open(&nested).expect("a disk");
        let mut expected = vec![0; CAPACITY as usize];
        let mut refused = 0;
        for block in 0..8 {
            let data = bytes(512, block);
            let at = block * 2 * MIB;
            match disk.prepare_write(at, 512) {
                Ok(()) => {
                    Content::new(&*disk).write_at(&data, at).expect("it was prepared");
                    expected[at as usize..][..512].copy_from_slice(&data);
                }
                Err(error) => {
                    assert_eq!(error, IoError::NoSpace, "{name}, {space}");
                    refused += 1;
                }
            }
            disk.flush().unwrap_or_else(|error| panic!("{name}, {space}, block {block}: {error}"));
        }
        assert!((1..8).contains(&refused), "{name}: {refused} of 8 refused");
        drop(disk);
        assert!(content(&nested) == expected, "{name}, {space}");
    }
}

/// Create a disk with an MBR that has one partition (type 83h), from 1 MiB to the end.
fn partitioned(path: &Path, create: Create, size: u64) {
    create(path, size);
    let mut table = [0; 512];
    table[450] = 0x83;
    table[454..458].copy_from_slice(&2048u32.to_le_bytes());
    table[458..462].copy_from_slice(&((size / 512) as u32 - 2048).to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xAA]);
    write(path, &table, 0);
}

const RAW: Create = |path, size| Raw::create(path, size).expect("an image");

#[test]
fn images_in_partitions() {
    for (name, outer) in [("disk.vhdx", DYNAMIC_VHDX), ("disk.raw", RAW)] {
        for (inner, kind) in [(DYNAMIC_VHD, "vhd"), (FIXED_VHD, "vhd"), (DYNAMIC_VHDX, "vhdx"), (RAW, "raw")]
        {
            let (folder, path) = image(name);
            let file = folder.path().join("inner");
            inner(&file, CAPACITY);
            partitioned(&path, outer, 3 * CAPACITY);
            put(&file, &path, MIB);
            let nested = inside(&path, "//1");
            assert_eq!(FormatName::probe(&nested).expect("a format").as_str(), kind);
            let data = bytes(3 * MIB as usize, 9);
            write(&nested, &data, 512);
            assert!(content(&nested)[512..][..data.len()] == data, "{kind} in {name}");
            refused(&inside(&path, "//2"), "partition is 2, expected one that the partition table has");
            refused(&inside(&path, "//99999999999"), "expected 1 to 128");
            if kind == "raw" {
                let as_vhd = OpenOptions { format: Some(FormatName::Vhd), ..OpenOptions::new(&nested) };
                let error = as_vhd.open_format().err().expect("it is none").to_string();
                assert!(error.contains("//1: VHD footer is missing"), "{error}");
            }
        }
    }
    // An image in an image in a partition.
    let (folder, path) = image("disk.vhdx");
    let middle = folder.path().join("middle.vhdx");
    make(&middle, DYNAMIC_VHDX, DYNAMIC_VHD);
    partitioned(&path, DYNAMIC_VHDX, 4 * CAPACITY);
    put(&middle, &path, MIB);
    let nested = inside(&path, "//1//");
    write(&nested, &[5; 4096], 4096);
    assert!(content(&nested)[4096..8192] == [5; 4096]);
}

#[test]
fn what_cannot_be_nested_says_why() {
    let (folder, path) = image("disk.vhdx");
    let fill = |inner: Create, outer: Create| {
        let _ = fs::remove_file(&path);
        make(&path, outer, inner);
        inside(&path, "//")
    };
    refused(
        &fill(CHILD_VHD, DYNAMIC_VHDX),
        "//: a differencing disk inside another disk: its parent lies in no directory",
    );
    refused(&fill(CHILD_VHDX, DYNAMIC_VHDX), "//: a differencing disk inside another disk");
    refused(
        &fill(DYNAMIC_VHD, VHDX_4096),
        "//: a VHD has sectors of 512 bytes, but the outer disk has sectors of 4096",
    );
    refused(
        &fill(DYNAMIC_VHDX, VHDX_4096),
        "//: it has sectors of 512 bytes, but the outer disk has sectors of 4096",
    );
    refused(&fill(RAW, DYNAMIC_VHDX), "//: the disk holds no image");
    refused(&inside(&path, "//1"), "//1: partition table is missing");
    refused(&inside(&path, "//////"), "leads through 3 disks, expected at most 2");
    refused(&folder.path().join("missing.vhdx//"), "missing.vhdx: cannot open: No such file");
    refused(&inside(folder.path(), "//"), "expected a regular file or a block device");
    let passthrough =
        OpenOptions { format: Some(FormatName::Passthrough), ..OpenOptions::new(inside(&path, "//")) };
    let error = passthrough.open_format().err().expect("it is refused").to_string();
    assert!(error.contains("format passthrough is for block devices"), "{error}");
    // Whatever is written there would be written over the outer image's disk, which has its own path.
    for nested in ["//", "////"] {
        let raw = OpenOptions { format: Some(FormatName::Raw), ..OpenOptions::new(inside(&path, nested)) };
        let error = raw.open_format().err().expect("it is refused").to_string();
        let expected =
            if nested == "//" { "as raw it is the outer disk itself" } else { "the disk holds no image" };
        assert!(error.contains(expected), "{error}");
    }
}

/// The image has blocks beyond the end of the outer disk.
#[test]
fn an_image_that_was_cut_is_refused_or_reads_with_an_error() {
    for (name, outer, inner) in
        [("disk.vhd", DYNAMIC_VHD, DYNAMIC_VHD), ("disk.vhdx", DYNAMIC_VHDX, DYNAMIC_VHDX)]
    {
        let (folder, path) = image(name);
        let file = folder.path().join("inner").with_extension(path.extension().expect("one"));
        inner(&file, CAPACITY);
        write(&file, &bytes(12 * MIB as usize, 1), 0);
        let mut data = fs::read(&file).expect("an image");
        data.truncate(8 * MIB as usize);
        fs::write(&file, data).expect("an image");
        outer(&path, 8 * MIB);
        put(&file, &path, 0);
        let nested = inside(&path, "//");
        refused(&nested, "BAT entry is");
        let disk =
            OpenOptions { read_only: true, ..OpenOptions::new(&nested) }.open_format().expect("a look");
        let mut read = vec![0; MIB as usize];
        let content = Content::new(&*disk);
        content.read_at(&mut read, 0).expect("the first blocks are there");
        assert!(read == bytes(12 * MIB as usize, 1)[..MIB as usize]);
        let error = content.read_at(&mut read, 11 * MIB).unwrap_err().to_string();
        assert!(error.contains("behind the end of the file"), "{error}");
    }
}

/// Some programs leave the last block truncated.
#[test]
fn an_image_whose_last_block_is_short_is_read() {
    let (folder, path) = image("disk.vhdx");
    let file = folder.path().join("inner.vhdx");
    vhdx::create_fixed(&file, 2 * MIB, SMALL).expect("an image");
    let data = bytes(3 * MIB as usize / 2, 3);
    write(&file, &data, 0);
    let len = fs::metadata(&file).expect("an image").len() - MIB / 2;
    fs::File::options().write(true).open(&file).and_then(|file| file.set_len(len)).expect("an image");
    DYNAMIC_VHDX(&path, len);
    put(&file, &path, 0);
    let read = content(&inside(&path, "//"));
    assert!(read[..data.len()] == data && read[data.len()..].iter().all(|byte| *byte == 0));
}
