use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::contract::disk::Disk;
use crate::contract::error::OpenError;
use crate::contract::queue::EngineKind;
use crate::formats::copy::content::Content;
use crate::formats::flat::raw::Raw;
use crate::formats::open::OpenOptions;
use crate::formats::vhdx::CreateOptions;
use crate::formats::{vhd, vhdx};
use crate::host::faults::{Call, Fault, Host};
use crate::host::store::Store;
use crate::queue::conformance::{Driver, Guest};

use super::*;
use crate::host::backing::BackingFile;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
/// Offsets in different blocks.
const FIRST: u64 = 0;
const SECOND: u64 = 4 * MIB;
const THIRD: u64 = 8 * MIB;

/// The path of an image of a format.
fn path_of(host: &Host, name: &str) -> PathBuf {
    let end = name.split([',', ' ']).next_back().filter(|end| *end == "vhdx").or(name.split(',').next());
    host.folder().join("disk").with_extension(end.unwrap_or_default())
}

/// Creates an image.
type Make = fn(&Path);

/// As `Make`, but may fail.
type TryMake = fn(&Path) -> Result<(), OpenError>;

const FORMATS: [(&str, Make); 8] = [
    ("raw", |path| Raw::create(path, SIZE).unwrap()),
    ("vhd, fixed", |path| vhd::create_fixed(path, SIZE).unwrap()),
    ("vhd, dynamic", |path| vhd::create_dynamic(path, SIZE, None).unwrap()),
    ("vhd, differencing", |path| {
        let parent = path.with_extension("parent");
        vhd::create_dynamic(&parent, SIZE, None).unwrap();
        vhd::create_differencing(path, &parent, None).unwrap();
    }),
    ("vhdx, fixed", |path| vhdx::create_fixed(path, SIZE, blocks()).unwrap()),
    ("vhdx, dynamic", |path| vhdx::create_dynamic(path, SIZE, blocks()).unwrap()),
    ("vhdx, differencing", |path| {
        let parent = path.with_extension("parent");
        vhdx::create_dynamic(&parent, SIZE, blocks()).unwrap();
        vhdx::create_differencing(path, &parent, Some(MIB as u32)).unwrap();
    }),
    ("vhd in vhdx", |path| {
        let inner = path.with_extension("inner");
        vhd::create_dynamic(&inner, SIZE, None).unwrap();
        vhdx::create_dynamic(path, 4 * SIZE, blocks()).unwrap();
        let outer = OpenOptions::new(path).open_format().unwrap();
        Content::new(&*outer).write_at(&std::fs::read(&inner).unwrap(), 0).unwrap();
        outer.flush().unwrap();
    }),
];

fn blocks() -> CreateOptions {
    CreateOptions { block_size: Some(MIB as u32), ..CreateOptions::default() }
}

fn open(path: &Path) -> Arc<dyn Disk> {
    let inside = path.with_extension("inner").exists();
    let path = if inside { format!("{}//", path.display()).into() } else { path.to_path_buf() };
    OpenOptions::new(&path).open().unwrap()
}

fn write(driver: &mut Driver, offset: u64, value: u8, fua: bool) -> Result<(), IoError> {
    let guest = Guest::new(4096);
    guest.put(0, &[value; 4096]);
    driver.run(crate::contract::queue::Op::Write { fua }, offset, 4096, &[guest.buf(0, 4096)])
}

fn flush(driver: &mut Driver) -> Result<(), IoError> {
    driver.run(crate::contract::queue::Op::Flush, 0, 0, &[])
}

fn lost_by(path: &Path, result: Result<(), IoError>) -> bool {
    matches!(result, Err(IoError::FlushLost { file, .. }) if Path::new(file) == path)
}

/// The values at each place after a power failure. Checks that the disk is still usable.
fn after_power_loss(host: &Host, path: &Path) -> [u8; 3] {
    host.power_loss();
    let disk = open(path);
    let mut driver = Driver::new(&*disk, EngineKind::Threads, 4);
    let values = [FIRST, SECOND, THIRD].map(|at| driver.read(at, 4096)[0]);
    write(&mut driver, THIRD + MIB, 9, false).unwrap();
    flush(&mut driver).unwrap();
    values
}

/// Each flush call of the path fails in turn. The host reports the failure once.
#[test]
fn no_flush_succeeds_after_one_has_failed() {
    for (name, make) in FORMATS {
        for engine in [EngineKind::IoUring, EngineKind::Threads] {
            for fault in [Fault::Loses(Errno::NOSPC), Fault::LosesLater(Errno::IO)] {
                let mut failed = 0;
                // A flush of some formats makes two calls, with writes between them.
                for at in 0.. {
                    let host = Host::new();
                    let path = path_of(&host, name);
                    make(&path);
                    let disk = open(&path);
                    let mut driver = Driver::new(&*disk, engine, 4);
                    write(&mut driver, FIRST, 1, false).unwrap();
                    flush(&mut driver).unwrap();
                    write(&mut driver, SECOND, 2, false).unwrap();
                    host.arm(Some((at, fault)));
                    let first = flush(&mut driver);
                    if host.fault() != Some(fault) {
                        if host.disarm().len() < at {
                            break;
                        }
                        continue;
                    }
                    failed += 1;
                    let case = format!("{name}, {engine:?}, {fault:?} of call {at}");
                    assert!(lost_by(&path, first), "{case}: {first:?}");
                    host.disarm();
                    host.arm(None);
                    // A write to an existing block is accepted, but never reaches stable storage.
                    assert_eq!(write(&mut driver, FIRST + 4096, 3, false), Ok(()), "{case}");
                    for _ in 0..2 {
                        assert_eq!(flush(&mut driver), first, "{case}");
                    }
                    assert_eq!(write(&mut driver, FIRST + 4096, 3, true), first, "{case}");
                    let mut other = Driver::new(&*disk, engine, 4);
                    assert_eq!(flush(&mut other), first, "{case}");
                    let _ = write(&mut driver, THIRD, 3, false);
                    assert_eq!(flush(&mut driver), first, "{case}");
                    assert_eq!(driver.read(FIRST, 4096)[0], 1, "{case}: reads go on");
                    drop((driver, other, disk));
                    let calls = host.disarm();
                    assert!(!calls.contains(&Call::Sync), "{case}: {calls:?}");
                    let [kept, ..] = after_power_loss(&host, &path);
                    assert_eq!(kept, 1, "{case}");
                }
                assert!(failed > 0, "{name}");
            }
        }
    }
}

/// The engine's own flush loses in-place writes of a commit. The log must not be continued.
#[test]
fn a_commit_after_a_flush_that_failed_elsewhere_writes_no_metadata() {
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        for fault in [Fault::Loses(Errno::IO), Fault::LosesLater(Errno::IO)] {
            let host = Host::new();
            let path = host.folder().join("disk.vhdx");
            vhdx::create_dynamic(&path, SIZE, blocks()).unwrap();
            let disk = open(&path);
            let mut driver = Driver::new(&*disk, engine, 4);
            // Its table entry is in the log and was written in place, not flushed.
            write(&mut driver, FIRST, 1, false).unwrap();
            flush(&mut driver).unwrap();
            write(&mut driver, FIRST, 1, false).unwrap();
            host.arm(Some((0, fault)));
            let lost = flush(&mut driver);
            assert!(host.hit() && lost_by(&path, lost), "{lost:?}");
            host.arm(None);
            let _ = write(&mut driver, SECOND, 2, false);
            assert_eq!(flush(&mut driver), lost);
            drop((driver, disk));
            let calls = host.disarm();
            assert!(!calls.contains(&Call::Write), "{calls:?}");
            assert_eq!(after_power_loss(&host, &path), [1, 0, 0]);
        }
    }
}

#[test]
fn what_says_nothing_of_writes_does_not_stick() {
    let host = Host::new();
    let path = host.folder().join("disk");
    Raw::create(&path, SIZE).unwrap();
    let disk = open(&path);
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        let mut driver = Driver::new(&*disk, engine, 4);
        for errno in [Errno::INTR, Errno::AGAIN] {
            write(&mut driver, FIRST, 1, false).unwrap();
            host.arm(Some((0, Fault::Fails(errno))));
            assert_eq!(flush(&mut driver), Ok(()));
            assert!(host.hit());
            assert_eq!(host.disarm(), [Call::Sync; 2]);
        }
        // A failed write was never accepted.
        for (errno, fua) in [(Errno::IO, false), (Errno::NOSPC, true)] {
            host.arm(Some((0, Fault::Fails(errno))));
            assert_eq!(write(&mut driver, FIRST, 1, fua), Err(errno.into()));
            host.disarm();
            assert_eq!(flush(&mut driver), Ok(()));
        }
    }
}

/// Flushes of many threads: each call covers those that waited for it.
#[test]
fn flushes_that_wait_for_each_other_are_one() {
    let host = Host::new();
    let path = host.folder().join("disk");
    let file = BackingFile::create(&path, SIZE).unwrap();
    host.arm(None);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| file.sync().unwrap()));
        }
    });
    let calls = host.disarm().len();
    assert!((1..=400).contains(&calls), "{calls}");
    file.sync().unwrap();
    host.arm(Some((0, Fault::Loses(Errno::IO))));
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| file.sync())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().all(|result| lost_by(&path, *result)), "{results:?}");
    assert_eq!(host.disarm(), [Call::Sync]);
}

/// Writeback that was started early gets the error while a flush is in flight. The kernel does not report the error to
/// that flush any more.
#[test]
fn a_flush_fails_whose_error_another_call_got() {
    let host = Host::new();
    let file = BackingFile::create(&host.folder().join("disk"), SIZE).unwrap();
    file.sync().unwrap();
    let begun = || file.flushes.shared.begun();
    let before = begun();
    host.arm(None);
    std::thread::scope(|scope| {
        let mut lost = None;
        let mut flush = None;
        host.stalled(|| {
            flush = Some(scope.spawn(|| file.sync()));
            while begun() == before {
                std::thread::yield_now();
            }
            lost = Some(file.flush_failed(Errno::IO));
        });
        let flushed = flush.expect("a thread").join().unwrap();
        assert_eq!(flushed.err(), lost);
    });
    assert_eq!(host.disarm(), [Call::Sync], "the host itself has reported nothing");
    assert!(file.sync().is_err());
}

/// The kernel reports a loss once: here to a call whose completion is not awaited.
#[test]
fn a_loss_that_early_writeback_reports_sticks() {
    let begin = |fault| {
        let host = Host::new();
        let path = host.folder().join("disk");
        let file = BackingFile::create(&path, SIZE).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        host.arm(Some((0, fault)));
        file.start_writeback(0, 4096);
        let flushed = file.sync();
        assert!(host.hit());
        (host.disarm(), flushed.is_ok(), lost_by(&path, flushed))
    };
    for fault in [Fault::Loses(Errno::NOSPC), Fault::LosesLater(Errno::IO)] {
        assert_eq!(begin(fault), (vec![Call::Writeback], false, true), "{fault:?}");
    }
    for errno in [Errno::INTR, Errno::AGAIN] {
        assert_eq!(begin(Fault::Fails(errno)), (vec![Call::Writeback, Call::Sync], true, false), "{errno}");
    }
}

/// The page cache may still have data that were never written to the medium. The next open of the file must not read
/// them.
#[test]
fn who_opens_a_file_after_a_failed_flush_reads_what_is_on_the_medium() {
    let host = Host::new();
    let path = host.folder().join("disk");
    let file = BackingFile::create(&path, SIZE).unwrap();
    file.write_at(&[1; 4096], 0).unwrap();
    file.sync().unwrap();
    file.write_at(&[2; 4096], 0).unwrap();
    host.arm(Some((0, Fault::LosesLater(Errno::IO))));
    file.sync().unwrap_err();
    host.disarm();
    let read = |file: &BackingFile| {
        let mut data = [0; 4096];
        file.read_at(&mut data, 0).unwrap();
        data[0]
    };
    assert_eq!(read(&file), 2);
    drop(file);
    assert_eq!(read(&BackingFile::open(&path, crate::host::backing::Access::default()).unwrap()), 1);
}

#[test]
fn the_error_names_the_file_and_the_cause() {
    let host = Host::new();
    let path = host.folder().join("disk");
    let file = BackingFile::create(&path, SIZE).unwrap();
    host.arm(Some((0, Fault::Loses(Errno::NOSPC))));
    let error = file.sync().unwrap_err();
    host.disarm();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("No space left"), "{text}");
    assert_eq!(error.raw_os_error(), libc::EIO, "freeing space and trying again would not help");
    let told = std::io::Error::from(error).to_string();
    assert_eq!(told, text);
    assert_eq!(file.write_zeroes(0, 4096, false), Err(error));
    assert_eq!(file.discard(0, 4096), Err(error));
    assert_eq!(file.write_at(&[0; 512], 0).unwrap_err().to_string(), text);
    assert_eq!(Store::set_size(&file, 2 * SIZE).unwrap_err().to_string(), text);
    assert_eq!(Store::reserve(&file, 0, SIZE).unwrap_err().to_string(), text);
    assert_eq!(file.check_flushes(), Err(error));
    host.allow_clones(true);
    assert_eq!(file.clone_range(&file, 0, SIZE / 2, 4096), Err(Errno::IO));
    assert_eq!(Store::len(&file).unwrap(), SIZE);
    // Undo the change by restoring the size.
    file.undo_growth(SIZE / 2).unwrap();
    assert_eq!(Store::len(&file).unwrap(), SIZE / 2);
}

#[test]
fn what_was_created_survives_a_power_failure_and_failures_leave_nothing() {
    for (name, make) in FORMATS {
        let host = Host::new();
        let path = path_of(&host, name);
        make(&path);
        host.power_loss();
        assert!(path.exists(), "{name}");
        drop(open(&path));
    }
    let makers: [(&str, TryMake); 3] = [
        ("raw", |path| Raw::create(path, SIZE)),
        ("vhd", |path| vhd::create_dynamic(path, SIZE, None)),
        ("vhdx", |path| vhdx::create_dynamic(path, SIZE, blocks())),
    ];
    for (name, make) in makers {
        let host = Host::new();
        let path = host.folder().join("disk");
        host.arm(None);
        make(&path).unwrap();
        let calls = host.disarm();
        assert_eq!(calls.iter().filter(|call| **call == Call::SyncFolder).count(), 1, "{name}");
        for (at, call) in calls.into_iter().enumerate() {
            let host = Host::new();
            let path = host.folder().join("disk");
            host.arm(Some((at, Fault::of(call)[0])));
            make(&path).unwrap_err();
            host.disarm();
            assert!(!path.exists(), "{name}, call {at}");
        }
    }
}
