//! How many granules one read resolves.

use crate::contract::disk::Disk;
use crate::contract::queue::EngineKind;
use crate::formats::open::OpenOptions;
use crate::formats::vhd;
use crate::queue::conformance::Driver;

const CAPACITY: u64 = 64 << 20;
/// Bytes of a granule.
const GRANULE: u64 = 2 << 20;

/// Map memory that a read of one sector takes. The parent has blocks of this size, and one sector in each granule.
fn taken_by_a_read(block_size: u32) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let [parent, child] = ["parent.vhd", "child.vhd"].map(|name| folder.path().join(name));
    vhd::create_dynamic(&parent, CAPACITY, Some(block_size)).unwrap();
    let disk = OpenOptions::new(&parent).open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::Threads, 4);
    (0..CAPACITY / GRANULE)
        .for_each(|granule| driver.write(granule * GRANULE + 512, &[granule as u8 + 1; 512]));
    drop((driver, disk));
    vhd::create_differencing(&child, &parent, Some(GRANULE as u32)).unwrap();
    let disk = OpenOptions { read_only: true, ..OpenOptions::new(&child) }.open().unwrap();
    let bytes = |disk: &dyn Disk| disk.map_memory().unwrap().bytes;
    let before = bytes(&*disk);
    assert_eq!(Driver::new(&*disk, EngineKind::Threads, 4).read(512, 512), [1; 512]);
    bytes(&*disk) - before
}

/// Each granule takes reads of many bitmaps, so the neighboring granules are resolved only when needed.
#[test]
fn images_of_small_blocks_are_not_read_ahead() {
    let (large, small) = (taken_by_a_read(128 << 10), taken_by_a_read(64 << 10));
    assert!(small > 0 && small * 8 < large, "{small} and {large} bytes");
}
