//! virtio-blk and virtio-scsi: registers, rings, descriptors and their tables.

use guest_driver::adapter::Adapter as _;
use guest_driver::driver::Start;
use guest_driver::loadgen::Rng;
use guest_driver::virtio::queue::Virtqueue;
use guest_driver::virtio::{Options, spec};
use guest_driver::{Platform, VirtioBlk, VirtioScsi};
use guest_tests::{Harness, HarnessConfig, Machine};
use vm_memory::{Bytes, GuestAddress};

use super::{COMMAND, Hostile, MEMORY_AND_BUS_MASTER, config_space, disk, request, value, withstands, write};
use crate::common::{DiskSpec, blk_harness, scsi_harness};

#[test]
fn no_guest_can_break_the_virtio_block_device() {
    withstands::<VirtioBlk>();
}

#[test]
fn no_guest_can_break_the_virtio_scsi_host() {
    withstands::<VirtioScsi>();
}

impl<D: VirtioDriver> Hostile for D {
    const STREAM: u32 = 1;
    const RECOVERY: usize = 20;
    /// Of the data of requests.
    type Places = u64;

    fn set_up(config: &HarnessConfig, seed: u32, _: &mut Rng) -> (Harness<Self>, Options) {
        let options = Options {
            queues: 2,
            queue_size: 32,
            indirect: seed.is_multiple_of(2),
            event_index: seed % 4 < 2,
            ..Default::default()
        };
        (Self::make(config, options, disk(seed)), options)
    }

    fn places(&self, machine: &mut Machine) -> u64 {
        machine.dma(4096, 4096).unwrap().address()
    }

    fn attack(&mut self, machine: &mut Machine, rng: &mut Rng, &data: &u64) {
        match rng.below(64) {
            2..48 => request(machine, rng, self, data),
            48..50 => self.other(machine, rng),
            0 => config_space(machine, rng, 256),
            1 => register(machine, rng),
            _ => {
                let ring = self.ring(rng);
                rings(machine, rng, ring.addresses(), ring.shape().size.into());
            }
        }
    }

    fn recover(&mut self, machine: &mut Machine) {
        machine.config_write(COMMAND, MEMORY_AND_BUS_MASTER);
        let _ = self.reset(machine);
    }
}

/// What the driver of any virtio device can do.
trait VirtioDriver: Start<Options = Options> {
    /// A device with one disk.
    fn make(config: &HarnessConfig, options: Options, disk: DiskSpec) -> Harness<Self>;

    /// A ring of the device.
    fn ring(&self, rng: &mut Rng) -> &Virtqueue;
    /// What is no request for data.
    fn other(&mut self, _machine: &mut Machine, _rng: &mut Rng) {}
}

impl VirtioDriver for VirtioBlk {
    fn make(config: &HarnessConfig, options: Options, disk: DiskSpec) -> Harness<Self> {
        blk_harness(config, options, disk)
    }

    fn ring(&self, rng: &mut Rng) -> &Virtqueue {
        self.queues().ring(rng.below(2) as usize).unwrap()
    }
}

impl VirtioDriver for VirtioScsi {
    fn make(config: &HarnessConfig, options: Options, disk: DiskSpec) -> Harness<Self> {
        scsi_harness(config, options, &[disk])
    }

    fn ring(&self, rng: &mut Rng) -> &Virtqueue {
        let (control, events, requests) = self.rings();
        match rng.below(6) {
            0 => control,
            1 => events,
            n => requests.ring((n % 2) as usize).unwrap(),
        }
    }
    fn other(&mut self, machine: &mut Machine, rng: &mut Rng) {
        let (function, target) = (rng.below(9) as u32, (rng.below(8) / 7) as u32);
        let tag = rng.below(self.slots().into()) as u32;
        self.ask(machine, function, target, tag);
        while self.take_event(machine).is_some() {}
    }
}

/// Spoil what a virtio device reads next: descriptors, their tables and headers (which lie behind each other in this
/// guest's memory), and the rings' indices.
fn rings(machine: &Machine, rng: &mut Rng, [descriptors, driver, _]: [u64; 3], size: u64) {
    for _ in 0..rng.below(4) {
        let at = match rng.below(4) {
            0 => descriptors + rng.below(2 * size) * 8,
            1 => (driver + rng.below(4 + 2 * size)) & !7,
            // Tables, headers and data.
            _ => (driver + rng.below(0x8000)) & !7,
        };
        // Mostly something like what was there.
        let before = machine.memory().read_obj::<u64>(GuestAddress(at)).unwrap_or_default();
        let spoiled = match rng.below(4) {
            0 => value(rng),
            1 => before ^ 1 << rng.below(64),
            2 => before & !0xffff_ffff | rng.below(0x4000),
            _ => before & 0xffff_ffff | (rng.below(8) | rng.below(size) << 16) << 32,
        };
        write(machine, at, spoiled);
    }
    if rng.below(100) == 0 {
        let index = GuestAddress(driver + spec::AVAIL_INDEX as u64);
        let _ = machine.memory().write_obj(value(rng) as u16, index);
    }
}

/// A register of a virtio device's common configuration, a doorbell, or any.
fn register(machine: &mut Machine, rng: &mut Rng) {
    let len = [1, 2, 4][rng.below(3) as usize];
    let offset = match rng.below(4) {
        0 => rng.below(0x40),
        1 => 0x3000 + 4 * rng.below(4),
        _ => rng.below(0x8000),
    } & !(len as u64 - 1);
    machine.write(0, offset, len, value(rng) as u32);
    machine.read(0, rng.below(0x8000) & !3, len);
}
