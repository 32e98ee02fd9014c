//! Memory that is mapped, unmapped, read-only, absent or truncated.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use guest_driver::driver::Driver;
use guest_driver::workload::Fault;
use guest_driver::{Adapter, InterruptMode, Mode, Platform, Pvscsi, Workload, adapter, pvscsi};
use paradisk_devices::AdapterKind;
use paradisk_disk_formats::{Layered, RamDisk, SectorSize};
use paradisk_serve::vfio_user::spec::{DMA_READ, DMA_WRITE, UNMAP_ALL, UNMAP_DIRTY_BITMAP};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::client::Client;
use crate::drivers::{DISK, JOB, clean, options, run, serve, start};
use crate::vmm::{Habits, MEMORY, Served, Vmm};

const BOTH: u32 = DMA_READ | DMA_WRITE;
const PAGE: u64 = 4096;

fn memfd(size: u64) -> OwnedFd {
    let memfd = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, size).unwrap();
    memfd
}

#[test]
fn maps_that_make_no_sense_are_refused() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let memfd = memfd(16 * PAGE);
    let fd = Some(memfd.as_fd());
    for (address, size, offset, expected) in [
        (0, 0, 0, Errno::INVAL),
        (1, PAGE, 0, Errno::INVAL),
        (0, PAGE - 1, 0, Errno::INVAL),
        (0, PAGE, 1, Errno::INVAL),
        (0, 17 * PAGE, 0, Errno::INVAL),
        (0, PAGE, 16 * PAGE, Errno::INVAL),
        (0, 2 * PAGE, u64::MAX - PAGE + 1, Errno::INVAL),
        (u64::MAX - PAGE + 1, 2 * PAGE, 0, Errno::INVAL),
        (0, u64::MAX - PAGE + 1, 0, Errno::INVAL),
    ] {
        assert_eq!(client.map(address, size, offset, BOTH, fd), Err(expected), "{address:#x}+{size:#x}");
    }
    client.map(4 * PAGE, 4 * PAGE, 0, BOTH, fd).unwrap();
    for (address, size) in [(0, 5 * PAGE), (4 * PAGE, PAGE), (7 * PAGE, PAGE), (7 * PAGE, 9 * PAGE)] {
        assert_eq!(client.map(address, size, 0, BOTH, fd), Err(Errno::EXIST), "{address:#x}+{size:#x}");
    }
    client.map(0, 4 * PAGE, 0, BOTH, fd).unwrap();
    client.map(8 * PAGE, PAGE, 0, BOTH, None).unwrap();
    // Not a file.
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(client.map(64 * PAGE, PAGE, 0, BOTH, Some(event.as_fd())), Err(Errno::INVAL));
    // A file that is open read-only, mapped as writable.
    let reader = std::fs::File::open(format!("/proc/self/fd/{}", memfd.as_raw_fd())).unwrap();
    assert_eq!(client.map(64 * PAGE, PAGE, 0, BOTH, Some(reader.as_fd())), Err(Errno::ACCESS));
    client.map(64 * PAGE, PAGE, 0, DMA_READ, Some(reader.as_fd())).unwrap();

    assert_eq!(client.unmap(0, PAGE, 0), Err(Errno::INVAL), "a part");
    assert_eq!(client.unmap(PAGE, 7 * PAGE, 0), Err(Errno::INVAL), "a part and a whole");
    assert_eq!(client.unmap(32 * PAGE, PAGE, 0), Err(Errno::NOENT));
    assert_eq!(client.unmap(0, 0, 0), Err(Errno::INVAL));
    assert_eq!(client.unmap(PAGE, u64::MAX, 0), Err(Errno::INVAL));
    assert_eq!(client.unmap(0, 4 * PAGE, UNMAP_DIRTY_BITMAP), Err(Errno::NOTSUP));
    client.unmap(0, 4 * PAGE, 0).unwrap();
    assert_eq!(client.unmap(0, 4 * PAGE, 0), Err(Errno::NOENT));
    client.unmap(0, 0, UNMAP_ALL).unwrap();
    client.map(0, 16 * PAGE, 0, BOTH, fd).unwrap();
}

#[test]
fn maps_are_bounded() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let mut maps = 0;
    let refused = loop {
        match client.map(2 * PAGE * maps, PAGE, 0, BOTH, None) {
            Ok(()) => maps += 1,
            Err(errno) => break errno,
        }
        assert!(maps <= 65536, "no bound");
    };
    assert_eq!(refused, Errno::NOSPC);
    client.unmap(0, PAGE, 0).unwrap();
    client.map(0, PAGE, 0, BOTH, None).unwrap();
}

/// The length of a sparse file costs the client nothing, and the server the address space in which it allocates memory.
#[test]
fn sparse_maps_do_not_fill_the_address_space() {
    const SIZE: u64 = 16 << 40;
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let memfd = memfd(SIZE);
    let mut map = |index| client.map(SIZE * index, SIZE, 0, BOTH, Some(memfd.as_fd()));
    // Other tests of this process map little.
    let mapped = (0..16).map(&mut map).take_while(Result::is_ok).count();
    assert!((3..=4).contains(&mapped), "{mapped}");
    assert_eq!(map(16), Err(Errno::NOMEM));
    client.unmap(0, SIZE, 0).unwrap();
    client.map(16 * SIZE, SIZE, 0, BOTH, Some(memfd.as_fd())).unwrap();
}

/// The memory of a machine below 1 MiB has holes, which divide a huge page. A part is mapped and unmapped with the whole page.
#[test]
fn parts_of_huge_pages_are_mapped_and_unmapped() {
    const HUGE: u64 = 2 << 20;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let memfd = match memfd_create("parts-of-huge-pages", flags) {
        Ok(memfd) => memfd,
        Err(errno) => {
            return println!("SKIP: parts_of_huge_pages_are_mapped_and_unmapped: no huge pages: {errno}");
        }
    };
    ftruncate(&memfd, 2 * HUGE).unwrap();
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("parts-of-huge-pages")).count()
    };
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    for _ in 0..3 {
        client.map(0, 0xa_0000, 0, BOTH, Some(memfd.as_fd())).unwrap();
        client.map(0xc_0000, HUGE, 0xc_0000, BOTH, Some(memfd.as_fd())).unwrap();
        assert!(maps() > 0);
        let beyond = client.map(1 << 32, HUGE, HUGE + PAGE, BOTH, Some(memfd.as_fd()));
        assert_eq!(beyond, Err(Errno::INVAL));
        client.unmap(0, 0, UNMAP_ALL).unwrap();
        assert_eq!(maps(), 0);
    }
}

/// While firmware runs, a VMM may unmap all memory and map it again, with requests in flight.
#[test]
fn requests_in_flight_survive_that_memory_goes_and_comes_back() {
    for ioeventfds in [false, true] {
        let ram = Arc::new(RamDisk::new(DISK, SectorSize::B512).unwrap());
        let disk = Arc::new(Layered::new(ram).delayed(Duration::from_millis(5)));
        let served = Served::new(AdapterKind::Pvscsi, disk);
        let mut vmm = Vmm::new(&served, Habits { ioeventfds, keeps_table: true });
        let mut driver = Pvscsi::start(&mut vmm, pvscsi::Options::default()).unwrap();
        let memory = vmm.dma(32 * 4096, 4096).unwrap();
        for tag in 0..32 {
            let data = adapter::Buffer::contiguous(memory.address() + u64::from(tag) * PAGE, 4096);
            memory.write(tag as usize * 4096, 0xa5a5_a5a5u32);
            let request = adapter::Request {
                tag,
                target: 0,
                op: adapter::Op::Read,
                lba: 8 * u64::from(tag),
                blocks: 8,
                data,
            };
            assert!(driver.submit(&mut vmm, &request));
        }
        driver.kick(&mut vmm);
        // Long enough for the doorbell, too short for the disk.
        std::thread::sleep(Duration::from_millis(1));
        let fd = vmm.memfd.try_clone().unwrap();
        vmm.client.unmap(0, MEMORY, 0).unwrap();
        vmm.client.map(0, MEMORY, 0, BOTH, Some(fd.as_fd())).unwrap();
        let mut ended = [false; 32];
        while ended.contains(&false) {
            let seen = vmm.interrupts();
            while let Some(completion) = driver.poll(&mut vmm) {
                let tag = completion.tag as usize;
                assert!(!std::mem::replace(&mut ended[tag], true), "tag {tag} twice");
                if completion.status == 0 {
                    assert_eq!(memory.read::<u32>(tag * 4096), 0, "read into memory that came back");
                }
            }
            if ended.contains(&false) {
                vmm.wait_interrupt(seen);
            }
        }
        let mut driver = Driver::Pvscsi(driver);
        for mode in [Mode::Fill, Mode::Check] {
            clean(&mut driver, &mut vmm, &Workload { mode, ..JOB });
        }
    }
}

#[test]
fn without_memory_there_is_no_access_and_with_memory_again_there_is() {
    let served = serve(AdapterKind::VirtioBlk);
    let mut vmm = Vmm::new(&served, Habits::default());
    let kind = options(AdapterKind::VirtioBlk, InterruptMode::MsiX);
    let mut driver = Driver::start(&mut vmm, kind).unwrap();
    clean(&mut driver, &mut vmm, &Workload { mode: Mode::Fill, ..JOB });
    let fd = vmm.memfd.try_clone().unwrap();
    vmm.client.unmap(0, MEMORY, 0).unwrap();
    // A notification without memory: the device cannot read its rings.
    vmm.write(0, 0x3000, 2, 0);
    vmm.client.map(0, MEMORY, 0, BOTH, Some(fd.as_fd())).unwrap();
    let mut driver = Driver::start(&mut vmm, kind).unwrap();
    clean(&mut driver, &mut vmm, &Workload { mode: Mode::Check, ..JOB });
}

/// Reads of the disk into memory that the device may only read fail, and nothing else happens.
#[test]
fn memory_that_may_only_be_read_is_not_written() {
    for kind in [AdapterKind::Pvscsi, AdapterKind::VirtioBlk] {
        let served = serve(kind);
        let mut vmm = Vmm::new(&served, Habits::default());
        let mut driver = start(kind, &mut vmm);
        clean(&mut driver, &mut vmm, &Workload { mode: Mode::Fill, ..JOB });
        // The device may only read the second half. After `skip_to`, the generator's buffers are there.
        let half = MEMORY / 2;
        let fd = vmm.memfd.try_clone().unwrap();
        vmm.client.unmap(0, MEMORY, 0).unwrap();
        vmm.client.map(0, half, 0, BOTH, Some(fd.as_fd())).unwrap();
        vmm.client.map(half, half, half, DMA_READ, Some(fd.as_fd())).unwrap();
        let mut driver = start(kind, &mut vmm);
        vmm.skip_to(half);
        let job = Workload { read_percent: 0, ios: 64, ..JOB };
        clean(&mut driver, &mut vmm, &job);
        let report = run(&mut driver, &mut vmm, &Workload { read_percent: 100, ..job });
        assert_eq!(report.fault.kind, Fault::STATUS, "{kind}");
    }
}

/// The client truncates the file of its memory: its guest has lost the memory, and the server continues.
#[test]
fn memory_that_shrinks_ends_nothing() {
    for kind in [AdapterKind::Pvscsi, AdapterKind::VirtioBlk, AdapterKind::Lsi] {
        let served = serve(kind);
        let mut vmm = Vmm::new(&served, Habits::default());
        let mut driver = start(kind, &mut vmm);
        clean(&mut driver, &mut vmm, &Workload { mode: Mode::Fill, ..JOB });
        ftruncate(&vmm.memfd, 0).unwrap();
        // Each register write may make the device read its rings. The test itself accesses no guest memory any more.
        for offset in (0..0x4000).step_by(4) {
            let size = vmm.client.region_info(0).unwrap().size.get().max(4);
            let bar = if kind == AdapterKind::Lsi { 1 } else { 0 };
            let _ = vmm.client.write(bar, offset % size, &0u32.to_le_bytes(), true);
        }
        drop(vmm.client.read(7, 0, 4).unwrap());
        drop(vmm);
        let mut vmm = Vmm::new(&served, Habits::default());
        let mut driver = start(kind, &mut vmm);
        clean(&mut driver, &mut vmm, &Workload { mode: Mode::Fill, ..JOB });
    }
}
