//! Memory is unmapped while requests are in flight: those that use it are waited for, and no others.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_driver::adapter::{Buffer, Op, Request};
use guest_driver::driver::Driver;
use guest_driver::{Adapter, Platform};
use paradisk_devices::AdapterKind;
use paradisk_disk_formats::{Disk, Layered, RamDisk, SectorSize};
use paradisk_serve::vfio_user::spec::{DMA_READ, DMA_WRITE, DmaUnmap, command};
use zerocopy::IntoBytes;

use crate::drivers::{DISK, KINDS, start};
use crate::gate::{Gate, GatedDisk};
use crate::vmm::{Habits, MEMORY, Served, Vmm};

const BOTH: u32 = DMA_READ | DMA_WRITE;
const HALF: u64 = MEMORY / 2;
const BLOCK: u64 = 4096;
const GOOD: u32 = 0;
const CHECK_CONDITION: u32 = 2;

/// A machine whose memory is two maps, with the driver's rings in the first.
struct Rig {
    driver: Driver,
    vmm: Vmm,
    served: Served,
}

impl Rig {
    fn new(kind: AdapterKind, delay: Duration) -> Self {
        Self::on_threads(kind, 0, delay)
    }

    fn on_threads(kind: AdapterKind, threads: u16, delay: Duration) -> Self {
        let ram = Arc::new(RamDisk::new(DISK, SectorSize::B512).unwrap());
        Self::with_disk(kind, threads, Arc::new(Layered::new(ram).delayed(delay)))
    }

    /// With a disk that completes nothing until its gate is opened.
    fn gated(kind: AdapterKind) -> (Self, Gate) {
        let gate = Gate::default();
        gate.close();
        (Self::with_disk(kind, 0, Arc::new(GatedDisk::new(DISK, gate.clone()))), gate)
    }

    fn with_disk(kind: AdapterKind, threads: u16, disk: Arc<dyn Disk>) -> Self {
        let served = Served::on_threads(kind, threads, disk);
        let mut vmm = Vmm::new(&served, Habits { ioeventfds: true, keeps_table: true });
        let fd = vmm.memfd.try_clone().unwrap();
        vmm.client.unmap(0, MEMORY, 0).unwrap();
        vmm.client.map(0, HALF, 0, BOTH, Some(fd.as_fd())).unwrap();
        vmm.client.map(HALF, HALF, HALF, BOTH, Some(fd.as_fd())).unwrap();
        let driver = start(kind, &mut vmm);
        let mut rig = Self { driver, vmm, served };
        if kind != AdapterKind::VirtioBlk {
            // The first request ends with the unit attention, and does not use the disk.
            rig.put_in(0..1);
            rig.take(1, CHECK_CONDITION);
        }
        rig
    }

    /// Submit reads of one block each, with data in the next free DMA memory, and wait until the device has taken them.
    fn put_in(&mut self, tags: std::ops::Range<u32>) {
        let Self { driver, vmm, .. } = self;
        let all = self.served.requests() + u64::from(tags.end - tags.start);
        match driver {
            Driver::Pvscsi(driver) => put_in(driver, vmm, tags),
            Driver::Lsi(driver) => put_in(driver, vmm, tags),
            Driver::BusLogic(driver) => put_in(driver, vmm, tags),
            Driver::VirtioBlk(driver) => put_in(driver, vmm, tags),
            Driver::VirtioScsi(driver) => put_in(driver, vmm, tags),
            other => panic!("not among the adapters of this test: {other:?}"),
        }
        self.until_taken(all);
    }

    /// Wait until the device has taken so many requests in all.
    fn until_taken(&self, all: u64) {
        let begin = Instant::now();
        while self.served.requests() < all {
            assert!(begin.elapsed() < Duration::from_secs(60), "the device takes no requests");
            std::thread::yield_now();
        }
    }

    /// Wait until `count` requests have completed, all of them with this status.
    fn take(&mut self, count: usize, status: u32) {
        let Self { driver, vmm, .. } = self;
        match driver {
            Driver::Pvscsi(driver) => take(driver, vmm, count, status),
            Driver::Lsi(driver) => take(driver, vmm, count, status),
            Driver::BusLogic(driver) => take(driver, vmm, count, status),
            Driver::VirtioBlk(driver) => take(driver, vmm, count, status),
            Driver::VirtioScsi(driver) => take(driver, vmm, count, status),
            other => panic!("not among the adapters of this test: {other:?}"),
        }
    }
}

fn put_in(driver: &mut impl Adapter, vmm: &mut Vmm, tags: std::ops::Range<u32>) {
    for tag in tags {
        let memory = vmm.dma(BLOCK as usize, BLOCK as usize).unwrap();
        let data = Buffer::contiguous(memory.address(), BLOCK as u32);
        let request = Request { tag, target: 0, op: Op::Read, lba: 8 * u64::from(tag), blocks: 8, data };
        assert!(driver.submit(vmm, &request));
    }
    driver.kick(vmm);
}

fn take(driver: &mut impl Adapter, vmm: &mut Vmm, count: usize, status: u32) {
    let (begin, mut ended) = (Instant::now(), 0);
    while ended < count {
        while let Some(completion) = driver.poll(vmm) {
            assert_eq!(completion.status, status);
            ended += 1;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{ended} of {count}");
        std::thread::yield_now();
    }
}

#[test]
fn requests_that_use_other_memory_are_not_waited_for() {
    for kind in KINDS {
        let (mut rig, gate) = Rig::gated(kind);
        rig.put_in(0..8);
        rig.vmm.client.unmap(HALF, HALF, 0).unwrap();
        // The range can be mapped again while those requests are in flight.
        let fd = rig.vmm.memfd.try_clone().unwrap();
        rig.vmm.client.map(HALF, HALF, HALF, BOTH, Some(fd.as_fd())).unwrap();
        gate.open();
        rig.take(8, GOOD);
        rig.put_in(8..16);
        rig.take(8, GOOD);
    }
}

#[test]
fn requests_that_use_the_memory_are_waited_for() {
    const DELAY: Duration = Duration::from_millis(600);
    for kind in KINDS {
        let mut rig = Rig::new(kind, DELAY);
        rig.vmm.skip_to(HALF);
        let begin = Instant::now();
        rig.put_in(0..8);
        rig.vmm.client.unmap(HALF, HALF, 0).unwrap();
        assert!(begin.elapsed() >= DELAY, "{kind}: {:?}", begin.elapsed());
        // Their completions were posted before the unmap was answered.
        rig.take(8, GOOD);
    }
}

/// The rings are in memory that is unmapped: all completions are posted before that, wherever the data are.
#[test]
fn completions_come_before_their_rings_go() {
    for kind in [AdapterKind::VirtioBlk, AdapterKind::VirtioScsi] {
        let mut rig = Rig::new(kind, Duration::from_millis(600));
        rig.vmm.skip_to(HALF);
        rig.put_in(0..8);
        rig.vmm.client.unmap(0, HALF, 0).unwrap();
        rig.take(8, GOOD);
    }
}

/// While an unmap waits, the guest's other requests are taken and served, and what follows on the socket is answered later.
#[test]
fn others_are_served_while_an_unmap_waits() {
    for kind in [AdapterKind::Pvscsi, AdapterKind::VirtioBlk, AdapterKind::VirtioScsi] {
        let (mut rig, gate) = Rig::gated(kind);
        let before = rig.vmm.dma(BLOCK as usize, BLOCK as usize).unwrap().address();
        rig.vmm.skip_to(HALF);
        rig.put_in(0..4);
        let unmap = DmaUnmap { argsz: 24.into(), flags: 0.into(), address: HALF.into(), size: HALF.into() };
        rig.vmm.client.send(command::DMA_UNMAP, 0, unmap.as_bytes(), &[]);
        // The server waits for the first requests by then, or will a moment later: both are right.
        std::thread::sleep(Duration::from_millis(100));
        let all = rig.served.requests() + 4;
        // Their data are not in the memory that is unmapped.
        let requests = (4..8).map(|tag| (tag, before));
        let Rig { driver, vmm, .. } = &mut rig;
        match driver {
            Driver::Pvscsi(driver) => put_at(driver, vmm, requests),
            Driver::VirtioBlk(driver) => put_at(driver, vmm, requests),
            Driver::VirtioScsi(driver) => put_at(driver, vmm, requests),
            _ => unreachable!(),
        }
        // They are taken while the others do not complete.
        rig.until_taken(all);
        gate.open();
        rig.take(8, GOOD);
        let (reply, _) = rig.vmm.client.receive(command::DMA_UNMAP).unwrap();
        assert_eq!(reply, unmap.as_bytes());
        assert_eq!(rig.vmm.client.read(7, 0, 4).unwrap().len(), 4);
    }
}

fn put_at(driver: &mut impl Adapter, vmm: &mut Vmm, requests: impl Iterator<Item = (u32, u64)>) {
    for (tag, address) in requests {
        let data = Buffer::contiguous(address, BLOCK as u32);
        let request = Request { tag, target: 0, op: Op::Read, lba: 8 * u64::from(tag), blocks: 8, data };
        assert!(driver.submit(vmm, &request));
    }
    driver.kick(vmm);
}

/// A client disconnects, or the server is stopped, while an unmap waits.
#[test]
fn an_unmap_that_waits_keeps_nobody_from_leaving() {
    for stop in [false, true] {
        let mut rig = Rig::new(AdapterKind::Pvscsi, Duration::from_secs(1));
        rig.vmm.skip_to(HALF);
        rig.put_in(0..8);
        let unmap = DmaUnmap { argsz: 24.into(), flags: 0.into(), address: HALF.into(), size: HALF.into() };
        rig.vmm.client.send(command::DMA_UNMAP, 0, unmap.as_bytes(), &[]);
        std::thread::sleep(Duration::from_millis(100));
        let Rig { vmm, served, .. } = rig;
        if stop {
            served.stop();
        } else {
            drop(vmm);
            drop(Vmm::new(&served, Habits::default()));
        }
    }
}

/// A device with threads of its own has all its requests waited for, and continues.
#[test]
fn all_requests_of_a_device_with_threads_are_waited_for() {
    const DELAY: Duration = Duration::from_millis(600);
    let mut rig = Rig::on_threads(AdapterKind::VirtioBlk, 1, DELAY);
    let begin = Instant::now();
    rig.put_in(0..8);
    rig.vmm.client.unmap(HALF, HALF, 0).unwrap();
    assert!(begin.elapsed() >= DELAY, "{:?}", begin.elapsed());
    rig.take(8, GOOD);
    rig.put_in(8..16);
    rig.take(8, GOOD);
}
