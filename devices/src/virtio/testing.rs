//! A guest's side of the transport and the rings, right or wrong, in front of any virtio device.

mod random;

use std::sync::Arc;

use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

pub(super) use self::random::piece;
use super::spec::*;
use crate::device::PciDevice;
use crate::testing::{Counts, Hold, MEMORY, Owner, Sink};
use crate::time::Time;

/// Where the register space of each structure is, as the capabilities say (`transport::capabilities_say_where` of the
/// block device checks).
pub(super) const ISR: u64 = 0x1000;
pub(super) const DEVICE_CFG: u64 = 0x2000;
pub(super) const NOTIFY: u64 = 0x3000;
pub(super) const MSIX_TABLE: u64 = 0x4000;

/// Rings of queue `n` begin at `RINGS + n * RINGS_STEP`.
pub(super) const RINGS: u64 = 0x1_0000;
pub(super) const RINGS_STEP: u64 = 0x4000;
pub(super) const DRIVER: u64 = 0x1000;
pub(super) const DEVICE: u64 = 0x2000;
/// A table of indirect descriptors.
pub(super) const TABLE: u64 = 0x3000;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

pub(super) const ALL: u64 = u64::MAX;

/// A piece of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
}

pub(super) const fn reads(address: u64, len: u32) -> Piece {
    Piece { address, len, flags: 0 }
}

pub(super) const fn writes(address: u64, len: u32) -> Piece {
    Piece { address, len, flags: WRITE }
}

/// A queue as the driver keeps it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    pub(super) size: u16,
    pub(super) next_desc: u16,
    pub(super) avail: u16,
    pub(super) used: u16,
}

/// A driver of the transport and the rings.
pub(super) struct Driver<D> {
    pub(super) device: D,
    pub(super) memory: Arc<GuestMemoryMmap>,
    pub(super) counts: Arc<Counts>,
    /// Of its disks.
    pub(super) hold: Hold,
    /// Requests that it may have in flight.
    pub(super) tasks: usize,
    pub(super) now: Time,
    pub(super) rings: Vec<Ring>,
    pub(super) accepted: u64,
}

impl<D> Owner for Driver<D> {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

impl<D: PciDevice> Driver<D> {
    /// A driver that has only enabled memory and bus mastering. `make` gets the interrupt sink of the device.
    pub(super) fn over(
        queues: usize,
        tasks: u32,
        hold: Hold,
        make: impl FnOnce(Arc<GuestMemoryMmap>, Box<Sink>) -> D,
    ) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let counts = Arc::new(Counts::default());
        let mut device = make(memory.clone(), Box::new(Sink(counts.clone())));
        device.config_write(4, &6u16.to_le_bytes());
        let rings = vec![Ring::default(); queues];
        Self { device, memory, counts, hold, tasks: tasks as usize, now: Time(0), rings, accepted: 0 }
    }

    pub(super) fn read(&mut self, offset: u64, len: usize) -> u64 {
        let mut data = [0; 8];
        self.device.bar_read(0, offset, &mut data[..len], self.now);
        u64::from_le_bytes(data)
    }

    pub(super) fn write(&mut self, offset: u64, len: usize, value: u64) {
        self.device.bar_write(0, offset, &value.to_le_bytes()[..len], self.now);
    }

    pub(super) fn status(&mut self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(self.read(DEVICE_STATUS, 1) as u8)
    }

    pub(super) fn add_status(&mut self, status: DeviceStatus) {
        let status = self.status() | status;
        self.write(DEVICE_STATUS, 1, status.bits().into());
    }

    pub(super) fn offered(&mut self) -> u64 {
        self.write(DEVICE_FEATURE_SELECT, 4, 0);
        let low = self.read(DEVICE_FEATURE, 4);
        self.write(DEVICE_FEATURE_SELECT, 4, 1);
        low | self.read(DEVICE_FEATURE, 4) << 32
    }

    pub(super) fn accept(&mut self, features: u64) {
        self.accepted = features;
        for half in [0, 1] {
            self.write(DRIVER_FEATURE_SELECT, 4, half);
            self.write(DRIVER_FEATURE, 4, features >> (32 * half) & 0xffff_ffff);
        }
    }

    /// What a driver does (VIRTIO 1.2, 3.1.1), with queues of `size` entries.
    pub(super) fn bring_up(&mut self, features: u64, size: u16) {
        self.write(DEVICE_STATUS, 1, 0);
        if !self.status().is_empty() {
            // A driver waits for the end of the reset, which waits for the disk.
            self.hold.set(false);
        }
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

    pub(super) fn set_up_queue(&mut self, queue: u16, size: u16) {
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

    pub(super) fn enable_msix(&mut self) {
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

    pub(super) fn rings_at(&self, queue: u16) -> u64 {
        RINGS + u64::from(queue) * RINGS_STEP
    }

    pub(super) fn put_descriptor(&self, at: u64, piece: Piece, flags: u16, next: u16) {
        let descriptor = Descriptor::new(piece.address, piece.len, piece.flags | flags, next);
        self.memory.write_obj(RawDescriptor::from(descriptor), GuestAddress(at)).unwrap();
    }

    /// Make a chain available, without a notification. Returns its head.
    pub(super) fn put(&mut self, queue: u16, pieces: &[Piece]) -> u16 {
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
    pub(super) fn put_indirect(&mut self, queue: u16, pieces: &[Piece]) -> u16 {
        let table = self.rings_at(queue) + TABLE;
        for (n, piece) in (0..).zip(pieces) {
            let flags = if usize::from(n) + 1 == pieces.len() { 0 } else { NEXT };
            self.put_descriptor(table + 16 * u64::from(n), *piece, flags, n + 1);
        }
        self.put(queue, &[Piece { address: table, len: 16 * pieces.len() as u32, flags: INDIRECT }])
    }

    /// Make a chain available whose descriptors start at index `first`, and notify the device.
    pub(super) fn put_at(&mut self, queue: u16, first: u16, pieces: &[Piece]) {
        let at = self.rings_at(queue);
        for (n, piece) in (first..).zip(pieces) {
            let last = usize::from(n - first) + 1 == pieces.len();
            self.put_descriptor(at + 16 * u64::from(n), *piece, if last { 0 } else { NEXT }, n + 1);
        }
        self.put_head(queue, first);
        self.kick(queue);
    }

    pub(super) fn put_head(&mut self, queue: u16, head: u16) {
        let at = self.rings_at(queue) + DRIVER;
        let ring = &mut self.rings[usize::from(queue)];
        let slot = u64::from(ring.avail % ring.size);
        ring.avail = ring.avail.wrapping_add(1);
        self.memory.write_obj(head, GuestAddress(at + 4 + 2 * slot)).unwrap();
        self.memory.write_obj(ring.avail, GuestAddress(at + 2)).unwrap();
    }

    pub(super) fn kick(&mut self, queue: u16) {
        self.write(NOTIFY + 4 * u64::from(queue), 2, queue.into());
    }

    pub(super) fn used_index(&self, queue: u16) -> u16 {
        self.memory.read_obj(GuestAddress(self.rings_at(queue) + DEVICE + 2)).unwrap()
    }

    /// Take the completions that are posted: heads and lengths.
    pub(super) fn completions(&mut self, queue: u16) -> Vec<(u32, u32)> {
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

    /// Set the event index: the completion to be signalled.
    pub(super) fn set_used_event(&mut self, queue: u16, event: u16) {
        let size = u64::from(self.rings[usize::from(queue)].size);
        let at = self.rings_at(queue) + DRIVER + 4 + 2 * size;
        self.memory.write_obj(event, GuestAddress(at)).unwrap();
    }

    /// Wait for the only chain in flight on a queue. Returns the length in the used ring.
    pub(super) fn run_chain(&mut self, queue: u16, head: u16) -> u32 {
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
}
