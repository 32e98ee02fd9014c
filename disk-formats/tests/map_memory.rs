//! Requests of any length are served, whatever the memory budget of a chain's map.

use paradisk_disk_formats::conformance::{Driver, Guest};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhd::{create_differencing, create_dynamic};
use paradisk_disk_formats::{Access, EngineKind, Op, OpenOptions, ParentRules, vhd};

const SIZE: usize = 72 << 20;
const REQUEST: usize = 32 << 20;
const BLOCK: usize = 4096;

/// Data of which each sector has its number and a version.
fn bytes(offset: usize, len: usize, version: u64) -> Vec<u8> {
    (offset as u64 / 512..(offset + len) as u64 / 512)
        .flat_map(|sector| (sector << 8 | version).to_le_bytes().repeat(64))
        .collect()
}

/// The version of each sector of data that were read at `offset`.
fn versions(data: &[u8], offset: usize) -> Vec<u64> {
    let sectors = data.chunks_exact(512).zip(offset as u64 / 512..);
    sectors
        .map(|(sector, number)| {
            let value = u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
            assert!(value >> 8 == number && sector == value.to_le_bytes().repeat(64), "sector {number}");
            value & 0xFF
        })
        .collect()
}

/// The parent's blocks of 4 KiB are scattered, so 2 MiB of the child take 65 units of the map, and a request of 32 MiB takes
/// more than the smallest map has. Some threads read while one writes.
#[test]
fn requests_are_served_by_the_smallest_map_over_a_scattered_parent() {
    let folder = tempfile::tempdir().expect("a folder");
    let [parent, child] = ["parent.vhd", "child.vhd"].map(|name| folder.path().join(name));
    create_dynamic(&parent, SIZE as u64, Some(BLOCK as u32)).expect("an image");
    let disk = vhd::open(&parent, Access::default(), &ParentRules::default()).expect("a disk");
    let blocks = SIZE / BLOCK;
    for number in 0..blocks {
        // The step is coprime to the number of blocks, so each block is written once.
        let at = number * 7919 % blocks * BLOCK;
        Content::new(&*disk).write_at(&bytes(at, BLOCK, 1), at as u64).expect("a write");
    }
    disk.flush().expect("a flush");
    drop(disk);
    create_differencing(&child, &parent, Some(2 << 20)).expect("an image");
    let disk = OpenOptions { map_memory: Some(0), ..OpenOptions::new(&child) }.open().expect("a disk");
    let engines = [EngineKind::IoUring, EngineKind::Threads];
    std::thread::scope(|scope| {
        for (thread, engine) in engines.into_iter().enumerate() {
            let mut driver = Driver::new(&*disk, engine, 4);
            scope.spawn(move || {
                for round in 0..6 {
                    let at = (thread * 3 + round * 5) % 9 * (4 << 20) + 4096;
                    let seen = versions(&driver.read(at as u64, REQUEST), at);
                    assert!(seen.iter().all(|version| [1, 2].contains(version)), "at {at}");
                }
            });
        }
        let mut driver = Driver::new(&*disk, EngineKind::IoUring, 4);
        for at in (0..SIZE).step_by(REQUEST) {
            driver.write(at as u64, &bytes(at, REQUEST.min(SIZE - at), 2));
        }
        driver.run(Op::Flush, 0, 0, &[]).expect("a flush");
    });
    let memory = disk.map_memory().expect("a map");
    assert!(memory.evictions > 100, "{memory:?}");
    drop(disk);
    let disk = OpenOptions::new(&child).open().expect("a disk");
    let guest = Guest::new(SIZE);
    let mut driver = Driver::new(&*disk, EngineKind::IoUring, 1);
    driver.run(Op::Read, 0, SIZE as u64, &[guest.buf(0, SIZE)]).expect("a read");
    assert!(versions(&guest.get(0, SIZE), 0).into_iter().all(|version| version == 2));
}
