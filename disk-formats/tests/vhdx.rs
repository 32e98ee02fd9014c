//! VHDXs in use: several threads on one disk, a rebase below a child, a file system without space.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{LoopDevice, check, image, image_of, loop_device, mount, mount_ext4, resize};
use paradisk_disk_formats::conformance::{Driver, Guest};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::vhdx::{CreateOptions, create_differencing, create_dynamic, create_fixed, open};
use paradisk_disk_formats::{Access, EngineKind, Op, OpenOptions, ParentRules, Request, SectorSize};
use paradisk_disk_formats::{RebaseData, Scope};

const MIB: u64 = 1 << 20;
/// Unit of the tests' writes, whatever the disk's sector size is.
const SECTOR: u64 = 4096;
const THREADS: u64 = 4;
const SIZE: u64 = 6 * MIB;
/// The last of each group of sectors is not written by any thread.
const GROUP: u64 = 16;
/// Base of the sector values of the parent; the sector's number is added.
const PARENT: u64 = 1 << 60;

fn stamped(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SECTOR as usize / 8)
}

fn value_of(bytes: &[u8]) -> u64 {
    let value = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    assert!(bytes == stamped(value), "torn: {:x?} {:x?}", &bytes[..8], &bytes[bytes.len() - 8..]);
    value
}

/// A queue that writes its own sectors, and discards blocks that all queues share.
struct Worker {
    number: u64,
    driver: Driver,
    guest: Guest,
    random: fastrand::Rng,
    /// The value of each sector, unless it was discarded since.
    values: Vec<u64>,
    next: u64,
    discards: bool,
}

impl Worker {
    fn own(&self, sector: u64) -> bool {
        sector % GROUP != GROUP - 1 && sector % THREADS == self.number
    }

    fn random_own(&mut self) -> u64 {
        loop {
            let sector = self.random.u64(..SIZE / SECTOR);
            if self.own(sector) {
                return sector;
            }
        }
    }

    /// A new value, which has the number of the sector and of the worker.
    fn stamp(&mut self, sector: u64) -> u64 {
        self.next += 1;
        sector << 40 | (self.number + 1) << 32 | self.next
    }

    /// Several writes in flight at once, in different blocks.
    fn write(&mut self) {
        self.driver.drain();
        self.driver.done.clear();
        let mut sectors: Vec<u64> = (0..8).map(|_| self.random_own()).collect();
        sectors.sort_unstable();
        sectors.dedup();
        for (slot, sector) in sectors.iter().enumerate() {
            let value = self.stamp(*sector);
            self.values[*sector as usize] = value;
            self.guest.put(slot * SECTOR as usize, &stamped(value));
            let bufs = [self.guest.buf(slot * SECTOR as usize, SECTOR as usize)];
            let op = Op::Write { fua: slot == 3 };
            let request = Request { tag: *sector, op, offset: sector * SECTOR, len: SECTOR, bufs: &bufs };
            self.driver.queue.push(&request).expect("a free slot");
        }
        self.driver.drain();
        self.driver.done.iter().for_each(|done| assert_eq!(done.result, Ok(())));
    }

    /// Check some sectors. The worker's own sectors have its values, unless others discard. Other sectors have values of their
    /// own workers.
    fn read(&mut self, parent: bool) {
        let first = self.random.u64(..SIZE / SECTOR - 16);
        let found = self.driver.read(first * SECTOR, 16 * SECTOR as usize);
        for (bytes, sector) in found.chunks(SECTOR as usize).zip(first..) {
            // Another queue may be writing this sector, so it may be torn.
            if !self.own(sector) && sector % GROUP != GROUP - 1 {
                let known = bytes.chunks(8).all(|part| {
                    let value = part.first_chunk().map_or(0, |value| u64::from_le_bytes(*value));
                    value == 0 || value == PARENT | sector && parent || value >> 40 == sector
                });
                assert!(known, "sector {sector} holds {:x?}", &bytes[..8]);
                continue;
            }
            let value = value_of(bytes);
            let written = self.values[sector as usize];
            let freed = self.discards && value == 0;
            assert!(value == written || freed, "sector {sector} holds {value:x}, not {written:x}");
        }
    }

    /// Discard or zero a whole block, which has sectors of all queues.
    fn discard(&mut self) {
        let block = self.random.u64(..SIZE / MIB) * MIB;
        let op = match self.random.u64(..3) {
            0 => Op::Discard,
            other => Op::WriteZeroes { may_unmap: other == 1 },
        };
        assert_eq!(self.driver.run(op, block, MIB, &[]), Ok(()));
    }

    fn run(&mut self, until: Instant, parent: bool) {
        // On a slow disk, until there is enough to compare.
        while Instant::now() < until || self.next <= 50 {
            assert!(Instant::now() < until + Duration::from_secs(120), "{} writes", self.next);
            match self.random.u64(..16) {
                0..8 => self.write(),
                8..12 => self.read(parent),
                12 if self.discards => self.discard(),
                13 => {
                    // Zero one of the worker's own sectors.
                    let sector = self.random_own();
                    let op = Op::WriteZeroes { may_unmap: self.random.u64(..2) == 0 };
                    assert_eq!(self.driver.run(op, sector * SECTOR, SECTOR, &[]), Ok(()));
                    self.values[sector as usize] = 0;
                }
                _ => assert_eq!(self.driver.run(Op::Flush, 0, 0, &[]), Ok(())),
            }
        }
    }
}

/// Queues on one disk write their own sectors, which are interleaved in all blocks, read all sectors, flush, zero and (with
/// `discards`) free whole blocks while others use them. No sector ever has data of another sector.
fn stress(sector: SectorSize, parent: bool, discards: bool) {
    let (_folder, base) = image("base.vhdx");
    let options =
        CreateOptions { block_size: Some(1 << 20), logical_sector: Some(sector), ..CreateOptions::default() };
    create_dynamic(&base, SIZE, options).unwrap();
    let mut path = base;
    if parent {
        let disk = OpenOptions::new(&path).open().unwrap();
        let content: Vec<u8> = (0..SIZE / SECTOR).flat_map(|sector| stamped(PARENT | sector)).collect();
        Driver::new(&*disk, EngineKind::Threads, 1).write(0, &content);
        drop(disk);
        let child = path.with_file_name("child.vhdx");
        create_differencing(&child, &path, Some(1 << 20)).unwrap();
        path = child;
    }
    let disk = OpenOptions::new(&path).open().unwrap();
    let until = Instant::now() + Duration::from_millis(1500);
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || {
                let engine = if number % 2 == 0 { EngineKind::IoUring } else { EngineKind::Threads };
                let sectors = 0..SIZE / SECTOR;
                let initial = sectors.map(|sector| if parent { PARENT | sector } else { 0 });
                let mut worker = Worker {
                    number,
                    driver: Driver::new(&*disk, engine, 8),
                    guest: Guest::new(8 * SECTOR as usize),
                    random: fastrand::Rng::with_seed(number * 77 + 5),
                    values: initial.collect(),
                    next: 0,
                    discards,
                };
                worker.run(until, parent);
                assert_eq!(worker.driver.run(Op::Flush, 0, 0, &[]), Ok(()));
                (worker.values, worker.next)
            })
        })
        .collect();
    let done: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    let before = Driver::new(&*disk, EngineKind::Threads, 1).read(0, SIZE as usize);
    drop(disk);
    let disk = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
    let found = Driver::new(&*disk, EngineKind::Threads, 1).read(0, SIZE as usize);
    assert!(before == found, "reopened, it holds something else");
    for (bytes, sector) in found.chunks(SECTOR as usize).zip(0..) {
        let value = value_of(bytes);
        let (values, _) = &done[(sector % THREADS) as usize];
        let written = values[sector as usize];
        assert!(value == written || discards && value == 0, "sector {sector}: {value:x}, not {written:x}");
    }
    let writes: Vec<u64> = done.iter().map(|(_, writes)| *writes).collect();
    println!("{writes:?} writes");
    assert!(writes.iter().all(|writes| *writes > 50));
}

#[test]
fn queues_share_the_blocks_of_a_dynamic_disk() {
    stress(SectorSize::B512, false, false);
    stress(SectorSize::B512, false, true);
}

#[test]
fn queues_share_the_blocks_of_a_differencing_disk() {
    stress(SectorSize::B512, true, false);
    stress(SectorSize::B4096, true, true);
}

/// A rebase with copying does not change what a disk reads, so its children stay valid.
#[test]
fn children_of_a_disk_that_keeps_what_it_reads_go_on() {
    let (_folder, base) = image("base.vhdx");
    let [middle, child, grandchild] =
        ["middle.vhdx", "child.vhdx", "grandchild.vhdx"].map(|name| base.with_file_name(name));
    create_dynamic(&base, SIZE, CreateOptions::default()).expect("a base");
    create_differencing(&middle, &base, None).expect("a disk over it");
    let rules = ParentRules::default();
    let write = |path: &Path, data: &[u8]| {
        let disk = open(path, Access::default(), &rules).expect("a disk");
        Content::new(&*disk).write_at(data, MIB).expect("a write");
        disk.flush().expect("a flush");
    };
    write(&middle, &stamped(7));
    create_differencing(&child, &middle, None).expect("a child");
    create_differencing(&grandchild, &child, None).expect("a grandchild");
    let copied = image_of(&child, &rules).rebase(&base, RebaseData::Copy, |_, _| true).expect("a rebase");
    assert_eq!(copied, SECTOR);
    std::fs::remove_file(&middle).expect("a file");
    let disk = open(&grandchild, Access::READ_ONLY, &rules).expect("a chain");
    let mut data = vec![0; SECTOR as usize];
    Content::new(&*disk).read_at(&mut data, MIB).expect("a read");
    assert_eq!(value_of(&data), 7);
}

/// Free bytes of the file system of a directory.
fn free(folder: &Path) -> u64 {
    let file = std::fs::File::open(folder).expect("a folder");
    rustix::fs::syncfs(&file).expect("a file system");
    let stat = rustix::fs::fstatvfs(&file).expect("a file system");
    stat.f_bfree * stat.f_frsize
}

/// The file system has too little space for a resize: the disk and the free space are unchanged.
#[test]
fn a_fixed_disk_that_cannot_grow_is_as_it_was() {
    let ext4 = |device: &LoopDevice| mount_ext4(device);
    let xfs = |device: &LoopDevice| mount(device, &["mkfs.xfs", "-q", "-f"]);
    type Mount<'a> = &'a dyn Fn(&LoopDevice) -> Option<common::Mounted>;
    for (name, len, mount) in [("ext4", 64 << 20, &ext4 as Mount<'_>), ("xfs", 400 << 20, &xfs)] {
        let device = match loop_device(len, 512) {
            Ok(device) => device,
            Err(reason) => return println!("SKIP: a_fixed_disk_that_cannot_grow_is_as_it_was: {reason}"),
        };
        let Some(mounted) = mount(&device) else {
            println!(
                "SKIP: a_fixed_disk_that_cannot_grow_is_as_it_was: no {name} can be made or mounted here"
            );
            continue;
        };
        let (path, child) = (mounted.path().join("fixed.vhdx"), mounted.path().join("child.vhdx"));
        let (rules, blocks) = (ParentRules::default(), Some(1 << 20));
        create_fixed(&path, 16 * MIB, CreateOptions { block_size: blocks, ..CreateOptions::default() })
            .expect("space");
        let disk = open(&path, Access::default(), &rules).expect("a disk");
        Content::new(&*disk).write_at(&stamped(7), 3 * MIB).expect("a write");
        disk.flush().expect("a flush");
        drop(disk);
        create_differencing(&child, &path, blocks).expect("a child");
        let told = |path: &Path| {
            let image = image_of(path, &rules).info(Scope::Image).expect("an image").remove(0);
            (image.size, image.file_size, image.format)
        };
        let before = (told(&path), free(mounted.path()));
        for size in [2 * len, 64 << 40] {
            let error = resize(&path, size, false, &rules).expect_err("it has no space").to_string();
            assert!(error.contains("No space left") || error.contains("too large"), "{name}: {error}");
            let now = (told(&path), free(mounted.path()));
            assert_eq!(now.0, before.0, "{name}");
            // The file system may need a little more space for its own metadata.
            assert!(now.1 + 256 * 1024 >= before.1, "{name}: {} bytes are lost", before.1 - now.1);
            let report = check(&path, false).expect("an image");
            assert_eq!((report.findings, report.leaked), (Vec::new(), 0), "{name}");
            let disk = open(&child, Access::READ_ONLY, &rules).expect("a chain");
            let mut data = vec![0; SECTOR as usize];
            Content::new(&*disk).read_at(&mut data, 3 * MIB).expect("a read");
            assert_eq!(value_of(&data), 7);
        }
        resize(&path, 24 * MIB, false, &rules).expect("as much is there");
        assert_eq!(told(&path).0, 24 * MIB);
        assert_eq!(check(&path, false).expect("an image").findings, []);
    }
}
