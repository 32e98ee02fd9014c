//! A disk whose I/O does not complete, and a guest that resets the device meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guest_driver::Platform;
use paradisk_devices::AdapterKind;
use paradisk_devices::virtio::spec::*;
use vm_memory::{Bytes, GuestAddress};

use crate::gate::{Gate, GatedDisk};
use crate::vmm::{Habits, Served, Vmm};

const NOTIFY: u64 = 0x3000;
const DESCRIPTORS: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x1_1000;
const USED: u64 = 0x1_2000;
const HEADER: u64 = 0x1_3000;
const DATA: u64 = 0x1_4000;
const STATUS: u64 = 0x1_5000;

fn write(vmm: &mut Vmm, offset: u64, len: usize, value: u64) {
    vmm.client.write(0, offset, &value.to_le_bytes()[..len], false).unwrap();
}

fn status(vmm: &mut Vmm) -> u8 {
    vmm.client.read(0, DEVICE_STATUS, 1).unwrap()[0]
}

/// A driver that is ready, with a read of a sector in the ring.
fn start(vmm: &mut Vmm) {
    let pieces: [(u64, u32, u16); 3] = [(HEADER, 16, 1), (DATA, 512, 3), (STATUS, 1, 2)];
    for (n, (address, len, flags)) in (0u16..).zip(pieces) {
        let at = GuestAddress(DESCRIPTORS + 16 * u64::from(n));
        let bytes =
            [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &(n + 1).to_le_bytes()];
        vmm.memory.write_slice(&bytes.concat(), at).unwrap();
    }
    vmm.memory.write_slice(&[0; 16], GuestAddress(HEADER)).unwrap();
    vmm.memory.write_slice(&[0, 0, 1, 0, 0, 0], GuestAddress(AVAILABLE)).unwrap();
    vmm.memory.write_slice(&[0; 4], GuestAddress(USED)).unwrap();
    vmm.config_write(4, 6);
    for value in [1, 3] {
        write(vmm, DEVICE_STATUS, 1, value);
    }
    write(vmm, DRIVER_FEATURE_SELECT, 4, 1);
    write(vmm, DRIVER_FEATURE, 4, 1);
    write(vmm, DEVICE_STATUS, 1, 11);
    write(vmm, QUEUE_SELECT, 2, 0);
    write(vmm, QUEUE_SIZE, 2, 8);
    for (register, address) in [(QUEUE_DESC, DESCRIPTORS), (QUEUE_DRIVER, AVAILABLE), (QUEUE_DEVICE, USED)] {
        write(vmm, register, 8, address);
    }
    write(vmm, QUEUE_ENABLE, 2, 1);
    write(vmm, DEVICE_STATUS, 1, 15);
    write(vmm, NOTIFY, 2, 0);
}

fn used(vmm: &Vmm) -> u16 {
    vmm.memory.read_obj(GuestAddress(USED + 2)).unwrap()
}

/// The register write is answered at once, and the device status says when the reset is complete. The device writes no memory after
/// that.
#[test]
fn a_device_reset_ends_when_the_disk_has_done() {
    let gate = Gate::default();
    gate.close();
    let served = Served::new(AdapterKind::VirtioBlk, Arc::new(GatedDisk::new(1 << 20, gate.clone())));
    let mut vmm = Vmm::new(&served, Habits::default());
    start(&mut vmm);
    write(&mut vmm, DEVICE_STATUS, 1, 0);
    for _ in 0..3 {
        assert_eq!(status(&mut vmm), 15);
        write(&mut vmm, NOTIFY, 2, 0);
    }
    gate.open();
    let begin = Instant::now();
    while status(&mut vmm) != 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the reset does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    vmm.memory.write_slice(&[0x77; 512], GuestAddress(DATA)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let mut data = [0; 512];
    vmm.memory.read_slice(&mut data, GuestAddress(DATA)).unwrap();
    assert!(data == [0x77; 512] && used(&vmm) == 0, "written after the reset");
    // The device works.
    start(&mut vmm);
    while used(&vmm) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no completion");
        std::thread::sleep(Duration::from_millis(1));
    }
    vmm.memory.read_slice(&mut data, GuestAddress(DATA)).unwrap();
    assert_eq!(data, [0; 512]);
}
