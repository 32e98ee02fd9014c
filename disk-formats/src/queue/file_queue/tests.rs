mod changed_engine;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use std::os::fd::AsFd;

use rustix::fs::{Advice, fadvise, fstatfs};

use super::retry::SHORT_FILE;
use super::*;
use crate::contract::disk::{Allocation, Disk};
use crate::contract::error::OpenError;
use crate::contract::info::{DiscardLimits, Kind, SectorSize};
use crate::contract::queue::{EngineKind, QueueConfig};
use crate::disk::file_disk::FileDisk;
use crate::formats::flat::raw::Raw;
use crate::host::backing::{Access, BackingFile};
use crate::host::sys::{self, RwMode};
use crate::queue::conformance::{Driver, Fresh, Guest, Suite};
use crate::queue::engine::Threads;

const BLOCK: u64 = 64 << 10;
const BLOCKS: u64 = 256;
const ABSENT: u64 = u64::MAX;

/// A difficult format: blocks are scattered over two files, exist only after they were written, and sometimes must be
/// looked up again.
struct Scattered {
    info: DiskInfo,
    files: [Arc<BackingFile>; 2],
    table: Vec<AtomicU64>,
    next: AtomicU64,
    forgetful: AtomicU32,
    ordered_flush: bool,
    flushes: AtomicU32,
    written: AtomicU64,
    refuse: AtomicBool,
    panics: AtomicBool,
}

impl Scattered {
    fn new(folder: &std::path::Path, ordered_flush: bool, buffer_alignment: u32) -> Arc<Self> {
        let file = |name: &str| {
            let path = folder.join(name);
            Arc::new(BackingFile::create(&path, BLOCK * BLOCKS * 2).unwrap())
        };
        let info = DiskInfo {
            kind: Kind { format: "scattered", subformat: None },
            capacity: BLOCK * BLOCKS,
            logical_sector: SectorSize::B512,
            physical_sector: 4096,
            read_only: false,
            volatile_cache: true,
            discard: Some(DiscardLimits { granularity: 512, reads_zero: true }),
            buffer_alignment,
        };
        Arc::new(Self {
            info,
            files: [file("a"), file("b")],
            table: (0..BLOCKS).map(|_| AtomicU64::new(ABSENT)).collect(),
            next: AtomicU64::new(0),
            forgetful: AtomicU32::new(0),
            ordered_flush,
            flushes: AtomicU32::new(0),
            written: AtomicU64::new(0),
            refuse: AtomicBool::new(false),
            panics: AtomicBool::new(false),
        })
    }

    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, u64, u64)> {
        let mut at = offset;
        std::iter::from_fn(move || {
            let left = (offset + len).checked_sub(at).filter(|left| *left > 0)?;
            let (block, within) = (at / BLOCK, at % BLOCK);
            let len = left.min(BLOCK - within);
            at += len;
            Some((block as usize, within, len))
        })
    }

    fn place(entry: u64, within: u64) -> Place {
        Place::File { file: (entry % 2) as u32, offset: (entry / 2) * BLOCK + within }
    }
}

impl Format for Scattered {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }

    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        if self.forgetful.fetch_add(1, Ordering::Relaxed) % 5 == 4 {
            return Ok(Mapping::Blocked);
        }
        for (block, within, len) in self.parts(offset, len) {
            match self.table[block].load(Ordering::Acquire) {
                ABSENT => extents.push(len, Place::Zeros),
                entry => extents.push(len, Self::place(entry, within)),
            }
        }
        Ok(Mapping::Ready)
    }

    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        for (block, within, len) in self.parts(offset, len) {
            match self.table[block].load(Ordering::Acquire) {
                ABSENT => return Ok(Mapping::Blocked),
                entry => extents.push(len, Self::place(entry, within)),
            }
        }
        Ok(Mapping::Ready)
    }

    fn prepare_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        assert!(!self.panics.load(Ordering::Relaxed), "asked to");
        if self.refuse.load(Ordering::Relaxed) {
            return Err(IoError::NoSpace);
        }
        for (block, _, _) in self.parts(offset, len) {
            if self.table[block].load(Ordering::Acquire) == ABSENT {
                let entry = self.next.fetch_add(1, Ordering::Relaxed);
                // Two queues may race: the first entry stays, and the other block is leaked.
                let _ =
                    self.table[block].compare_exchange(ABSENT, entry, Ordering::AcqRel, Ordering::Acquire);
            }
        }
        Ok(())
    }

    fn written(&self, _offset: u64, len: u64) {
        self.written.fetch_add(len, Ordering::Relaxed);
    }

    fn flush_kind(&self) -> Flush {
        if self.ordered_flush { Flush::Format } else { Flush::SyncFiles }
    }

    fn flush(&self) -> Result<(), IoError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.files.iter().try_for_each(|file| file.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.write_zeroes(offset, len, true)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        for (block, within, len) in self.parts(offset, len) {
            let entry = self.table[block].load(Ordering::Acquire);
            if entry == ABSENT {
                continue;
            }
            if let Place::File { file, offset } = Self::place(entry, within) {
                self.files[file as usize].write_zeroes(offset, len, may_unmap)?;
            }
        }
        Ok(())
    }
}

const BOTH: [(EngineKind, &str); 2] = [(EngineKind::IoUring, "io_uring"), (EngineKind::Threads, "threads")];

/// Fragments, holes, allocation, look-ups, both kinds of flush; and bounce buffers although no file requires them.
#[test]
fn a_difficult_format_conforms() {
    for (ordered_flush, buffer_alignment) in [(false, 1), (true, 512)] {
        let make = || {
            let folder = tempfile::tempdir().unwrap();
            let format = Scattered::new(folder.path(), ordered_flush, buffer_alignment);
            Fresh { disk: Arc::new(FileDisk::new(format)), peek: None, hold: Box::new(folder) }
        };
        let name = format!("scattered, ordered flush {ordered_flush}");
        Suite { name: &name, make: &make, make_read_only: None, engines: &BOTH, keeps_data: true }.run();
    }
}

/// A disk whose queues may all block.
struct Blocking(FileDisk);

impl Disk for Blocking {
    fn info(&self) -> &DiskInfo {
        self.0.info()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        let mut queue = self.0.queue(config)?;
        queue.allow_blocking();
        Ok(queue)
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.0.status(offset, limit)
    }
}

#[test]
fn a_queue_that_may_block_conforms() {
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let format = Scattered::new(folder.path(), true, 1);
        Fresh { disk: Arc::new(Blocking(FileDisk::new(format))), peek: None, hold: Box::new(folder) }
    };
    Suite { name: "blocking", make: &make, make_read_only: None, engines: &BOTH, keeps_data: true }.run();
}

#[test]
fn whole_pages_are_written_inline_where_that_is_allowed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let guest = Guest::new(8192);
    guest.put(0, &[7; 8192]);
    for (engine, _) in BOTH {
        let ends_at_once = |driver: &mut Driver, fua: bool, offset: u64, len: u64| {
            let buf = guest.buf(0, len as usize);
            let request = Request { tag: 1, op: Op::Write { fua }, offset, len, bufs: &[buf] };
            driver.queue.push(&request).unwrap();
            let submits = driver.queue.stats().submits;
            driver.queue.reap(&mut driver.done);
            let at_once = driver.queue.in_flight() == 0 && submits == driver.queue.stats().submits;
            driver.drain();
            assert_eq!(driver.done.pop().unwrap().result, Ok(()));
            at_once
        };
        let mut driver = driver(&raw(file.path()), engine);
        // Without inline I/O, io_uring does not complete at once. The thread engine might, so it is not checked.
        assert!(engine == EngineKind::Threads || !ends_at_once(&mut driver, false, 0, 4096));
        driver.queue.allow_blocking();
        assert!(ends_at_once(&mut driver, false, 4096, 8192));
        for (fua, offset, len) in [(true, 0, 4096), (false, 512, 4096), (false, 0, 512)] {
            let at_once = ends_at_once(&mut driver, fua, offset, len);
            assert!(engine == EngineKind::Threads || !at_once, "{fua} {offset} {len}");
        }
        assert_eq!(driver.read(4096, 8192), [7; 8192]);
    }
}

#[test]
fn cached_data_are_read_inline_where_that_is_allowed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let guest = Guest::new(8192);
    guest.put(0, &[7; 8192]);
    let mut driver = driver(&raw(file.path()), EngineKind::IoUring);
    driver.write(4096, &[7; 8192]);
    let tmpfs = fstatfs(file.as_file()).unwrap().f_type == libc::TMPFS_MAGIC;
    // Not every file system can read without waiting.
    let cached = sys::transfer(file.as_file().as_fd(), &[guest.buf(0, 8192)], 4096, RwMode::ReadCached);
    let inline = tmpfs || cached == Ok(8192);
    let ends_at_once = |driver: &mut Driver| {
        guest.put(0, &[0; 8192]);
        let request = Request { tag: 1, op: Op::Read, offset: 4096, len: 8192, bufs: &[guest.buf(0, 8192)] };
        driver.queue.push(&request).unwrap();
        driver.queue.reap(&mut driver.done);
        let at_once = driver.queue.in_flight() == 0;
        driver.drain();
        assert_eq!(driver.done.pop().unwrap().result, Ok(()));
        assert_eq!(guest.get(0, 8192), [7; 8192]);
        at_once
    };
    assert!(!ends_at_once(&mut driver));
    driver.queue.allow_blocking();
    assert_eq!(ends_at_once(&mut driver), inline, "{cached:?}");
    // Data that have to come from the disk are left to the engine.
    file.as_file().sync_all().unwrap();
    fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    assert!(tmpfs || !ends_at_once(&mut driver));
    ends_at_once(&mut driver);
    assert_eq!(ends_at_once(&mut driver), inline, "they are in the cache again");
}

fn driver(format: &Arc<dyn Format>, engine: EngineKind) -> Driver {
    let queue = file_queue(format, &QueueConfig { depth: 8, engine }).unwrap();
    Driver { queue, done: Vec::new() }
}

#[test]
fn a_format_learns_of_writes_and_flushes() {
    let folder = tempfile::tempdir().unwrap();
    let format = Scattered::new(folder.path(), true, 1);
    let mut driver = driver(&(Arc::clone(&format) as Arc<dyn Format>), EngineKind::IoUring);
    driver.write(0, &[1; 1 << 20]);
    assert_eq!(format.written.load(Ordering::Relaxed), 1 << 20);
    assert_eq!(format.flushes.load(Ordering::Relaxed), 0);
    driver.run(Op::Flush, 0, 0, &[]).unwrap();
    assert_eq!(format.flushes.load(Ordering::Relaxed), 1);
    let guest = Guest::new(512);
    driver.run(Op::Write { fua: true }, 0, 512, &[guest.buf(0, 512)]).unwrap();
    assert_eq!(format.flushes.load(Ordering::Relaxed), 2, "force unit access flushes what the format keeps");
    // Zeros to a hole need no allocation, but are flushed.
    format.refuse.store(true, Ordering::Relaxed);
    let far = 8 << 20;
    driver.run(Op::Write { fua: true }, far, 512, &[guest.buf(0, 512)]).unwrap();
    assert_eq!(format.flushes.load(Ordering::Relaxed), 3);
    assert!(format.next.load(Ordering::Relaxed) <= (1 << 20) / BLOCK, "zeros were allocated");
    // A failed allocation is an error of its request, and of no other.
    guest.put(0, &[7; 512]);
    assert_eq!(driver.run(Op::Write { fua: false }, far, 512, &[guest.buf(0, 512)]), Err(IoError::NoSpace));
    assert_eq!(format.written.load(Ordering::Relaxed), (1 << 20) + 512);
    assert_eq!(driver.read(far, 512), [0; 512]);
    assert!(driver.queue.stats().slow >= 3);
}

/// Dropping the disk closes its files at once: the next open is not refused as busy.
#[test]
fn dropped_disks_can_be_opened_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for round in 0..100 {
        let mut driver = driver(&raw(file.path()), BOTH[round % 2].0);
        driver.write(0, &[round as u8; 4096]);
    }
}

#[test]
fn a_panic_in_a_format_is_an_error_of_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let format = Scattered::new(folder.path(), false, 1);
    format.panics.store(true, Ordering::Relaxed);
    let mut driver = driver(&(Arc::clone(&format) as Arc<dyn Format>), EngineKind::IoUring);
    let guest = Guest::new(512);
    guest.put(0, &[7; 512]);
    let write = |driver: &mut Driver| driver.run(Op::Write { fua: false }, 0, 512, &[guest.buf(0, 512)]);
    assert_eq!(write(&mut driver), Err(IoError::Damaged("the format panicked")));
    format.panics.store(false, Ordering::Relaxed);
    assert_eq!(write(&mut driver), Ok(()));
}

#[test]
fn a_refused_ring_falls_back_to_threads_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let format: Arc<dyn Format> = Scattered::new(folder.path(), false, 1);
    for refusal in [Errno::PERM, Errno::NOSYS, Errno::NOMEM] {
        let config = QueueConfig { depth: 8, engine: EngineKind::IoUring };
        let queue = file_queue_with(&format, &config, |_| Err::<Threads, _>(refusal)).unwrap();
        assert_eq!(queue.engine(), "threads");
        let mut driver = Driver { queue, done: Vec::new() };
        driver.write(512, &[3; 512]);
        assert_eq!(driver.read(512, 512), [3; 512]);
    }
}

fn raw(path: &std::path::Path) -> Arc<dyn Format> {
    Arc::new(Raw::open(path, Access::default()).unwrap())
}

#[test]
fn a_file_that_shrank_is_damage_and_nothing_is_made_up() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for (engine, _) in BOTH {
        file.as_file().set_len(1 << 20).unwrap();
        let mut driver = driver(&raw(file.path()), engine);
        file.as_file().set_len(4096).unwrap();
        let guest = Guest::new(8192);
        let bufs = [guest.buf(0, 8192)];
        assert_eq!(driver.run(Op::Read, 0, 8192, &bufs), Err(SHORT_FILE), "a read that starts well");
        assert_eq!(driver.run(Op::Read, 65536, 8192, &bufs), Err(SHORT_FILE));
        assert_eq!(driver.run(Op::Read, 0, 4096, &[guest.buf(0, 4096)]), Ok(()));
    }
}

/// Errors of the host are passed on with their cause: a file system without space, and a file that is not open for
/// writing.
#[test]
fn host_errors_are_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(folder.path())
        .status()
        .is_ok_and(|done| done.success());
    if mounted {
        let path = folder.path().join("disk");
        Raw::create(&path, 8 << 20).unwrap();
        let results: Vec<_> = BOTH
            .map(|(engine, _)| {
                let mut driver = driver(&raw(&path), engine);
                let guest = Guest::new(1 << 20);
                driver.run(Op::Write { fua: false }, 0, 1 << 20, &[guest.buf(0, 1 << 20)])
            })
            .to_vec();
        let _ = std::process::Command::new("umount").arg(folder.path()).status();
        assert_eq!(results, [Err(IoError::NoSpace); 2]);
    } else {
        println!("SKIP: host_errors_are_passed_on (the full file system): cannot mount a tmpfs here");
    }
    let path = folder.path().join("plain");
    std::fs::write(&path, [0; 4096]).unwrap();
    let read_only = BackingFile::open(&path, Access::READ_ONLY).unwrap();
    let mut info = Raw::open(&path, Access::READ_ONLY).unwrap().info().clone();
    info.read_only = false;
    let format: Arc<dyn Format> = Arc::new(Claims { info, files: [Arc::new(read_only)] });
    for (engine, _) in BOTH {
        let guest = Guest::new(512);
        let result = driver(&format, engine).run(Op::Write { fua: false }, 0, 512, &[guest.buf(0, 512)]);
        assert_eq!(result, Err(IoError::Os(Errno::BADF)));
    }
}

/// A format that claims to be writable, over a file that is not.
struct Claims {
    info: DiskInfo,
    files: [Arc<BackingFile>; 1],
}

impl Format for Claims {
    fn info(&self) -> &DiskInfo {
        &self.info
    }
    fn files(&self) -> &[Arc<BackingFile>] {
        &self.files
    }
    fn map_read(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        extents.push(len, Place::File { file: 0, offset });
        Ok(Mapping::Ready)
    }
    fn map_write(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<Mapping, IoError> {
        self.map_read(offset, len, extents)
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }
    fn write_zeroes(&self, _offset: u64, _len: u64, _may_unmap: bool) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }
}
