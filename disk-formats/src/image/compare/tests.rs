use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::formats::copy::scattered::{Scattered, sample, sparse, vhd};
use crate::formats::flat::Flat;
use crate::formats::flat::raw::Raw;
use crate::formats::vhd::create_fixed;
use crate::host::backing::Access;
use crate::image::default_workers;
use crate::map::format::Format;

const READ: Access = Access::READ_ONLY;

fn compared(a: &dyn Format, b: &dyn Format) -> Comparison {
    let cancel = AtomicBool::new(false);
    let control = Control { workers: default_workers(), cancel: &cancel, progress: &|_, _| {} };
    let forth = compare(Content::new(a), Content::new(b), &control).unwrap();
    let back = compare(Content::new(b), Content::new(a), &control).unwrap();
    assert_eq!(forth.first_difference, back.first_difference);
    forth
}

fn raw(path: &Path) -> Flat {
    Raw::open(path, READ).unwrap()
}

#[test]
fn a_difference_anywhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.img", "b.img"].map(|name| folder.path().join(name));
    let len = 3 * CHUNK as usize + 1536;
    let data = sample(len, 77);
    std::fs::write(&a, &data).unwrap();
    sparse(&b, &data);
    let equal = Comparison { first_difference: None, capacities: [len as u64; 2] };
    assert_eq!(compared(&raw(&a), &raw(&b)), equal);

    let chunk = CHUNK as usize;
    let hole =
        (0..len / 4096).find(|block| data[block * 4096..][..4096].iter().all(|byte| *byte == 0)).unwrap();
    let filled = (0..len / 4096).find(|block| data[block * 4096..][..4096].iter().all(|byte| *byte != 0));
    let step = STEP as usize;
    for at in
        [0, 1, step - 1, step, chunk - 1, chunk, 2 * chunk + 7, len - 1, hole * 4096, hole * 4096 + 4095]
            .into_iter()
            .chain(filled.map(|block| block * 4096 + 100))
    {
        let mut other = data.clone();
        other[at] ^= 0x10;
        // Later differences do not change the result.
        other[len - 1] ^= u8::from(at != len - 1);
        sparse(&b, &other);
        assert_eq!(compared(&raw(&a), &raw(&b)).first_difference, Some(at as u64), "{at}");
    }
}

#[test]
fn a_longer_disk_must_end_with_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.img", "b.img"].map(|name| folder.path().join(name));
    let mut data = sample(CHUNK as usize + 512, 3);
    sparse(&a, &data);
    let short = data.len();
    data.resize(2 * CHUNK as usize + 4096, 0);
    for stored in [false, true] {
        if stored {
            std::fs::write(&b, &data).unwrap();
        } else {
            sparse(&b, &data);
        }
        let seen = compared(&raw(&a), &raw(&b));
        assert_eq!((seen.first_difference, seen.capacities), (None, [short as u64, data.len() as u64]));
    }
    for at in [short, data.len() - 1] {
        let mut other = data.clone();
        other[at] = 1;
        sparse(&b, &other);
        assert_eq!(compared(&raw(&a), &raw(&b)).first_difference, Some(at as u64));
    }
}

#[test]
fn formats_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let scattered = Scattered::create(folder.path(), 600);
    let (path, image) = (folder.path().join("a.img"), folder.path().join("a.vhd"));
    let data = sample(600 * 512, 9);
    sparse(&path, &data);
    create_fixed(&image, 600 * 512).unwrap();
    Content::new(&scattered).write_at(&data, 0).unwrap();
    let writable = vhd(&image, Access::default());
    Content::new(&*writable).write_at(&data, 0).unwrap();
    drop(writable);
    let formats: [&dyn Format; 3] = [&scattered, &raw(&path), &*vhd(&image, READ)];
    for (a, b) in [(0, 1), (0, 2), (1, 2), (0, 0)] {
        assert_eq!(compared(formats[a], formats[b]).first_difference, None);
    }
}

/// A disk of 64 TiB with few data is fast, and the progress reaches its end.
#[test]
fn large_holes_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.img", "b.img"].map(|name| folder.path().join(name));
    let size = 8 << 40;
    for path in [&a, &b] {
        Raw::create(path, size).unwrap();
    }
    let writable = Raw::open(&b, Access::default()).unwrap();
    Content::new(&writable).write_at(&[1; 512], size - 512).unwrap();
    drop(writable);
    let (a, b) = (raw(&a), raw(&b));
    assert_eq!(compared(&a, &b).first_difference, Some(size - 512));
    let furthest = AtomicU64::new(0);
    let cancel = AtomicBool::new(false);
    let progress = |done: u64, total: u64| {
        assert!(done <= total && total == size);
        furthest.fetch_max(done, Ordering::Relaxed);
    };
    let control = Control { workers: default_workers(), cancel: &cancel, progress: &progress };
    compare(Content::new(&a), Content::new(&a), &control).unwrap();
    assert_eq!(furthest.into_inner(), size);
}

#[test]
fn a_cancelled_comparison_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    Raw::create(&path, 1 << 30).unwrap();
    let (format, cancel) = (raw(&path), AtomicBool::new(true));
    let control = Control { workers: default_workers(), cancel: &cancel, progress: &|_, _| {} };
    let disk = Content::new(&format);
    assert!(matches!(compare(disk, disk, &control), Err(ImageError::Cancelled)));
}
