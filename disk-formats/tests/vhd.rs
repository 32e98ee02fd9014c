//! VHDs in use: several threads on one disk, a full file system, files that shrink, changed parents.

mod common;

use std::sync::Arc;
use std::thread;

use common::{check, image, image_of, loop_device, resize};
use paradisk_disk_formats::ParentRules;
use paradisk_disk_formats::conformance::{Driver, Guest};
use paradisk_disk_formats::vhd::{create_differencing, create_dynamic, create_fixed};
use paradisk_disk_formats::{Disk, EngineKind, IoError, Op, OpenOptions};
use paradisk_disk_formats::{RebaseData, Siblings};

const SECTOR: u64 = 512;

fn byte(thread: u64, sector: u64, round: u64) -> u8 {
    (thread * 37 + sector * 11 + round * 101) as u8 | 1
}

/// Four queues write interleaved sectors of the same new blocks, with flushes in between. After the disk is opened again, each
/// sector has the data written last, and a sector that was not written has the parent's data.
#[test]
fn threads_share_new_blocks() {
    const THREADS: u64 = 4;
    const SIZE: u64 = 4 << 20;
    for block_size in [4096, 64 << 10, 2 << 20] {
        let (_folder, base) = image("base.vhd");
        create_fixed(&base, SIZE).unwrap();
        let under = OpenOptions::new(&base).open().unwrap();
        let parent: Vec<u8> = (0..SIZE).map(|at| (at / SECTOR) as u8).collect();
        Driver::new(&*under, EngineKind::Threads, 1).write(0, &parent);
        drop(under);
        let path = base.with_file_name("child.vhd");
        create_differencing(&path, &base, Some(block_size)).unwrap();
        let disk = OpenOptions::new(&path).open().unwrap();
        // No thread writes the last sector of each 16.
        let sectors =
            |thread: u64| (0..SIZE / SECTOR).filter(move |at| at % 16 != 15 && at % THREADS == thread);
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let disk = Arc::clone(&disk);
                thread::spawn(move || {
                    let engine = if number % 2 == 0 { EngineKind::IoUring } else { EngineKind::Threads };
                    let mut driver = Driver::new(&*disk, engine, 4);
                    for round in 0..2 {
                        for (count, sector) in sectors(number).enumerate() {
                            driver.write(sector * SECTOR, &[byte(number, sector, round); SECTOR as usize]);
                            if count % 200 == 0 {
                                assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
                            }
                        }
                    }
                    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        drop(disk);
        assert!(check(&path, false).unwrap().findings.is_empty());
        let disk = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
        let found = Driver::new(&*disk, EngineKind::Threads, 1).read(0, SIZE as usize);
        for (sector, bytes) in (0..).zip(found.chunks(SECTOR as usize)) {
            let expected = if sector % 16 == 15 { sector as u8 } else { byte(sector % THREADS, sector, 1) };
            assert!(bytes.iter().all(|byte| *byte == expected), "block size {block_size}, sector {sector}");
        }
    }
}

/// Writes of zeros allocate no blocks; in allocated blocks they are written.
#[test]
fn zeros_are_not_allocated() {
    let (_folder, path) = image("a.vhd");
    create_dynamic(&path, 64 << 20, None).unwrap();
    let size = || std::fs::metadata(&path).unwrap().len();
    let empty = size();
    let disk = OpenOptions::new(&path).open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::IoUring, 4);
    for fua in [false, true] {
        let guest = Guest::new(1 << 20);
        assert_eq!(driver.run(Op::Write { fua }, 4 << 20, 1 << 20, &[guest.buf(0, 1 << 20)]), Ok(()));
    }
    assert_eq!(driver.run(Op::WriteZeroes { may_unmap: false }, 0, 64 << 20, &[]), Ok(()));
    assert_eq!(driver.run(Op::Discard, 0, 64 << 20, &[]), Ok(()));
    assert_eq!(size(), empty);
    driver.write(4 << 20, &[7; 4096]);
    driver.write(4 << 20, &[0; 4096]);
    assert_eq!(driver.read(4 << 20, 8192), [0; 8192]);
    assert!(size() > empty);
}

/// On a full file system a write fails, and other requests succeed. The same write succeeds when there is space again.
#[test]
fn space_that_runs_out_is_an_error_of_the_write() {
    let device = match loop_device(32 << 20, 512) {
        Ok(device) => device,
        Err(reason) => {
            return println!(
                "SKIP: space_that_runs_out_is_an_error_of_the_write (a full file system): {reason}"
            );
        }
    };
    let Some(mounted) = common::mount_ext4(&device) else {
        return println!(
            "SKIP: space_that_runs_out_is_an_error_of_the_write (a full file system): it cannot be made or mounted here"
        );
    };
    let path = mounted.path().join("a.vhd");
    create_dynamic(&path, 1 << 30, None).unwrap();
    let disk = OpenOptions::new(&path).open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::IoUring, 4);
    let filler = mounted.path().join("filler");
    std::fs::write(&filler, vec![1; 12 << 20]).unwrap();
    let data = vec![0x5A; 4096];
    let (mut written, mut at) = (Vec::new(), 0);
    let guest = Guest::new(4096);
    guest.put(0, &data);
    let refused = loop {
        match driver.run(Op::Write { fua: false }, at, 4096, &[guest.buf(0, 4096)]) {
            Ok(()) => written.push(at),
            Err(error) => break error,
        }
        at += 2 << 20;
        assert!(at < 64 << 20, "it never fills up");
    };
    assert_eq!(refused, IoError::NoSpace);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    std::fs::remove_file(filler).unwrap();
    driver.write(at, &data);
    written.push(at);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    drop(driver);
    drop(disk);
    assert!(check(&path, false).unwrap().findings.is_empty());
    let disk = OpenOptions { read_only: true, ..OpenOptions::new(&path) }.open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::Threads, 1);
    for at in written {
        assert!(driver.read(at, 4096) == data, "at {at}");
    }
    drop(driver);
    drop(disk);
}

/// The file is truncated while it is open: reads beyond its end fail.
#[test]
fn a_file_that_shrinks_is_an_error() {
    let (_folder, path) = image("a.vhd");
    create_dynamic(&path, 8 << 20, None).unwrap();
    let disk: Arc<dyn Disk> = OpenOptions::new(&path).open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::IoUring, 4);
    driver.write(0, &[1; 4096]);
    driver.write(4 << 20, &[2; 4096]);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let guest = Guest::new(4096);
    let read = driver.run(Op::Read, 4 << 20, 4096, &[guest.buf(0, 4096)]);
    assert!(matches!(read, Err(IoError::Damaged(_))), "{read:?}");
    assert_eq!(driver.read(0, 4096), [1; 4096]);
}

/// Some programs set only the bits of written sectors of a dynamic disk. Writes to other sectors set their bits, in every part
/// of a large block.
#[test]
fn bits_of_others_are_kept_up() {
    let (_folder, path) = image("a.vhd");
    create_dynamic(&path, 8 << 20, Some(4 << 20)).unwrap();
    let disk = OpenOptions::new(&path).open().unwrap();
    Driver::new(&*disk, EngineKind::IoUring, 4).write(0, &[1; 512]);
    drop(disk);
    // Header at 512, BAT at 1536; the block's bitmap has two sectors, for 2 MiB each.
    let mut bytes = std::fs::read(&path).unwrap();
    let bitmap = u32::from_be_bytes(bytes[1536..1540].try_into().unwrap()) as usize * 512;
    assert!(bytes[bitmap..bitmap + 1024].iter().all(|byte| *byte == 0xFF));
    bytes[bitmap..bitmap + 1024].fill(0);
    bytes[bitmap] = 0x80;
    std::fs::write(&path, &bytes).unwrap();
    let disk = OpenOptions::new(&path).open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::IoUring, 4);
    driver.write(512, &[2; 512]);
    driver.write((2 << 20) + 512, &[3; 512]);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[bitmap], bytes[bitmap + 1], bytes[bitmap + 512]), (0xC0, 0, 0x40));
    for (at, value) in [(0, 1), (512, 2), (1024, 0), (2 << 20, 0), ((2 << 20) + 512, 3)] {
        assert_eq!(driver.read(at, 512), [value; 512], "at {at}");
    }
}

fn write(path: &std::path::Path, at: u64, data: &[u8]) {
    let disk = OpenOptions::new(path).open().unwrap();
    let mut driver = Driver::new(&*disk, EngineKind::Threads, 1);
    driver.write(at, data);
    assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
}

/// A resize must neither hide the parent's data nor expose data of the parent that were hidden.
#[test]
fn a_differencing_disk_ends_where_its_parent_does_or_behind() {
    let (folder, base) = image("base.vhd");
    create_dynamic(&base, 8 << 20, None).unwrap();
    write(&base, 6 << 20, &[7; 512]);
    let child = folder.path().join("child.vhd");
    create_differencing(&child, &base, None).unwrap();
    let rules = ParentRules::default();
    let refused = resize(&child, 4 << 20, true, &rules).unwrap_err().to_string();
    assert!(refused.contains("size is 4194304 bytes") && refused.contains("8388608"), "{refused}");
    resize(&child, 16 << 20, false, &rules).unwrap();
    resize(&child, 8 << 20, true, &rules).unwrap();
    // The parent is larger, so growing would expose its data.
    let larger = folder.path().join("larger.vhd");
    create_dynamic(&larger, 16 << 20, None).unwrap();
    write(&larger, 12 << 20, &[9; 512]);
    image_of(&child, &rules).rebase(&larger, RebaseData::Assume, |_, _| true).unwrap();
    let refused = resize(&child, 16 << 20, false, &rules).unwrap_err().to_string();
    assert!(refused.contains("size is 16777216 bytes") && refused.contains("larger.vhd"), "{refused}");
}

#[test]
fn a_damaged_child_is_not_merged() {
    let (folder, base) = image("base.vhd");
    create_dynamic(&base, 8 << 20, None).unwrap();
    let child = folder.path().join("child.vhd");
    create_differencing(&child, &base, None).unwrap();
    write(&child, 0, &[7; 512]);
    let mut bytes = std::fs::read(&child).unwrap();
    let entry: [u8; 4] = bytes[1536..1540].try_into().unwrap();
    bytes[1540..1544].copy_from_slice(&entry);
    std::fs::write(&child, &bytes).unwrap();
    let before = std::fs::read(&base).unwrap();
    let refused = image_of(&child, &ParentRules::default())
        .merge(Siblings::Refuse, |_, _| true)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("child.vhd") && refused.contains("BAT entry"), "{refused}");
    assert!(std::fs::read(&base).unwrap() == before && child.exists());
}

/// Siblings are recognized by their content, not by their names.
#[test]
fn a_sibling_of_any_name_is_found() {
    let (folder, base) = image("base.vhd");
    create_dynamic(&base, 8 << 20, None).unwrap();
    let [child, sibling] = ["child.vhd", "sibling.img"].map(|name| folder.path().join(name));
    create_differencing(&child, &base, None).unwrap();
    create_differencing(&sibling, &base, None).unwrap();
    let refused = image_of(&child, &ParentRules::default())
        .merge(Siblings::Refuse, |_, _| true)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("sibling.img"), "{refused}");
}

fn refused(path: &std::path::Path) -> Option<String> {
    OpenOptions { read_only: true, ..OpenOptions::new(path) }.open().err().map(|error| error.to_string())
}

/// For every kind of parent: a child that was created before the parent was written is refused, even within one second. A
/// parent that was only opened and read is unchanged.
#[test]
fn a_parent_that_was_written_is_noticed() {
    let rules = ParentRules::default();
    type Create = fn(&std::path::Path);
    let kinds: [(&str, Create); 3] = [
        ("fixed", |path| create_fixed(path, 8 << 20).unwrap()),
        ("dynamic", |path| create_dynamic(path, 8 << 20, None).unwrap()),
        ("differencing", |path| {
            let root = path.with_file_name("root.vhd");
            create_dynamic(&root, 8 << 20, None).unwrap();
            create_differencing(path, &root, None).unwrap();
        }),
    ];
    type Work = fn(&mut Driver);
    let works: [(&str, Work); 3] = [
        ("a write", |driver| driver.write(4096, &[3; 512])),
        ("forced unit access", |driver| {
            let guest = Guest::new(512);
            guest.put(0, &[3; 512]);
            assert_eq!(driver.run(Op::Write { fua: true }, 4096, 512, &[guest.buf(0, 512)]), Ok(()));
        }),
        ("zeros", |driver| {
            assert_eq!(driver.run(Op::WriteZeroes { may_unmap: true }, 0, 4096, &[]), Ok(()));
        }),
    ];
    for (kind, create) in kinds {
        for (what, work) in works {
            for engine in [EngineKind::Threads, EngineKind::IoUring] {
                let (folder, base) = image("base.vhd");
                create(&base);
                write(&base, 0, &[1; 8192]);
                let [child, top] = ["child.vhd", "top.vhd"].map(|name| folder.path().join(name));
                create_differencing(&child, &base, None).unwrap();
                create_differencing(&top, &child, None).unwrap();
                write(&top, 8192, &[2; 512]);
                let before = std::fs::read(&base).unwrap();
                let disk = OpenOptions::new(&base).open().unwrap();
                let mut driver = Driver::new(&*disk, engine, 4);
                assert_eq!(driver.read(0, 512), [1; 512]);
                assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
                assert!(std::fs::read(&base).unwrap() == before, "{kind}: changed by reading");
                drop(driver);
                drop(disk);
                assert_eq!(refused(&top), None, "{kind}");
                let disk = OpenOptions::new(&base).open().unwrap();
                work(&mut Driver::new(&*disk, engine, 4));
                drop(disk);
                for path in [&child, &top] {
                    let why = refused(path).unwrap_or_else(|| panic!("{kind}, {what}: not noticed"));
                    assert!(why.contains("parent time stamp") && why.contains("base.vhd"), "{why}");
                }
                assert!(check(&base, false).unwrap().findings.is_empty());
                let any = ParentRules { any_time: true, ..rules.clone() };
                OpenOptions { read_only: true, parents: any, ..OpenOptions::new(&top) }.open().unwrap();
                image_of(&child, &rules).rebase(&base, RebaseData::Assume, |_, _| true).unwrap();
                assert_eq!(refused(&top), None, "{kind}, {what}: rebased");
            }
        }
    }
}

/// Other programs record the modification time of the parent's file. A change of the parent is detected then, too.
#[test]
fn a_parent_that_is_known_by_its_file_is_noticed_as_well() {
    let (folder, base) = image("base.vhd");
    create_dynamic(&base, 8 << 20, None).unwrap();
    let child = folder.path().join("child.vhd");
    create_differencing(&child, &base, None).unwrap();
    for _ in 0..3 {
        let stat = std::fs::metadata(&base).unwrap();
        let seconds = stat.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut bytes = std::fs::read(&child).unwrap();
        bytes[512 + 56..512 + 60].copy_from_slice(&(seconds as u32 - 946_684_800).to_be_bytes());
        bytes[512 + 36..512 + 40].fill(0);
        let sum: u32 = bytes[512..1536].iter().map(|byte| u32::from(*byte)).sum();
        bytes[512 + 36..512 + 40].copy_from_slice(&(!sum).to_be_bytes());
        std::fs::write(&child, bytes).unwrap();
        assert_eq!(refused(&child), None, "made right after a session");
        write(&base, 0, &[1; 512]);
        assert!(refused(&child).unwrap().contains("parent time stamp"));
    }
}

/// Change the footer and its copy, if there is one.
fn patch_footer(path: &std::path::Path, change: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(path).unwrap();
    let end = bytes.len() - 512;
    for at in [0, end] {
        if bytes[at..].starts_with(b"conectix") {
            let footer = &mut bytes[at..at + 512];
            change(footer);
            footer[64..68].fill(0);
            let sum = footer.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
            footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
        }
    }
    std::fs::write(path, bytes).unwrap();
}

/// Images of some programs have no time stamp. A copy of such a parent, with another modification time, is accepted.
#[test]
fn a_copy_of_a_parent_without_a_stamp_is_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (base, child) = (path("base.vhd"), path("child.vhd"));
    create_fixed(&base, 1 << 20).unwrap();
    patch_footer(&base, |footer| footer[24..28].fill(0));
    create_differencing(&child, &base, None).unwrap();
    std::fs::copy(&base, path("copy")).unwrap();
    std::fs::rename(path("copy"), &base).unwrap();
    let file = std::fs::File::options().write(true).open(&base).unwrap();
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(1000)).unwrap();
    drop(file);
    assert_eq!(refused(&child), None);
    write(&base, 0, &[1; 512]);
    assert!(refused(&child).unwrap().contains("parent time stamp"), "a change is noticed");
    image_of(&child, &ParentRules::default()).rebase(&base, RebaseData::Assume, |_, _| true).unwrap();
    assert_eq!(refused(&child), None);
}

/// The parent's time stamp, by another program, is later than the file's modification time, which the child has recorded.
#[test]
fn children_of_other_programs_open_whatever_their_parents_stamp_is() {
    let folder = tempfile::tempdir().unwrap();
    let (base, child) = (folder.path().join("base.vhd"), folder.path().join("child.vhd"));
    create_dynamic(&base, 1 << 20, Some(4096)).unwrap();
    let file_time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(946_684_800 + 500_000_000);
    let to_file_time = || {
        let file = std::fs::File::options().write(true).open(&base).unwrap();
        file.set_modified(file_time).unwrap();
    };
    let stamp_as = |creator: &[u8; 4]| {
        patch_footer(&base, |footer| {
            footer[24..28].copy_from_slice(&600_000_000u32.to_be_bytes());
            footer[28..32].copy_from_slice(creator);
        });
        to_file_time();
    };
    stamp_as(b"win ");
    create_differencing(&child, &base, None).unwrap();
    // The child, also by that program, records the modification time of the parent's file.
    patch_footer(&child, |footer| footer[28..32].copy_from_slice(b"win "));
    let mut bytes = std::fs::read(&child).unwrap();
    let header = &mut bytes[512..1536];
    header[56..60].copy_from_slice(&500_000_000u32.to_be_bytes());
    header[36..40].fill(0);
    let sum = header.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    header[36..40].copy_from_slice(&(!sum).to_be_bytes());
    std::fs::write(&child, bytes).unwrap();
    assert_eq!(refused(&child), None);
    stamp_as(b"pdsk");
    assert_eq!(refused(&child), None);
    write(&base, 0, &[1; 512]);
    assert!(refused(&child).unwrap().contains("parent time stamp"), "a change is noticed");
}

/// Tools that keep the content keep the time stamp. A repair that loses data changes it.
#[test]
fn tools_stamp_a_parent_where_its_content_changes() {
    let rules = ParentRules::default();
    let (folder, root) = image("root.vhd");
    create_fixed(&root, 8 << 20).unwrap();
    let [base, child, other] = ["base.vhd", "child.vhd", "other.vhd"].map(|name| folder.path().join(name));
    create_differencing(&base, &root, None).unwrap();
    write(&base, 2 << 20, &[1; 512]);
    create_differencing(&child, &base, None).unwrap();
    create_dynamic(&other, 8 << 20, None).unwrap();
    write(&other, 4 << 20, &[9; 4096]);
    let good = |what: &str| assert_eq!(refused(&child), None, "{what}");
    resize(&root, 12 << 20, false, &rules).unwrap();
    resize(&root, 8 << 20, true, &rules).unwrap();
    good("resizing its grandparent");
    resize(&base, 16 << 20, false, &rules).unwrap();
    good("growing");
    resize(&base, 8 << 20, true, &rules).unwrap();
    good("shrinking");
    image_of(&base, &rules).compact(|_, _| true).unwrap();
    good("compacting");
    image_of(&base, &rules).rebase(&other, RebaseData::Copy, |_, _| true).unwrap();
    good("rebasing");
    check(&base, true).unwrap();
    good("repairing nothing");
    let mut bytes = std::fs::read(&base).unwrap();
    let table = u64::from_be_bytes(bytes[528..536].try_into().unwrap()) as usize;
    bytes[table..table + 4].copy_from_slice(&1u32.to_be_bytes());
    std::fs::write(&base, bytes).unwrap();
    good("damaging");
    check(&base, true).unwrap();
    assert!(refused(&child).unwrap().contains("parent time stamp"), "repairing");
    assert!(check(&base, false).unwrap().findings.is_empty());
}

/// After a merge was stopped, the child can be opened. Its siblings are refused, in whatever directory they are.
#[test]
fn a_merge_that_is_stopped_is_noticed_by_siblings() {
    let rules = ParentRules::default();
    type Create = fn(&std::path::Path);
    let kinds: [Create; 2] =
        [|path| create_fixed(path, 8 << 20).unwrap(), |path| create_dynamic(path, 8 << 20, None).unwrap()];
    for create in kinds {
        let (folder, base) = image("base.vhd");
        create(&base);
        write(&base, 0, &[1; 8192]);
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let [child, sibling] = [folder.path().join("child.vhd"), elsewhere.join("sibling.vhd")];
        for path in [&child, &sibling] {
            create_differencing(path, &base, None).unwrap();
        }
        write(&child, 4096, &[2; 4096]);
        write(&child, 6 << 20, &[3; 4096]);
        let options = |path: &std::path::Path| OpenOptions {
            read_only: true,
            parents: ParentRules { directories: vec![folder.path().into()], ..rules.clone() },
            ..OpenOptions::new(path)
        };
        assert!(options(&sibling).open().is_ok());
        let mut left = 1;
        let stopped = image_of(&child, &rules).merge(Siblings::Refuse, |_, _| {
            left -= 1;
            left >= 0
        });
        assert_eq!(stopped.unwrap_err().to_string(), "cancelled");
        let why = options(&sibling).open().err().expect("it is refused").to_string();
        assert!(why.contains("parent time stamp"), "{why}");
        let disk = options(&child).open().unwrap();
        let mut driver = Driver::new(&*disk, EngineKind::Threads, 1);
        assert_eq!(driver.read(0, 4096), [1; 4096]);
        assert_eq!(driver.read(4096, 4096), [2; 4096]);
        assert_eq!(driver.read(6 << 20, 4096), [3; 4096]);
        drop(driver);
        drop(disk);
        image_of(&child, &rules).merge(Siblings::Refuse, |_, _| true).unwrap();
        assert!(options(&sibling).open().is_err());
        assert!(check(&base, false).unwrap().findings.is_empty());
    }
}

/// A fixed disk keeps its space: nothing can be discarded, and zeros are stored.
#[test]
fn a_fixed_disk_keeps_its_space() {
    use std::os::unix::fs::MetadataExt;
    let (folder, path) = image("a.vhd");
    create_fixed(&path, 8 << 20).unwrap();
    let outer = folder.path().join("outer.raw");
    std::fs::copy(&path, &outer).unwrap();
    // The outer disk is larger, so its last sector is not the footer.
    std::fs::File::options().write(true).open(&outer).unwrap().set_len(9 << 20).unwrap();
    let inside = folder.path().join("outer.raw//");
    for (file, path) in [(&path, &path), (&outer, &inside)] {
        let disk = OpenOptions::new(path).open().unwrap();
        assert_eq!(disk.info().discard, None);
        let mut driver = Driver::new(&*disk, EngineKind::IoUring, 4);
        driver.write(1 << 20, &[7; 1 << 20]);
        assert_eq!(driver.run(Op::Discard, 0, 8 << 20, &[]), Err(IoError::Unsupported));
        assert_eq!(driver.run(Op::WriteZeroes { may_unmap: true }, 0, 8 << 20, &[]), Ok(()));
        assert_eq!(driver.run(Op::Flush, 0, 0, &[]), Ok(()));
        assert_eq!(driver.read(1 << 20, 4096), [0; 4096]);
        drop(driver);
        drop(disk);
        let blocks = std::fs::metadata(file).unwrap().blocks();
        assert!(blocks * 512 >= 8 << 20, "{}: {blocks} blocks", file.display());
    }
}
