//! Reads and writes allocate nothing after warm-up: a global allocator counts.
#![allow(unsafe_code, reason = "memory for requests")]

#[path = "common/allocations.rs"]
mod counter;

use counter::allocations;
use paradisk_disk_formats::conformance::{Driver, Guest};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhd::{create_dynamic, create_fixed};
use paradisk_disk_formats::{
    Disk, EngineKind, FormatName, Layered, NullDisk, Op, OpenOptions, RamDisk, Raw, Request, SectorSize,
};

const DEPTH: u64 = 32;

/// Batches of reads and writes with one aligned buffer, two odd buffers, and two aligned buffers.
fn rounds(driver: &mut Driver, guest: &Guest, count: u64) {
    for round in 0..count {
        for tag in 0..DEPTH {
            let at = tag as usize * 16384;
            let op = [Op::Read, Op::Write { fua: false }][(tag % 2) as usize];
            let one = [guest.buf(at, 8192)];
            let odd = [guest.buf(at + 1, 5000), guest.buf(at + 6000, 3192)];
            let several = [guest.buf(at, 4096), guest.buf(at + 8192, 4096)];
            let bufs: &[_] = match (round + tag) % 3 {
                0 => &one,
                1 => &odd,
                _ => &several,
            };
            let request = Request { tag, op, offset: (round * DEPTH + tag) % 64 * 8192, len: 8192, bufs };
            driver.queue.push(&request).expect("a free slot");
        }
        driver.drain();
        assert!(driver.done.drain(..).all(|completion| completion.result.is_ok()));
    }
}

fn check(name: &str, disk: &dyn Disk, engine: EngineKind) {
    let guest = Guest::new(DEPTH as usize * 16384);
    let mut driver = Driver::new(disk, engine, DEPTH as u32);
    rounds(&mut driver, &guest, 100);
    // On a busy machine a thread of the engine may first run here, and allocate. So one of three counts must be 0.
    let counted: Vec<usize> = (0..3)
        .map(|_| {
            let before = allocations();
            rounds(&mut driver, &guest, 300);
            allocations() - before
        })
        .collect();
    assert!(
        counted.contains(&0),
        "{name} over {}: {counted:?} allocations in {} requests each",
        driver.queue.engine(),
        300 * DEPTH
    );
}

/// A single test, so that no other test allocates at the same time.
#[test]
fn reads_and_writes_allocate_nothing() {
    let before = allocations();
    drop(std::hint::black_box(vec![0u8; 100]));
    assert!(allocations() > before, "the allocator counts");
    let folder = tempfile::tempdir().expect("a folder");
    let (raw, vhd) = (folder.path().join("a.raw"), folder.path().join("a.vhd"));
    Raw::create(&raw, 1 << 20).expect("an image");
    create_fixed(&vhd, 1 << 20).expect("an image");
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        for direct in [false, true] {
            for path in [&raw, &vhd] {
                let options = OpenOptions { direct: Some(direct), ..OpenOptions::new(path) };
                match options.open() {
                    Ok(disk) => check(&format!("{}, direct {direct}", path.display()), &*disk, engine),
                    Err(error) if direct => println!("SKIP: reads_and_writes_allocate_nothing: {error}"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    // A VHD in a VHD in a VHD, after all blocks are allocated.
    let paths = ["inner", "middle", "outer.vhd"].map(|name| folder.path().join(name));
    for (number, path) in paths.iter().enumerate() {
        create_dynamic(path, (4 << 20) << number, None).expect("an image");
        if let Some(inner) = number.checked_sub(1).and_then(|inner| paths.get(inner)) {
            let options = OpenOptions { format: Some(FormatName::Vhd), ..OpenOptions::new(path) };
            let disk = options.open_format().expect("a disk");
            let data = std::fs::read(inner).expect("an image");
            Content::new(&*disk).write_at(&data, 0).expect("space");
            disk.flush().expect("a good disk");
        }
    }
    let deep = std::path::PathBuf::from(format!("{}////", folder.path().join("outer.vhd").display()));
    // Not zeros: a write of zeros allocates no block.
    let disk = OpenOptions::new(&deep).open_format().expect("a disk");
    Content::new(&*disk).write_at(&[1; 1 << 20], 0).expect("space");
    disk.flush().expect("a good disk");
    drop(disk);
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        check("a VHD in a VHD in a VHD", &*OpenOptions::new(&deep).open().expect("a disk"), engine);
    }
    let counted = Layered::new(OpenOptions::new(&raw).open().expect("a disk")).metered(2_000_000_000);
    counted.metrics().expect("counters").time_requests(true);
    check("a metered disk", &counted, EngineKind::IoUring);
    check("ram", &RamDisk::new(1 << 20, SectorSize::B512).expect("memory"), EngineKind::IoUring);
    check("null", &NullDisk::new(1 << 20, SectorSize::B512).expect("a disk"), EngineKind::IoUring);
}
