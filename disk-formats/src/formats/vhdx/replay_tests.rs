//! Hostile logs in read-only images. The tests count the work, which must not grow with the product of the log's
//! changes and the disk's blocks. Memory is bounded for an image and for a chain.

use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::chain::Image as Opening;
use super::header;
use super::log::{Log, Region, Sizes, Update};
use super::opened::{Opened, Replaying};
use super::region::Run;
use super::spec::MIB;
use super::testing::{Shape, disk, new_image, opened};
use crate::contract::error::OpenError;
use crate::contract::info::SectorSize;
use crate::formats::chain::{Member, children, open_parents_within};
use crate::formats::merge::ChainTools;
use crate::formats::parents::ParentRules;
use crate::formats::vhdx;
use crate::host::backing::Access;
use crate::host::crash::CrashFile;
use crate::host::store::Store;
use crate::map::format::Format;
use crate::queue::conformance::Random;

const SECTOR: u64 = 4096;
const BAT: u64 = 3 * MIB;
const GUID: Uuid = Uuid::from_u128(77);
fn zeros(offset: u64, len: u64) -> Update {
    Update::Zero { offset, len }
}

fn data(offset: u64, fill: u8) -> Update {
    Update::Data { offset, sector: Box::new([fill; SECTOR as usize]) }
}

/// An image with a log of this length at the end of the file, with these changes.
fn with_log(file: &CrashFile, length: u64, updates: &[Update]) {
    let end = file.len().expect("a length");
    file.set_size(end + length).expect("space");
    let sizes = Sizes { flushed: end + length, last: end + length };
    let region = Region { offset: end, length: length as u32 };
    let mut log = Log::start(file, region, GUID, sizes).expect("space");
    log.append(file, updates, sizes).expect("it fits");
    let mut headers = header::read(file).expect("headers");
    let changed = headers.update(file, |header| {
        header.log_offset = end.into();
        header.log_length = (length as u32).into();
        header.log_guid = GUID.to_bytes_le();
    });
    changed.expect("a file");
}

fn small() -> Shape {
    Shape { size: 8 * MIB, block_size: 1 << 20, sector: SectorSize::B512, fixed: false }
}

/// 64 GiB in blocks of 1 MiB, all present, and 100,000 separate ranges of zeros in the log, in random order.
#[test]
fn many_runs_of_zeros_are_found_in_few_steps() {
    const RUNS: u64 = 100_000;
    let shape = Shape { size: 64 << 30, ..small() };
    let file = CrashFile::of(new_image(shape, None));
    let entries = vec![((4 * MIB) | 6).to_le_bytes(); 66_048].concat();
    file.write_at(&entries, BAT).expect("space");
    // Multiples of a prime modulo `RUNS`: a permutation without order.
    let place = |number: u64| (1 << 40) + number * 7919 % RUNS * 2 * SECTOR;
    let updates: Vec<Update> = (0..RUNS).map(|number| zeros(place(number), SECTOR)).collect();
    with_log(&file, 8 * MIB, &updates);
    let image = opened(&file, false).expect("an image");
    let overlay = Arc::clone(image.overlay.as_ref().expect("a log"));
    assert_eq!(overlay.memory(), RUNS * 64);
    let disk = disk(vec![image], true).expect("a disk");
    disk.prepare_read(0, shape.size).expect("a BAT");
    let blocks = shape.size / MIB;
    assert!((blocks..2 * blocks).contains(&overlay.steps()), "{} steps", overlay.steps());
    // The block is beyond all ranges, so each of them might be examined.
    let before = overlay.steps();
    let behind =
        (0..100).filter(|number| overlay.touches(Run { offset: (1 << 41) + number * MIB, len: MIB }));
    assert_eq!(behind.count(), 0);
    assert!(overlay.steps() - before <= 200, "{} steps", overlay.steps() - before);
    // Overlapping ranges are found.
    let run = |offset, len| Run { offset, len };
    assert!(overlay.touches(run(place(5) - 512, 1024)) && !overlay.touches(run(place(5) - SECTOR, SECTOR)));
}

#[test]
fn runs_of_zeros_that_touch_are_one() {
    let orders: [fn(u64) -> u64; 3] = [|at| at, |at| 9_999 - at, |at| at * 7919 % 10_000];
    for order in orders {
        let file = CrashFile::of(new_image(small(), None));
        let place = |number| (1 << 40) + order(number) * SECTOR;
        let updates: Vec<Update> = (0..10_000).map(|number| zeros(place(number), 2 * SECTOR)).collect();
        with_log(&file, MIB, &updates);
        assert_eq!(opened(&file, false).expect("an image").overlay.expect("a log").memory(), 64);
    }
}

/// Whatever the order of the changes, a log in memory has the same result as a replay.
#[test]
fn a_log_in_memory_shows_what_a_replay_would_make() {
    let mut random = Random(5);
    for round in 0..200 {
        let file = CrashFile::of(new_image(small(), None));
        let base = file.len().expect("a length");
        // The changes are in a region of unknown type, after the BAT.
        file.set_size(base + MIB).expect("space");
        file.write_at(&[0xEE; MIB as usize], base).expect("space");
        let updates: Vec<Update> = (0..1 + random.below(40))
            .map(|_| {
                let offset = base + random.below(64) * SECTOR;
                match random.below(2) {
                    0 => zeros(offset, random.below(12) * SECTOR),
                    _ => data(offset, random.next() as u8),
                }
            })
            .collect();
        with_log(&file, MIB, &updates);
        let in_memory = opened(&file, false).expect("an image").store;
        let mut parts = Vec::new();
        for _ in 0..40 {
            let at = base + random.below(80 * SECTOR);
            let mut bytes = vec![0; 1 + random.below(5 * SECTOR) as usize];
            in_memory.read_at(&mut bytes, at).expect("inside");
            parts.push((at, bytes));
        }
        opened(&file, true).expect("an image");
        for (at, bytes) in parts {
            let mut found = vec![0; bytes.len()];
            file.read_at(&mut found, at).expect("inside");
            assert!(found == bytes, "{round}: {at:#x}");
        }
    }
}

#[test]
fn a_log_that_takes_too_much_memory_is_refused_where_it_is_only_read() {
    let file = CrashFile::of(new_image(small(), None));
    let end = file.len().expect("a length");
    let updates: Vec<Update> = (0..200).map(|at| data(end + 16 * MIB + at * SECTOR, 1)).collect();
    with_log(&file, 2 * MIB, &updates);
    let read = |most| {
        let store = Arc::new(file.clone());
        Opened::read_with(store, Replaying::InMemory(most)).map_err(|error| format!("{error:?}"))
    };
    let needed = read(u64::MAX).expect("an image").overlay.expect("a log").memory();
    assert!((200 * SECTOR..210 * SECTOR).contains(&needed), "{needed}");
    assert!(read(needed).is_ok());
    let refused = read(needed - 1).err().expect("a refusal");
    assert!(refused.contains("\"log\"") && refused.contains("check --repair"), "{refused}");
    opened(&file, true).expect("replayed in the file");
    assert!(read(0).is_ok());
}

/// A chain of files, from the top down, each with a log.
fn chain(folder: &Path, count: usize) -> Vec<std::path::PathBuf> {
    let paths: Vec<_> = (0..count).map(|number| folder.join(format!("{number}.vhdx"))).collect();
    let options = vhdx::CreateOptions { block_size: Some(1 << 20), ..vhdx::CreateOptions::default() };
    for (number, path) in paths.iter().enumerate().rev() {
        match paths.get(number + 1) {
            None => vhdx::create_dynamic(path, 8 * MIB, options),
            Some(parent) => vhdx::create_differencing(path, parent, Some(1 << 20)),
        }
        .expect("an image");
    }
    for path in &paths {
        let file = CrashFile::new(std::fs::read(path).expect("an image"));
        let end = file.len().expect("a length");
        let updates: Vec<Update> = (0..100).map(|at| data(end + 16 * MIB + at * SECTOR, 1)).collect();
        with_log(&file, MIB, &updates);
        std::fs::write(path, file.bytes()).expect("an image");
    }
    paths
}

#[test]
fn the_logs_of_a_chain_share_what_memory_there_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = chain(folder.path(), 4);
    let rules = ParentRules::default();
    let open = |memory| {
        let mut images = vec![Opening::open(&paths[0], Access::READ_ONLY).expect("an image")];
        open_parents_within(&mut images, Access::READ_ONLY, &rules, memory).map(|()| images)
    };
    let images = open(u64::MAX).expect("a chain");
    let needed: u64 = images.iter().map(|image| image.opened.memory()).sum();
    assert!(needed > 4 * 100 * SECTOR && images.len() == 4);
    assert_eq!(open(needed).expect("a chain").len(), 4);
    for memory in [0, needed / 2, needed - 1] {
        let refused = open(memory).err().expect("a refusal").to_string();
        assert!(refused.contains("memory"), "{memory}: {refused}");
    }
}

/// An image with a nil GUID cannot be a parent.
#[test]
fn a_nil_linkage_never_matches() {
    let folder = tempfile::tempdir().expect("a folder");
    let [base, child, other] = ["base.vhdx", "child.vhdx", "other.vhdx"].map(|name| folder.path().join(name));
    vhdx::create_dynamic(&base, 8 * MIB, vhdx::CreateOptions::default()).expect("an image");
    let change = |path: &Path, guid: Uuid| {
        let file = crate::host::backing::BackingFile::open(path, Access::default()).expect("a file");
        let mut headers = header::read(&file).expect("headers");
        headers.update(&file, |header| header.data_write_guid = guid.to_bytes_le()).expect("a file");
    };
    // Its child records the GUID as text.
    let guid = Uuid::from_u128(0x11);
    change(&base, guid);
    vhdx::create_differencing(&child, &base, None).expect("a child");
    let text = |guid: Uuid| -> Vec<u8> {
        guid.braced().to_string().encode_utf16().flat_map(u16::to_le_bytes).collect()
    };
    let mut bytes = std::fs::read(&child).expect("a file");
    let at = bytes.windows(76).position(|part| part == text(guid)).expect("the linkage");
    bytes[at..at + 76].copy_from_slice(&text(Uuid::nil()));
    std::fs::write(&child, bytes).expect("a file");
    change(&base, Uuid::nil());
    let open = |any_time| {
        let rules = ParentRules { any_time, ..ParentRules::default() };
        vhdx::open(&child, Access::READ_ONLY, &rules).map(drop)
    };
    let refused = open(false).expect_err("nil matches").to_string();
    assert!(refused.contains("parent data write GUID"), "{refused}");
    open(true).expect("it is taken as it is");
    assert!(children::<Opening>(&base).expect("an image").is_empty());
    // Nor can a child be created over it.
    let rules = ParentRules::default();
    for made in [vhdx::create_differencing(&other, &base, None), Opening::note_parent(&child, &base, &rules)]
    {
        let refused = made.expect_err("a child of nil");
        assert!(matches!(refused, OpenError::Invalid { field: "data write GUID", .. }), "{refused}");
    }
}
