//! Interaction with the host: flushes that reach the medium, a kernel that refuses io_uring, storage with sectors of 4,096
//! bytes, a file system without fallocate.
#![allow(unsafe_code, reason = "system calls that no crate offers: cachestat and seccomp")]

mod common;

use std::os::fd::AsRawFd;
use std::path::Path;

use common::{image, loop_device, mount, mount_ext4};
use paradisk_disk_formats::conformance::{Driver, Guest};
use paradisk_disk_formats::vhd::{create_fixed, create_fixed_watched};
use paradisk_disk_formats::{
    Disk, EngineKind, FileDisk, FormatName, IoError, Op, OpenOptions, Raw, SectorSize, Sectors,
};
use rustix::io::Errno;

/// cachestat(2), Linux 6.5: number of pages of a file that are dirty or under writeback; `None` if the kernel lacks the call.
fn unwritten_pages(path: &Path) -> Option<u64> {
    let file = std::fs::File::open(path).expect("a file");
    let range = [0u64; 2];
    let mut counts = [0u64; 5];
    // SAFETY: the call reads two u64 and writes five.
    let done = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    (done == 0).then(|| counts[1] + counts[2])
}

#[test]
fn flush_and_force_unit_access_reach_the_medium() {
    let (_folder, path) = image("disk.raw");
    Raw::create(&path, 8 << 20).expect("an image");
    for engine in [EngineKind::IoUring, EngineKind::Threads] {
        let disk = OpenOptions::new(&path).open().expect("a disk");
        let mut driver = Driver::new(&*disk, engine, 4);
        driver.write(0, &[1; 65536]);
        match unwritten_pages(&path) {
            None => {
                return println!(
                    "SKIP: flush_and_force_unit_access_reach_the_medium: the kernel has no cachestat"
                );
            }
            Some(0) => {
                return println!(
                    "SKIP: flush_and_force_unit_access_reach_the_medium: the temporary folder's file system keeps no dirty pages"
                );
            }
            Some(_) => {}
        }
        driver.run(Op::Flush, 0, 0, &[]).expect("a good flush");
        assert_eq!(unwritten_pages(&path), Some(0), "dirty pages after a flush");
        let guest = Guest::new(8192);
        driver.run(Op::Write { fua: true }, 1 << 20, 8192, &[guest.buf(0, 8192)]).expect("a good write");
        assert_eq!(unwritten_pages(&path), Some(0), "dirty pages after a write with force unit access");
    }
}

/// Make the system call fail with EPERM on this thread from now on.
fn forbid(call: libc::c_long) {
    let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the first call takes integers; the second reads the program and keeps a copy.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// Run this with a disk on a thread of its own, which forbids system calls.
fn on_thread(work: impl FnOnce(&dyn Disk) + Send) {
    let (_folder, path) = image("disk.raw");
    Raw::create(&path, 8 << 20).expect("an image");
    let disk = OpenOptions::new(&path).open().expect("a disk");
    std::thread::scope(|scope| drop(scope.spawn(|| work(&*disk))));
}

#[test]
fn a_kernel_that_refuses_io_uring_gets_threads() {
    on_thread(|disk| {
        forbid(libc::SYS_io_uring_setup);
        let mut driver = Driver::new(disk, EngineKind::IoUring, 4);
        assert_eq!(driver.queue.engine(), "threads");
        driver.write(4096, &[5; 4096]);
        assert_eq!(driver.read(4096, 4096), [5; 4096]);
    });
}

/// A sandbox forbids io_uring_enter after the queue was created: requests fail, and none hangs.
#[test]
fn a_ring_that_can_no_longer_be_entered_fails_its_requests() {
    on_thread(|disk| {
        let mut driver = Driver::new(disk, EngineKind::IoUring, 4);
        driver.write(0, &[1; 4096]);
        forbid(libc::SYS_io_uring_enter);
        let guest = Guest::new(4096);
        let mut read = || driver.run(Op::Read, 0, 4096, &[guest.buf(0, 4096)]);
        assert_eq!(read(), Err(IoError::Os(Errno::PERM)));
        assert!(matches!(read(), Err(IoError::Os(_))), "and the next");
    });
}

/// A file system on a device with sectors of 4,096 bytes.
#[test]
fn direct_io_of_4096_bytes() {
    let device = match loop_device(64 << 20, 4096) {
        Ok(device) => device,
        Err(reason) => return println!("SKIP: direct_io_of_4096_bytes: {reason}"),
    };
    match mount_ext4(&device) {
        Some(mounted) => on_large_sectors(mounted.path()),
        None => println!(
            "SKIP: direct_io_of_4096_bytes: no file system can be mounted here from /dev/loop-control"
        ),
    }
}

fn on_large_sectors(point: &Path) {
    let path = point.join("disk.raw");
    Raw::create(&path, 8 << 20).expect("an image");
    let open = |path: &Path, logical| {
        let sectors = Sectors { logical, physical: None };
        let format = FormatName::claimed(path).or(Some(FormatName::Raw));
        let options = OpenOptions { format, direct: Some(true), sectors, ..OpenOptions::new(path) };
        options.open_format().expect("a disk")
    };
    // Sectors of 512 bytes unless others are wanted.
    for (logical, expected) in [(None, Ok(())), (Some(SectorSize::B4096), Err(IoError::Misaligned))] {
        let disk = FileDisk::new(open(&path, logical));
        assert_eq!(disk.info().logical_sector, logical.unwrap_or(SectorSize::B512));
        for engine in [EngineKind::IoUring, EngineKind::Threads] {
            let mut driver = Driver::new(&disk, engine, 4);
            driver.write(4096, &[7; 12288]);
            assert_eq!(driver.read(4096, 12288), [7; 12288]);
            let guest = Guest::new(512);
            assert_eq!(driver.run(Op::Read, 512, 512, &[guest.buf(0, 512)]), expected);
        }
    }
    assert_eq!(open(&path, None).remark(), None);
    // What does not consist of units of 4,096 bytes goes through the page cache, and says so.
    let (odd, vhd) = (point.join("odd.raw"), point.join("disk.vhd"));
    Raw::create(&odd, (8 << 20) + 512).expect("an image");
    create_fixed(&vhd, 8 << 20).expect("an image");
    for path in [&odd, &vhd] {
        let disk = open(path, None);
        let remark = disk.remark().expect("a remark");
        assert!(remark.contains("does not consist of units of 4096 bytes"), "{remark}");
        assert_eq!((disk.info().logical_sector, disk.info().buffer_alignment), (SectorSize::B512, 1));
        let mut driver = Driver::new(&FileDisk::new(disk), EngineKind::IoUring, 1);
        driver.write(512, &[7; 1024]);
        assert_eq!(driver.read(512, 1024), [7; 1024]);
    }
}

/// ext2 has no fallocate: the zeros of a fixed disk are written, at least as many as are reported. After a cancellation the
/// file is removed.
#[test]
fn a_fixed_disk_has_its_space_where_the_file_system_cannot_reserve_it() {
    use std::os::unix::fs::MetadataExt;
    const SIZE: u64 = 80 << 20;
    let mounted = loop_device(200 << 20, 512).and_then(|device| {
        Ok((mount(&device, &["mkfs.ext2", "-q", "-F"]).ok_or("it cannot be mounted")?, device))
    });
    let (mounted, _device) = match mounted {
        Ok(mounted) => mounted,
        Err(reason) => {
            return println!(
                "SKIP: a_fixed_disk_has_its_space_where_the_file_system_cannot_reserve_it (ext2): {reason}"
            );
        }
    };
    let path = mounted.path().join("a.vhd");
    let mut reported = Vec::new();
    let stopped = create_fixed_watched(&path, SIZE, &mut |done, _| {
        reported.push((done, std::fs::metadata(&path).expect("the file so far").blocks() * 512));
        done == 0
    });
    assert!(stopped.is_err() && !path.exists());
    assert!(reported.last().is_some_and(|(done, _)| (1..SIZE).contains(done)), "{reported:?}");
    assert!(reported.iter().all(|(done, stored)| stored >= done), "no more than is there: {reported:?}");
    create_fixed(&path, SIZE).expect("an image");
    let stat = std::fs::metadata(&path).expect("its attributes");
    assert!(stat.len() == SIZE + 512 && stat.blocks() * 512 >= SIZE, "{} blocks", stat.blocks());
}
