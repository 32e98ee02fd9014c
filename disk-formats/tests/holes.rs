//! Tools that copy blocks keep the holes of images: an image takes no more of the host's space than before.

mod common;

use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use common::{SMALL, bytes, check, image, image_of, resize};
use paradisk_disk_formats::image::{Content, Control, convert};
use paradisk_disk_formats::{
    Format, FormatName, OpenOptions, ParentRules, Raw, RebaseData, Siblings, vhd, vhdx,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;
/// Data at the start of each block of 2 MiB.
const PIECE: u64 = 64 << 10;
/// More than the metadata of any image here, without blocks.
const METADATA: u64 = 8 * MIB;

fn stored(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

fn open(path: &Path, read_only: bool) -> std::sync::Arc<dyn Format> {
    OpenOptions { read_only, ..OpenOptions::new(path) }.open_format().unwrap()
}

fn content(path: &Path) -> Vec<u8> {
    let disk = open(path, true);
    let mut data = vec![0; Content::new(&*disk).capacity() as usize];
    Content::new(&*disk).read_at(&mut data, 0).unwrap();
    data
}

fn write(path: &Path, parts: impl IntoIterator<Item = (u64, Vec<u8>)>) {
    let disk = open(path, false);
    parts.into_iter().for_each(|(at, data)| Content::new(&*disk).write_at(&data, at).unwrap());
    disk.flush().unwrap();
}

/// The disk `to` gets a piece of data in every block from `first` on. Its blocks have holes.
fn fill(to: &Path, first: u64) {
    let raw = to.with_file_name("raw");
    Raw::create(&raw, SIZE).unwrap();
    write(&raw, (first * 2 * MIB..SIZE).step_by(2 * MIB as usize).map(|at| (at, bytes(PIECE as usize, at))));
    let (source, destination, cancel) = (open(&raw, true), open(to, false), AtomicBool::new(false));
    let control = Control { workers: NonZero::<usize>::MIN, cancel: &cancel, progress: &|_, _| {} };
    convert(Content::new(&*source), Content::new(&*destination), &control).unwrap();
    std::fs::remove_file(raw).unwrap();
}

/// Call `test` for each format with the path of a dynamic disk and a function that makes a child of the first path.
fn each_format(test: impl Fn(&Path, &dyn Fn(&Path) -> PathBuf)) {
    for format in ["vhd", "vhdx"] {
        let (_folder, path) = image(&format!("a.{format}"));
        let child = |parent: &Path| {
            let child = parent.with_file_name(format!("child.{format}"));
            match FormatName::claimed(&child) {
                Some(FormatName::Vhd) => vhd::create_differencing(&child, parent, None).unwrap(),
                _ => vhdx::create_differencing(&child, parent, None).unwrap(),
            }
            child
        };
        create(&path);
        test(&path, &child);
    }
}

fn create(path: &Path) {
    match FormatName::claimed(path) {
        Some(FormatName::Vhd) => vhd::create_dynamic(path, SIZE, None).unwrap(),
        _ => vhdx::create_dynamic(path, SIZE, SMALL).unwrap(),
    }
}

#[test]
fn compact_moves_blocks_with_their_holes() {
    each_format(|path, _| {
        // Full blocks before those with holes, then zeros in their place.
        write(path, [(0, bytes(8 * MIB as usize, 1))]);
        fill(path, 4);
        write(path, [(0, vec![0; 8 * MIB as usize])]);
        let (before, expected) = (stored(path), content(path));
        let done = image_of(path, &ParentRules::default()).compact(|_, _| true).unwrap();
        assert!(done.moved >= 4, "{done:?}");
        assert!(stored(path) <= before - 7 * MIB, "{}: {} of {before}", path.display(), stored(path));
        assert!(content(path) == expected, "{}", path.display());
        assert_eq!(check(path, false).unwrap().findings, []);
    });
}

#[test]
fn merge_and_rebase_leave_holes_in_new_blocks() {
    each_format(|path, child_of| {
        let child = child_of(path);
        fill(&child, 0);
        let expected = content(&child);
        image_of(&child, &ParentRules::default()).merge(Siblings::Refuse, |_, _| true).unwrap();
        assert!(content(path) == expected, "{}", path.display());
        assert!(stored(path) <= METADATA, "{}: merged into {}", path.display(), stored(path));

        // What the old parent has, and zeros where only the new one has data, are copied.
        let child = child_of(path);
        let other = path.with_file_name(format!("b.{}", path.extension().unwrap().display()));
        create(&other);
        write(&other, [(0, bytes(8 * MIB as usize, 2))]);
        let image = image_of(&child, &ParentRules::default());
        image.rebase(&other, RebaseData::Copy, |_, _| true).unwrap();
        assert!(content(&child) == expected, "{}", child.display());
        assert!(stored(&child) <= METADATA, "{}: copied into {}", child.display(), stored(&child));
    });
}

#[test]
fn a_resize_stores_no_zeros() {
    each_format(|path, _| {
        fill(path, 0);
        let (before, mut expected) = (stored(path), content(path));
        // The table grows over the first block of the VHD; its blocks move.
        let size = 64 << 30;
        resize(path, size, false, &ParentRules::default()).unwrap();
        assert!(stored(path) <= before + MIB, "{}: {} of {before}", path.display(), stored(path));
        resize(path, SIZE, true, &ParentRules::default()).unwrap();
        assert!(content(path) == expected, "{}", path.display());
        // In the middle of a block, whose end reads as zeros.
        expected.truncate((SIZE - MIB) as usize);
        resize(path, SIZE - MIB, true, &ParentRules::default()).unwrap();
        resize(path, SIZE, false, &ParentRules::default()).unwrap();
        expected.resize(SIZE as usize, 0);
        assert!(content(path) == expected, "{}", path.display());
        assert!(stored(path) <= before + MIB, "{}: {} of {before}", path.display(), stored(path));
    });
}
