//! Clients that disconnect, or truncate their memory, while requests are in flight.

use std::sync::Arc;
use std::time::Duration;

use guest_driver::adapter::{Buffer, Op, Request};
use guest_driver::driver::Driver;
use guest_driver::{Adapter, Mode, Platform, Workload};
use paradisk_devices::AdapterKind;
use paradisk_disk_formats::{Layered, OpenOptions, Raw};
use rustix::fs::ftruncate;

use crate::drivers::{DISK, JOB, KINDS, clean, start};
use crate::vmm::{Habits, MEMORY, Served, Vmm};

const DEPTH: u32 = 32;

/// Submit reads and writes, and notify the device of them.
fn put_in(driver: &mut impl Adapter, vmm: &mut Vmm) {
    let memory = vmm.dma(DEPTH as usize * 16384, 4096).unwrap();
    for tag in 0..DEPTH {
        let data = Buffer::contiguous(memory.address() + u64::from(tag) * 16384, 16384);
        let op = if tag % 2 == 0 { Op::Read } else { Op::Write };
        let request = Request { tag, target: 0, op, lba: 32 * u64::from(tag), blocks: 32, data };
        assert!(driver.submit(vmm, &request));
    }
    driver.kick(vmm);
}

fn busy(driver: &mut Driver, vmm: &mut Vmm) {
    match driver {
        Driver::Pvscsi(driver) => put_in(driver, vmm),
        Driver::Lsi(driver) => put_in(driver, vmm),
        Driver::BusLogic(driver) => put_in(driver, vmm),
        Driver::VirtioBlk(driver) => put_in(driver, vmm),
        Driver::VirtioScsi(driver) => put_in(driver, vmm),
        other => panic!("not among the adapters of this test: {other:?}"),
    }
}

/// A server of a raw file, which io_uring reads and writes where the kernel has it. `delay` is added to each completion.
fn serve(kind: AdapterKind, delay: Duration) -> (Served, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    Raw::create(&path, DISK).unwrap();
    let disk = OpenOptions::new(&path).open().unwrap();
    let served =
        Served::new(kind, if delay.is_zero() { disk } else { Arc::new(Layered::new(disk).delayed(delay)) });
    (served, directory)
}

fn still_serves(kind: AdapterKind, served: Served) {
    let mut vmm = Vmm::new(&served, Habits::default());
    let mut driver = start(kind, &mut vmm);
    for mode in [Mode::Fill, Mode::Check] {
        clean(&mut driver, &mut vmm, &Workload { mode, ..JOB });
    }
    drop(vmm);
    let (_, stats) = served.stop();
    assert!(stats.requests >= 2 * DISK / 4096, "{stats:?}");
}

#[test]
fn clients_vanish_with_requests_in_flight() {
    for kind in KINDS {
        let (served, _directory) = serve(kind, Duration::from_millis(10));
        for round in 0..6 {
            let habits = Habits { ioeventfds: round % 2 == 0, keeps_table: true };
            let mut vmm = Vmm::new(&served, habits);
            let mut driver = start(kind, &mut vmm);
            busy(&mut driver, &mut vmm);
            // Before, while and after the requests are in flight.
            std::thread::sleep(Duration::from_millis(3 * round));
        }
        still_serves(kind, served);
    }
}

/// The client itself must not access its memory after it has truncated the file.
#[test]
fn memory_shrinks_under_requests_in_flight() {
    for kind in KINDS {
        for delay in [Duration::ZERO, Duration::from_millis(5)] {
            let (served, _directory) = serve(kind, delay);
            for round in 0..8u32 {
                let mut vmm = Vmm::new(&served, Habits { ioeventfds: true, keeps_table: true });
                let mut driver = start(kind, &mut vmm);
                busy(&mut driver, &mut vmm);
                std::thread::sleep(Duration::from_micros(100 * u64::from(round)));
                // All of it, or the second half: the rings are in the first.
                ftruncate(&vmm.memfd, u64::from(round % 2) * MEMORY / 2).unwrap();
                if round % 4 < 2 {
                    // The requests in flight complete, with any status, before this is answered.
                    vmm.client.unmap(0, MEMORY, 0).unwrap();
                    assert_eq!(vmm.client.read(7, 4, 1).unwrap()[0] & 4, 4, "{kind}");
                }
            }
            still_serves(kind, served);
        }
    }
}
