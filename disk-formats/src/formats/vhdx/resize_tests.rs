//! A resize that is refused or fails leaves the image as it was: its length, its content, and the GUID by which its
//! children identify it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use uuid::Uuid;

use super::compact::compact;
use super::edit::Editor;
use super::journal::DataGuid;
use super::layout::Entry;
use super::resize::{check_resize, resize};
use super::testing::{Shape, UNIT, check_in, new_image, open, opened, read};
use crate::contract::error::{IoError, OpenError};
use crate::contract::info::SectorSize;
use crate::formats::copy::holes::copy_run;
use crate::formats::findings::Severity;
use crate::formats::name::FormatName;
use crate::formats::open::OpenOptions;
use crate::host::crash::{CrashFile, Image, stamped};
use crate::host::faults::{Call, Fault, Host};
use crate::host::store::Store;
use crate::map::format::Format;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

/// A disk with a unit written in each block.
fn used(fixed: bool) -> Image {
    let shape = Shape { size: SIZE, block_size: MIB as u32, sector: SectorSize::B512, fixed };
    let file = CrashFile::of(new_image(shape, None));
    let disk = open(std::slice::from_ref(&file), false).expect("a disk");
    for block in 0..SIZE / MIB {
        disk.write_now(block * MIB, &stamped(block + 1)).expect("a write");
    }
    disk.flush().expect("a flush");
    drop(disk);
    file.image()
}

fn has_content(file: &CrashFile) {
    let files = std::slice::from_ref(file);
    let disk = open(files, true).expect("a disk");
    for block in 0..SIZE / MIB {
        let mut unit = [0; UNIT as usize];
        read(&disk, files, &mut unit, block * MIB).expect("a read");
        assert!(unit == stamped(block + 1), "block {block}");
    }
}

/// The data write GUID, the log GUID, the virtual size, and the size of the file.
fn state(file: &CrashFile) -> (Uuid, Uuid, u64, u64) {
    let opened = opened(file, false).expect("a disk");
    let len = file.len().expect("a length");
    (opened.headers.data_write_guid(), opened.headers.log_guid(), opened.layout.size, len)
}

fn is_clean(file: &CrashFile) {
    let report = check_in(Arc::new(file.clone()), false).expect("a file");
    assert_eq!((report.findings, report.leaked), (Vec::new(), 0));
}

#[test]
fn a_refused_resize_changes_nothing() {
    for fixed in [false, true] {
        let file = CrashFile::of(used(fixed));
        let before = state(&file);
        for (size, shrink) in [(SIZE - MIB, true), (SIZE - MIB, false), (100, true), (65 << 40, false)] {
            resize(Arc::new(file.clone()), size, shrink).expect_err("refused");
            assert_eq!((state(&file), file.len_of_log()), (before, 0), "{size}");
        }
        resize(Arc::new(file.clone()), SIZE, false).expect("nothing to do");
        assert_eq!(file.len_of_log(), 0);
    }
}

/// A host without space: after each failure, the disk is as it was.
#[test]
fn growing_without_space_changes_nothing() {
    for (fixed, sizes) in [(true, [9 * MIB, 3 << 30]), (false, [200 << 30, 8 << 40])] {
        for size in sizes {
            let base = used(fixed);
            let (mut at, mut failed) = (0, 0);
            loop {
                let file = CrashFile::of(base.clone());
                let before = state(&file);
                file.fail_growth(Some(at));
                let done = resize(Arc::new(file.clone()), size, false);
                file.fail_growth(None);
                has_content(&file);
                match done {
                    Ok(()) => {
                        assert_eq!(state(&file).2, size);
                        break;
                    }
                    Err(error) => {
                        assert!(
                            matches!(&error, OpenError::Os { source, .. }
                            if source.raw_os_error() == Some(28)),
                            "{error:?}"
                        );
                        assert_eq!(state(&file), before);
                        is_clean(&file);
                        failed += 1;
                    }
                }
                // More than this host can store.
                if size == 3 << 30 {
                    break;
                }
                at += 1;
            }
            assert!(failed > 0, "{size}");
        }
    }
}

/// A host of which a single call fails.
struct OneFails {
    file: CrashFile,
    /// Number of calls until the failure.
    left: AtomicU64,
    errno: Errno,
}

impl OneFails {
    fn call(&self) -> io::Result<()> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(self.errno.into()),
            _ => Ok(()),
        }
    }
}

impl Store for OneFails {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.call().and_then(|()| self.file.write_at(data, offset))
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.call().and_then(|()| self.file.set_size(size))
    }

    /// The failing call has a partial effect, as on Linux.
    fn reserve(&self, start: u64, end: u64) -> io::Result<()> {
        if let Err(error) = self.call() {
            self.file.reserve(start, start + (end - start) / 2 / MIB * MIB)?;
            return Err(error);
        }
        self.file.reserve(start, end)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.call().map_err(|_| IoError::from(self.errno))?;
        self.file.write_zeroes(offset, len, may_unmap)
    }

    fn clone_range(&self, _source: &dyn Store, _from: u64, _to: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn sync(&self) -> io::Result<()> {
        self.call().and_then(|()| self.file.sync())
    }
}

/// Each host call fails once: the disk has the old size and is as it was, or has the new size.
#[test]
fn a_resize_of_which_any_call_fails_is_undone_or_done() {
    let base = used(true);
    let grown = CrashFile::of(base.clone());
    resize(Arc::new(grown.clone()), 2 * SIZE, false).expect("growing");
    let dynamic = used(false);
    let cases =
        [(&base, 2 * SIZE), (&grown.image(), SIZE), (&dynamic, SIZE + MIB / 2), (&dynamic, 200 << 30)];
    for (number, (image, size)) in cases.into_iter().enumerate() {
        let (mut failed, mut at) = (0, 0);
        loop {
            let file = CrashFile::of(image.clone());
            let before = state(&file);
            let errno = if at % 2 == 0 { Errno::NOSPC } else { Errno::IO };
            let store = OneFails { file: file.clone(), left: AtomicU64::new(at), errno };
            let done = resize(Arc::new(store), size, true);
            has_content(&file);
            let report = check_in(Arc::new(file.clone()), false).expect("a file");
            assert!(report.worst() < Some(Severity::Damage), "{number}, {at}: {:?}", report.findings);
            let now = state(&file);
            if done.is_ok() {
                assert_eq!(now.2, size, "{number}, {at}");
                // The fault was beyond the last call.
                if now != before {
                    break;
                }
            }
            failed += 1;
            assert_eq!(now.0 == before.0, now.2 == before.2, "{number}, {at}: children do not notice");
            if now.2 == before.2 {
                assert_eq!((now, report.leaked), (before, 0), "{number}, {at}: it is not as it was");
            }
            at += 1;
        }
        assert!(failed > 10, "{number}: {failed}");
    }
}

/// A flush fails before the log has an entry: the file gets its old length back, though nothing else of it may be
/// changed.
#[test]
fn growing_of_which_a_flush_fails_is_undone() {
    let grow = |fault: Option<(usize, Fault)>| {
        let host = Host::new();
        let path = host.folder().join("disk.vhdx");
        std::fs::write(&path, used(true).bytes()).expect("a file");
        host.settle();
        let len = || std::fs::metadata(&path).expect("a file").len();
        let before = len();
        host.arm(fault);
        let done = crate::Image::of_format(&path, FormatName::Vhdx).resize(2 * SIZE, crate::Shrink::Refuse);
        let calls = host.disarm();
        assert_eq!(host.fault(), fault.map(|(_, fault)| fault));
        host.evict();
        let capacity = OpenOptions::new(&path).open().expect("a disk").info().capacity;
        (done, calls, len() - before, capacity)
    };
    let (done, calls, grown, capacity) = grow(None);
    assert!(done.is_ok() && grown == SIZE && capacity == 2 * SIZE);
    let allocated = calls.iter().position(|call| *call == Call::Allocate).expect("a call for space");
    let flush = calls.iter().skip(allocated).position(|call| *call == Call::Sync).expect("a flush");
    let (done, _, grown, capacity) = grow(Some((allocated + flush, Fault::Loses(Errno::IO))));
    let error = done.expect_err("a failed flush").to_string();
    assert_eq!((grown, capacity), (0, SIZE), "{error}");
}

/// A fixed disk with a block behind a gap, and a file that is longer than needed.
fn leaky() -> CrashFile {
    let file = CrashFile::of(used(true));
    let mut editor = Editor::open(Arc::new(file.clone())).expect("a disk");
    editor.start_log(DataGuid::Unchanged).expect("a log");
    let place = editor.append(MIB).expect("space");
    let old = editor.entry(2).expect("an entry");
    copy_run(&file, old.offset(), place.offset, MIB, false).expect("space");
    editor.set_entries(&[(2, Entry::fully(place.offset))]).expect("a log");
    editor.close().expect("a file");
    file.set_size(file.len().expect("a length") + 3 * MIB).expect("space");
    file
}

#[test]
fn repairing_and_compacting_return_what_a_fixed_disk_leaks() {
    let file = leaky();
    let before = state(&file);
    assert_eq!(check_in(Arc::new(file.clone()), false).expect("a file").leaked, 4 * MIB);
    let report = check_in(Arc::new(file.clone()), true).expect("a file");
    assert_eq!(report.leaked, MIB);
    assert!(report.findings.iter().any(|finding| finding.repaired == Some("cut off")), "{report:?}");
    assert_eq!(check_in(Arc::new(file.clone()), false).expect("a file").leaked, MIB);
    has_content(&file);
    for file in [file, leaky()] {
        let done = compact(Arc::new(file.clone()), |_, _| true).expect("compacting");
        assert_eq!((done.released, done.moved), (0, 1));
        has_content(&file);
        is_clean(&file);
        assert_eq!(file.len().expect("a length"), (4 + SIZE / MIB) * MIB);
    }
    // The content is unchanged, so children stay valid.
    let file = leaky();
    let guid = state(&file).0;
    compact(Arc::new(file.clone()), |_, _| true).expect("compacting");
    assert_eq!(state(&file).0, guid);
    assert_eq!(before.1, Uuid::nil());
}

/// A fixed disk keeps its space, whatever its blocks contain.
#[test]
fn compacting_a_fixed_disk_releases_no_block_of_zeros() {
    let shape = Shape { size: SIZE, block_size: MIB as u32, sector: SectorSize::B512, fixed: true };
    let file = CrashFile::of(new_image(shape, None));
    let before = file.len().expect("a length");
    let done = compact(Arc::new(file.clone()), |_, _| true).expect("compacting");
    assert_eq!((done.released, done.moved, file.len().expect("a length")), (0, 0, before));
    is_clean(&file);
}

/// A gap that was zeroed for a disk that cannot grow is deallocated again.
#[test]
fn growing_without_space_returns_what_was_free_inside_the_file() {
    let host = Host::new();
    let path = host.folder().join("disk.vhdx");
    std::fs::write(&path, leaky().bytes()).expect("a file");
    host.settle();
    let grow = |fault| {
        host.arm(fault);
        let done = crate::Image::of_format(&path, FormatName::Vhdx).resize(3 * SIZE, crate::Shrink::Refuse);
        (done, host.disarm())
    };
    let (_, calls) = grow(None);
    let at = calls.iter().position(|call| *call == Call::Allocate).expect("a call for space");
    assert!(calls[..at].contains(&Call::Zero) && !calls.contains(&Call::Punch), "{calls:?}");
    std::fs::write(&path, leaky().bytes()).expect("a file");
    host.settle();
    let (done, calls) = grow(Some((at, Fault::Fails(Errno::NOSPC))));
    done.expect_err("no space");
    assert!(calls.contains(&Call::Punch), "{calls:?}");
}

/// Lost data may be in unused space, so the file is not truncated.
#[test]
fn repairing_a_damaged_image_does_not_cut_it() {
    let file = CrashFile::of(used(true));
    let layout = opened(&file, false).expect("a disk").layout;
    let last = layout.bat.offset + layout.payload_index(SIZE / MIB - 1) * 8;
    file.write_at(&[0xEE; 512], last / 512 * 512).expect("a file");
    let len = file.len().expect("a length");
    for repair in [true, false] {
        check_in(Arc::new(file.clone()), repair).expect("a file");
        assert_eq!(file.len().expect("a length"), len);
    }
}

/// What a reader does not see is no reason to refuse a smaller size: bytes of a differencing disk under clear bits.
#[test]
fn only_what_a_reader_sees_is_data() {
    let shape = Shape { size: SIZE, block_size: MIB as u32, sector: SectorSize::B512, fixed: false };
    let base = new_image(shape, None);
    let file = CrashFile::of(new_image(shape, Some(&base)));
    let disk = open(&[file.clone(), CrashFile::of(base)], false).expect("a disk");
    disk.write_now(7 * MIB + UNIT, &stamped(5)).expect("a write");
    disk.flush().expect("a flush");
    drop(disk);
    let found = opened(&file, true).expect("a disk");
    let entries = super::layer::read_bat(&file, &found.layout, 0, found.layout.entries()).expect("a table");
    let block = entries[found.layout.payload_index(7) as usize];
    assert_eq!(block.state(), super::layout::State::PartiallyPresent);
    // Remains in sectors without a bit.
    file.write_at(&stamped(6), block.offset()).expect("remains");
    file.write_at(&stamped(6), block.offset() + 9 * UNIT).expect("remains");
    let store: Arc<dyn Store> = Arc::new(file.clone());
    let refused = resize(Arc::clone(&store), 7 * MIB, true).expect_err("data").to_string();
    assert!(refused.contains(&format!("at least {}: data are there", 7 * MIB + 2 * UNIT)), "{refused}");
    let data = 7 * MIB + UNIT..7 * MIB + 2 * UNIT;
    let cleared = |data| check_resize(Arc::clone(&store), 7 * MIB, true, std::slice::from_ref(&data));
    cleared(data.clone()).expect("it is zeroed before");
    cleared(data.start..data.start).expect_err("it is not zeroed");
    resize(store, 7 * MIB + 2 * UNIT, true).expect("shrinking");
}
