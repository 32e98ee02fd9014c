use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::*;
use crate::contract::error::IoError;
use crate::formats::copy::scattered::{Scattered, sample, sparse, vhd};
use crate::formats::flat::raw::Raw;
use crate::formats::open::OpenOptions;
use crate::formats::vhd::{create_dynamic, create_fixed};
use crate::formats::vhdx::{self, CreateOptions};
use crate::host::backing::Access;
use crate::image::{compare, default_workers};
use crate::map::format::Format;
use crate::queue::conformance::Random;

const MIB: u64 = 1 << 20;
const READ: Access = Access::READ_ONLY;
const WRITE: Access = Access { read_only: false, direct: false };

fn converted(source: &dyn Format, destination: &dyn Format) -> Result<Converted, ImageError> {
    let (cancel, furthest) = (AtomicBool::new(false), AtomicU64::new(0));
    let capacity = source.info().capacity;
    let progress = |done: u64, total: u64| {
        assert!(done <= total && total == capacity);
        furthest.fetch_max(done, Ordering::Relaxed);
    };
    let control = Control { workers: default_workers(), cancel: &cancel, progress: &progress };
    let source = Content::new(source);
    let destination = Content::new(destination);
    let done = convert(source, destination, &control)?;
    assert_eq!(furthest.load(Ordering::Relaxed), capacity);
    let control = Control { progress: &|_, _| {}, ..control };
    assert_eq!(compare(source, destination, &control)?.first_difference, None);
    Ok(done)
}

#[test]
fn every_format_into_every_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Sizes that are whole sectors and no other unit.
    for (number, len) in
        [512, 4096, 7 * 512, 3 * CHUNK as usize + 1536, WINDOW as usize + 5 * 512].into_iter().enumerate()
    {
        let size = len as u64;
        let data = sample(len, 1000 + number as u64);
        sparse(&path("a.img"), &data);
        let raw = Raw::open(&path("a.img"), READ).unwrap();

        create_fixed(&path("a.vhd"), size).unwrap();
        let fixed = vhd(&path("a.vhd"), WRITE);
        let done = converted(&raw, &*fixed).unwrap();
        let filled: usize = filled(&data, 4096).map(|part| part.len()).sum();
        assert_eq!(done.cloned + done.copied_by_server + done.written, filled as u64);
        drop(fixed);
        let fixed = vhd(&path("a.vhd"), READ);

        create_dynamic(&path("d.vhd"), size, Some(512 << 10)).unwrap();
        let dynamic = vhd(&path("d.vhd"), WRITE);
        converted(&*fixed, &*dynamic).unwrap();
        drop(dynamic);
        let dynamic = vhd(&path("d.vhd"), READ);

        let scattered = Scattered::create(folder.path(), size / 512);
        converted(&*dynamic, &scattered).unwrap();
        assert_eq!(scattered.flushes(), 1);

        Raw::create(&path("b.img"), size + 512).unwrap();
        let back = Raw::open(&path("b.img"), WRITE).unwrap();
        converted(&scattered, &back).unwrap();
        drop(back);
        let seen = std::fs::read(path("b.img")).unwrap();
        assert!(seen[..len] == data && seen[len..] == [0; 512]);
        for name in ["a.vhd", "b.img", "d.vhd"] {
            std::fs::remove_file(path(name)).unwrap();
        }
    }
}

#[test]
fn zeros_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let mut data = vec![0; 1 << 20];
    data[70_000] = 1;
    data[500_000..600_000].fill(2);
    // Stored zeros, not holes.
    std::fs::write(&path, &data).unwrap();
    let raw = Raw::open(&path, READ).unwrap();
    let scattered = Scattered::create(folder.path(), (1 << 20) / 512);
    // The data are longer than the shortest clone, but are not cloned: the zeros around them are skipped.
    let done = converted(&raw, &scattered).unwrap();
    let blocks = 1 + (600_000usize.div_ceil(4096) - 500_000 / 4096) as u64;
    assert_eq!((done.written, done.cloned), (blocks * 4096, 0));
}

/// Bytes that the file system has allocated to a file.
fn space(path: &Path) -> u64 {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    file.metadata().unwrap().blocks() * 512
}

/// Blocks of any size keep holes where the source has zeros.
#[test]
fn a_new_image_has_no_more_space_than_data_and_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut random = Random(3);
    let every = |step, len| (0..64 * MIB / step).map(move |n| (n * step, len)).collect::<Vec<_>>();
    let few = every(64 << 10, 64 << 10).into_iter().filter(|_| random.below(10) < 3).collect();
    let patterns = [
        every(8 * MIB, 64 << 10),
        every(MIB, 4096),
        every(64 << 10, 4096),
        vec![(0, 32 * MIB)],
        vec![(64 * MIB - 4096, 4096)],
        few,
        vec![],
    ];
    let formats = [("a.vhd", 4096), ("a.vhd", 2 * MIB), ("a.vhdx", MIB), ("a.vhdx", 32 * MIB)];
    for (number, parts) in patterns.iter().enumerate() {
        let file = std::fs::File::create(path("a.img")).unwrap();
        // Stored zeros, then data and holes.
        file.write_all_at(&vec![0; MIB as usize], 0).unwrap();
        file.set_len(64 * MIB).unwrap();
        for (offset, len) in parts {
            file.write_all_at(&vec![0x5A; *len as usize], *offset).unwrap();
        }
        drop(file);
        let data: u64 = parts.iter().map(|(_, len)| len).sum();
        if space(&path("a.img")) > data + MIB {
            return println!("SKIP: a_new_image_has_no_more_space_than_data_and_metadata: no holes here");
        }
        let raw = Raw::open(&path("a.img"), READ).unwrap();
        for (name, block) in formats {
            let block_size = Some(block as u32);
            match name {
                "a.vhd" => create_dynamic(&path(name), 64 * MIB, block_size).unwrap(),
                _ => {
                    let options = CreateOptions { block_size, ..CreateOptions::default() };
                    vhdx::create_dynamic(&path(name), 64 * MIB, options).unwrap();
                }
            }
            let disk = OpenOptions::new(path(name)).open_format().unwrap();
            converted(&raw, &*disk).unwrap();
            drop(disk);
            // Each block of a VHD with data has a bitmap, in a page of its own.
            let bitmaps = (data / 4096).min(64 * MIB / block) * 4096;
            let used = space(&path(name));
            // The file system's own metadata of a fragmented file are counted, too.
            let most = (data + bitmaps) / 64 * 65 + (512 << 10);
            assert!(
                used <= most,
                "pattern {number}, {name}, blocks of {block} bytes: {used} bytes, not {most}"
            );
            std::fs::remove_file(path(name)).unwrap();
        }
    }
}

#[test]
fn direct_input_and_output() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.img", "b.vhd"].map(|name| folder.path().join(name));
    let data = sample(5 << 20, 4);
    sparse(&a, &data);
    create_fixed(&b, data.len() as u64).unwrap();
    let source = match Raw::open(&a, Access { read_only: true, direct: true }) {
        Ok(source) => source,
        Err(crate::contract::error::OpenError::Unsupported { reason, .. }) => {
            return println!("SKIP: direct_input_and_output: {reason}");
        }
        Err(error) => panic!("{error}"),
    };
    let destination = vhd(&b, Access { read_only: false, direct: true });
    converted(&source, &*destination).unwrap();
    drop(destination);
    let seen = std::fs::read(&b).unwrap();
    assert!(seen[..data.len()] == data && &seen[data.len()..data.len() + 8] == b"conectix");
}

#[test]
fn a_cancelled_or_impossible_copy_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.img", "b.img"].map(|name| folder.path().join(name));
    std::fs::write(&a, vec![1; 4 * CHUNK as usize]).unwrap();
    Raw::create(&b, 4 * CHUNK).unwrap();
    let source = Raw::open(&a, READ).unwrap();
    let destination = Raw::open(&b, WRITE).unwrap();
    // Cancel in the middle, from the progress callback.
    let cancel = AtomicBool::new(false);
    let told = AtomicU64::new(0);
    let progress = |_: u64, _: u64| {
        cancel.store(true, Ordering::Relaxed);
        told.fetch_add(1, Ordering::Relaxed);
    };
    let control = Control { workers: std::num::NonZero::<usize>::MIN, cancel: &cancel, progress: &progress };
    let (from, to) = (Content::new(&source), Content::new(&destination));
    assert!(matches!(convert(from, to, &control), Err(ImageError::Cancelled)));
    assert_eq!(told.into_inner(), 1);
    drop(destination);

    Raw::create(&folder.path().join("small"), 512).unwrap();
    let small = Raw::open(&folder.path().join("small"), WRITE).unwrap();
    let error = converted(&source, &small).unwrap_err().to_string();
    assert!(error.contains("holds 512 bytes, expected at least the 8388608 bytes"), "{error}");
    let same = Raw::open(&b, READ).unwrap();
    match converted(&source, &same).unwrap_err() {
        ImageError::Io { source: IoError::ReadOnly, .. } => {}
        other => panic!("{other}"),
    }
}
