//! A guest that does what the test says, right or wrong.

mod features;
mod interrupts;
mod malformed;
mod notifications;
mod random;
mod requests;
mod transport;

use std::sync::Arc;

use disk_formats::{Disk, QueueConfig, RamDisk, SectorSize};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use super::spec::*;
use super::*;
use crate::testing::{Counts, Hold, MEMORY, MIB, Sink, TestDisk};
use crate::virtio::spec::*;
use crate::{PciDevice, Policy, Time};

/// Where the register space of each structure is, as the capabilities say (`transport::capabilities_say_where` checks).
const ISR: u64 = 0x1000;
const DEVICE_CFG: u64 = 0x2000;
const NOTIFY: u64 = 0x3000;
const MSIX_TABLE: u64 = 0x4000;

/// Rings of queue `n` begin at `RINGS + n * RINGS_STEP`.
const RINGS: u64 = 0x1_0000;
const RINGS_STEP: u64 = 0x4000;
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
/// A table of indirect descriptors.
const TABLE: u64 = 0x3000;
/// Header and status of request `n` of a queue are at `REQUESTS + 64 * n`, its status 32 bytes on.
const REQUESTS: u64 = 0x8_0000;
const DATA: u64 = 0x10_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const BASE: u64 = Features::VERSION_1.bits();
const ALL: u64 = u64::MAX;

/// A piece of a chain.
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    len: u32,
    flags: u16,
}

const fn reads(address: u64, len: u32) -> Piece {
    Piece { address, len, flags: 0 }
}

const fn writes(address: u64, len: u32) -> Piece {
    Piece { address, len, flags: WRITE }
}

/// A queue as the driver keeps it.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    size: u16,
    next_desc: u16,
    avail: u16,
    used: u16,
}

struct Guest {
    device: VirtioBlk<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    counts: Arc<Counts>,
    hold: Hold,
    now: Time,
    rings: Vec<Ring>,
    accepted: u64,
    tasks: usize,
}

impl Guest {
    /// A guest that has not touched the device but for enabling memory and bus mastering.
    fn powered(disk: Arc<dyn Disk>, hold: Hold, config: Config) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let counts = Arc::new(Counts::default());
        let queue = disk.queue(&QueueConfig { depth: config.tasks, ..QueueConfig::default() }).unwrap();
        let sink = Box::new(Sink(counts.clone()));
        let mut device = VirtioBlk::new(memory.clone(), disk, queue, sink, config).unwrap();
        device.config_write(4, &6u16.to_le_bytes());
        let rings = vec![Ring::default(); config.queues.into()];
        Self { device, memory, counts, hold, now: Time(0), rings, accepted: 0, tasks: config.tasks as usize }
    }

    /// A guest with a driver for a disk of 1 MiB that ends requests when it is told to.
    fn held(config: Config) -> Self {
        let hold = Hold::default();
        let disk = Arc::new(TestDisk::new(MIB, hold.clone()));
        let mut guest = Self::powered(disk, hold, config);
        guest.bring_up(ALL, 64);
        guest
    }

    /// A guest with a driver that accepts these features, for a RAM disk of 8 MiB.
    fn with(features: u64, config: Config) -> Self {
        let disk = Arc::new(RamDisk::new(8 * MIB, SectorSize::B512).unwrap());
        let mut guest = Self::powered(disk, Hold::default(), config);
        guest.bring_up(features, 64);
        guest
    }

    fn new() -> Self {
        Self::with(ALL, batch())
    }

    /// Requests that the device has taken and not shown.
    fn in_flight(&self) -> usize {
        self.tasks - self.device.requests.room()
    }

    fn read(&mut self, offset: u64, len: usize) -> u64 {
        let mut data = [0; 8];
        self.device.bar_read(0, offset, &mut data[..len], self.now);
        u64::from_le_bytes(data)
    }

    fn write(&mut self, offset: u64, len: usize, value: u64) {
        self.device.bar_write(0, offset, &value.to_le_bytes()[..len], self.now);
    }

    fn status(&mut self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(self.read(DEVICE_STATUS, 1) as u8)
    }

    fn add_status(&mut self, status: DeviceStatus) {
        let status = self.status() | status;
        self.write(DEVICE_STATUS, 1, status.bits().into());
    }

    fn offered(&mut self) -> u64 {
        self.write(DEVICE_FEATURE_SELECT, 4, 0);
        let low = self.read(DEVICE_FEATURE, 4);
        self.write(DEVICE_FEATURE_SELECT, 4, 1);
        low | self.read(DEVICE_FEATURE, 4) << 32
    }

    fn accept(&mut self, features: u64) {
        self.accepted = features;
        for half in [0, 1] {
            self.write(DRIVER_FEATURE_SELECT, 4, half);
            self.write(DRIVER_FEATURE, 4, features >> (32 * half) & 0xffff_ffff);
        }
    }

    /// What a driver does (VIRTIO 1.2, 3.1.1), with queues of `size` entries.
    fn bring_up(&mut self, features: u64, size: u16) {
        self.write(DEVICE_STATUS, 1, 0);
        assert!(self.status().is_empty());
        self.add_status(DeviceStatus::ACKNOWLEDGE);
        self.add_status(DeviceStatus::DRIVER);
        let offered = self.offered();
        self.accept(offered & features);
        self.add_status(DeviceStatus::FEATURES_OK);
        assert!(self.status().contains(DeviceStatus::FEATURES_OK));
        for queue in 0..self.rings.len() as u16 {
            self.set_up_queue(queue, size);
        }
        self.add_status(DeviceStatus::DRIVER_OK);
    }

    fn set_up_queue(&mut self, queue: u16, size: u16) {
        let at = RINGS + u64::from(queue) * RINGS_STEP;
        self.memory.write_slice(&vec![0; RINGS_STEP as usize], GuestAddress(at)).unwrap();
        self.rings[usize::from(queue)] = Ring { size, ..Ring::default() };
        self.write(QUEUE_SELECT, 2, queue.into());
        self.write(QUEUE_SIZE, 2, size.into());
        for (register, address) in
            [(QUEUE_DESC, at), (QUEUE_DRIVER, at + DRIVER), (QUEUE_DEVICE, at + DEVICE)]
        {
            self.write(register, 4, address & 0xffff_ffff);
            self.write(register + 4, 4, address >> 32);
        }
        self.write(QUEUE_MSIX_VECTOR, 2, u64::from(queue) + 1);
        self.write(QUEUE_ENABLE, 2, 1);
    }

    fn enable_msix(&mut self) {
        for vector in 0..=self.rings.len() as u64 {
            let entry = MSIX_TABLE + 16 * vector;
            self.write(entry, 8, 0xfee0_0000);
            self.write(entry + 8, 8, vector);
        }
        let mut at = [0; 1];
        self.device.config_read(0x34, &mut at);
        loop {
            let mut header = [0; 2];
            self.device.config_read(at[0].into(), &mut header);
            if header[0] == crate::pci::spec::CAP_ID_MSIX {
                break;
            }
            at[0] = header[1];
        }
        self.device.config_write(u16::from(at[0]) + 2, &0x8000u16.to_le_bytes());
        self.write(CONFIG_MSIX_VECTOR, 2, 0);
    }

    fn rings_at(&self, queue: u16) -> u64 {
        RINGS + u64::from(queue) * RINGS_STEP
    }

    fn put_descriptor(&self, at: u64, piece: Piece, flags: u16, next: u16) {
        let descriptor = Descriptor::new(piece.address, piece.len, piece.flags | flags, next);
        self.memory.write_obj(RawDescriptor::from(descriptor), GuestAddress(at)).unwrap();
    }

    /// Make a chain available, without telling. Returns its head.
    fn put(&mut self, queue: u16, pieces: &[Piece]) -> u16 {
        let at = self.rings_at(queue);
        let ring = self.rings[usize::from(queue)];
        let head = ring.next_desc % ring.size;
        for (n, piece) in (0..).zip(pieces) {
            let last = usize::from(n) + 1 == pieces.len();
            let slot = |n: u16| (ring.next_desc.wrapping_add(n)) % ring.size;
            let flags = if last { 0 } else { NEXT };
            self.put_descriptor(at + 16 * u64::from(slot(n)), *piece, flags, slot(n + 1));
        }
        self.rings[usize::from(queue)].next_desc = ring.next_desc.wrapping_add(pieces.len() as u16);
        self.put_head(queue, head);
        head
    }

    /// The same through a table of indirect descriptors.
    fn put_indirect(&mut self, queue: u16, pieces: &[Piece]) -> u16 {
        let table = self.rings_at(queue) + TABLE;
        for (n, piece) in (0..).zip(pieces) {
            let flags = if usize::from(n) + 1 == pieces.len() { 0 } else { NEXT };
            self.put_descriptor(table + 16 * u64::from(n), *piece, flags, n + 1);
        }
        self.put(queue, &[Piece { address: table, len: 16 * pieces.len() as u32, flags: INDIRECT }])
    }

    fn put_head(&mut self, queue: u16, head: u16) {
        let at = self.rings_at(queue) + DRIVER;
        let ring = &mut self.rings[usize::from(queue)];
        let slot = u64::from(ring.avail % ring.size);
        ring.avail = ring.avail.wrapping_add(1);
        self.memory.write_obj(head, GuestAddress(at + 4 + 2 * slot)).unwrap();
        self.memory.write_obj(ring.avail, GuestAddress(at + 2)).unwrap();
    }

    fn kick(&mut self, queue: u16) {
        self.write(NOTIFY + 4 * u64::from(queue), 2, queue.into());
    }

    fn used_index(&self, queue: u16) -> u16 {
        self.memory.read_obj(GuestAddress(self.rings_at(queue) + DEVICE + 2)).unwrap()
    }

    /// Take the completions that are shown: heads and lengths.
    fn completions(&mut self, queue: u16) -> Vec<(u32, u32)> {
        let at = self.rings_at(queue) + DEVICE;
        let index = self.used_index(queue);
        let ring = &mut self.rings[usize::from(queue)];
        let mut taken = Vec::new();
        while ring.used != index && taken.len() < 4096 {
            let slot = at + 4 + 8 * u64::from(ring.used % ring.size.max(1));
            let [id, len]: [u32; 2] =
                [slot, slot + 4].map(|at| self.memory.read_obj(GuestAddress(at)).unwrap());
            taken.push((id, len));
            ring.used = ring.used.wrapping_add(1);
        }
        taken
    }

    /// Say which completion is to be told.
    fn set_used_event(&mut self, queue: u16, event: u16) {
        let size = u64::from(self.rings[usize::from(queue)].size);
        let at = self.rings_at(queue) + DRIVER + 4 + 2 * size;
        self.memory.write_obj(event, GuestAddress(at)).unwrap();
    }

    fn header(&self, request: u64, request_type: u32, sector: u64) -> Piece {
        let at = REQUESTS + 64 * request;
        let header =
            RequestHeader { request_type: request_type.into(), reserved: 0.into(), sector: sector.into() };
        self.memory.write_slice(header.as_bytes(), GuestAddress(at)).unwrap();
        self.memory.write_obj(0xffu8, GuestAddress(at + 32)).unwrap();
        reads(at, 16)
    }

    fn status_of(&self, request: u64) -> u8 {
        self.memory.read_obj(GuestAddress(REQUESTS + 64 * request + 32)).unwrap()
    }

    /// Put a request in: header, data, status.
    fn request(&mut self, queue: u16, request: u64, request_type: u32, sector: u64, data: &[Piece]) -> u16 {
        let mut pieces = vec![self.header(request, request_type, sector)];
        pieces.extend(data);
        pieces.push(writes(REQUESTS + 64 * request + 32, 1));
        self.put(queue, &pieces)
    }

    /// Run a chain on a queue with nothing else about: the length in the used ring.
    fn run_chain(&mut self, queue: u16, put: impl FnOnce(&mut Self) -> u16) -> u32 {
        let head = put(self);
        self.kick(queue);
        for _ in 0..100 {
            match self.completions(queue).as_slice() {
                [] => self.device.on_completions(self.now),
                [(id, len)] => {
                    assert_eq!(*id, u32::from(head));
                    return *len;
                }
                more => panic!("{} completions for one request", more.len()),
            }
        }
        panic!("no completion, device status {:?}", self.status());
    }

    /// Run a request: status and length.
    fn run(&mut self, request_type: u32, sector: u64, data: &[Piece]) -> (u8, u32) {
        let len = self.run_chain(0, |guest| guest.request(0, 0, request_type, sector, data));
        (self.status_of(0), len)
    }

    fn fill(&self, address: u64, len: usize, seed: u8) -> Vec<u8> {
        let data: Vec<u8> = (0..len).map(|at| (at / 7) as u8 ^ seed).collect();
        self.memory.write_slice(&data, GuestAddress(address)).unwrap();
        data
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_slice(&mut data, GuestAddress(address)).unwrap();
        data
    }

    /// Write sectors, read them back elsewhere: the device works.
    fn check_io(&mut self) {
        let data = self.fill(DATA, 4096, 0x5a);
        assert_eq!(self.run(VIRTIO_BLK_T_OUT, 8, &[reads(DATA, 4096)]), (0, 1));
        let to = DATA + 0x2_0000;
        assert_eq!(self.run(VIRTIO_BLK_T_IN, 8, &[writes(to, 4096)]), (0, 4097));
        assert_eq!(self.bytes(to, 4096), data);
    }
}

fn batch() -> Config {
    Config { coalescing: Coalescing::policy(Policy::Batch), ..Config::default() }
}

#[test]
fn a_guest_does_io() {
    Guest::new().check_io();
}
