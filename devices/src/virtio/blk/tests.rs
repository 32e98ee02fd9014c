//! A guest that executes what the test requires, valid or not.

mod features;
mod interrupts;
mod malformed;
mod notifications;
mod random;
mod requests;
mod small_tables;
mod threads;
mod transport;

use std::sync::Arc;

use paradisk_disk_formats::{Disk, RamDisk, SectorSize};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use super::spec::*;
use super::*;
use crate::device::{IoDevice, PciDevice};
use crate::moderation::Policy;
use crate::testing::{Hold, MIB, Owner, TestDisk};
use crate::time::Time;
use crate::virtio::rings::Requests as _;
use crate::virtio::spec::*;
use crate::virtio::testing::*;

/// The header of request `n` of a queue is at `REQUESTS + 64 * n`, its status 32 bytes later.
const REQUESTS: u64 = 0x8_0000;
const DATA: u64 = 0x10_0000;

const BASE: u64 = Features::VERSION_1.bits();

type Guest = Driver<VirtioBlk<Arc<GuestMemoryMmap>>>;

impl Guest {
    /// A guest that has only enabled memory and bus mastering.
    fn powered(disk: Arc<dyn Disk>, hold: Hold, config: Config) -> Self {
        Self::over(config.queues.into(), config.tasks, hold, |memory, sink| {
            VirtioBlk::new(memory, disk, sink, config).unwrap()
        })
    }

    /// A guest with a driver, for a disk of 1 MiB that completes requests when the test releases them.
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

    /// Requests that the device has taken and not posted.
    fn in_flight(&self) -> usize {
        self.tasks - self.device.requests().unwrap().free_slots()
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

    /// Make a request available: header, data, status.
    fn request(&mut self, queue: u16, request: u64, request_type: u32, sector: u64, data: &[Piece]) -> u16 {
        let mut pieces = vec![self.header(request, request_type, sector)];
        pieces.extend(data);
        pieces.push(writes(REQUESTS + 64 * request + 32, 1));
        self.put(queue, &pieces)
    }

    /// Run a request. Returns status and length.
    fn run(&mut self, request_type: u32, sector: u64, data: &[Piece]) -> (u8, u32) {
        let head = self.request(0, 0, request_type, sector, data);
        let len = self.run_chain(0, head);
        (self.status_of(0), len)
    }

    /// Check that the device works: write sectors, and read them back to another buffer.
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
