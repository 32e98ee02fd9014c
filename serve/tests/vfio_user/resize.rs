//! Disks that grow: each adapter reports it in its own way, and the guest finds the new capacity.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_driver::{Mode, Platform, Workload};
use paradisk_devices::AdapterKind;
use paradisk_disk_formats::{OpenOptions, Raw};

use crate::drivers::{DISK, clean, start};
use crate::vmm::{Habits, Served, Vmm};

/// Registers of virtio's common configuration: the vector for configuration changes, and the generation of the configuration.
const CONFIG_MSIX_VECTOR: u64 = 16;
const CONFIG_GENERATION: u64 = 21;

const JOB: Workload = Workload { mode: Mode::Fill, ..crate::drivers::JOB };

/// Failed requests of a guest. `grows`: its disk grows meanwhile.
fn errors(kind: AdapterKind, grows: bool) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    Raw::create(&path, DISK).unwrap();
    let disk = OpenOptions::new(&path).open().unwrap();
    let served = Served::new(kind, Arc::clone(&disk));
    let mut vmm = Vmm::new(&served, Habits::default());
    let mut driver = start(kind, &mut vmm);
    assert_eq!(clean(&mut driver, &mut vmm, &JOB).capacity, DISK);
    if grows {
        disk.grow(2 * DISK).unwrap();
        if kind == AdapterKind::VirtioBlk {
            vmm.write(0, CONFIG_MSIX_VECTOR, 2, 0);
        }
        let seen = vmm.interrupts();
        served.handle.refresh();
        // The server refreshes the disk before it receives the message after this one. Otherwise a device that polls its ring could
        // take requests before.
        let _ = vmm.config_read(0);
        if kind == AdapterKind::VirtioBlk {
            let start = Instant::now();
            while vmm.interrupts() == seen {
                assert!(start.elapsed() < Duration::from_secs(60), "no interrupt");
                vmm.wait_interrupt(seen);
            }
            assert_eq!(vmm.read(0, CONFIG_GENERATION, 1), 1);
        }
    }
    let capacity = if grows { 2 * DISK } else { DISK };
    for mode in [Mode::Fill, Mode::Check] {
        assert_eq!(clean(&mut driver, &mut vmm, &Workload { mode, ..JOB }).capacity, capacity, "{kind}");
    }
    drop(vmm);
    let (_, stats) = served.stop();
    stats.errors
}

#[test]
fn guests_are_told() {
    use AdapterKind::{Lsi, LsiSas, Pvscsi, VirtioBlk, VirtioScsi};
    for kind in [Pvscsi, Lsi, LsiSas, VirtioBlk, VirtioScsi] {
        let attention = u64::from(kind != VirtioBlk);
        assert_eq!(errors(kind, true), errors(kind, false) + attention, "{kind}");
    }
}
