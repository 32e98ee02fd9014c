//! A guest that drives a device with threads. The device's threads run while the test waits.

mod figure;
mod gate;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{Disk, RamDisk, SectorSize};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::IntoBytes;

use self::gate::{Gate, GatedDisk};
use super::super::spec::*;
use super::super::*;
use crate::device::{IoDevice, PciDevice};
use crate::moderation::Policy;
use crate::testing::{Hold, MIB, Owner};
use crate::time::Time;
use crate::virtio::spec::*;
use crate::virtio::testing::*;

const NOW: Time = Time(0);
const QUEUES: u16 = 3;
/// The header of the request of a queue, 32 bytes before its status.
const REQUESTS: u64 = 0x8_0000;
const DATA: u64 = 0x10_0000;
/// Each completion is signalled.
const PLAIN: u64 = !Features::RING_EVENT_IDX.bits();

struct Guest(Driver<VirtioBlk<Arc<GuestMemoryMmap>>>);

impl Deref for Guest {
    type Target = Driver<VirtioBlk<Arc<GuestMemoryMmap>>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Guest {
    /// A guest with a driver that accepts these features, in front of a RAM disk.
    fn new(threads: u16, features: u64) -> Self {
        Self::of(Arc::new(RamDisk::new(8 * MIB, SectorSize::B512).unwrap()), threads, features)
    }

    /// In front of a disk whose requests end while the gate is open.
    fn gated(threads: u16) -> (Self, Gate) {
        let gate = Gate::default();
        (Self::of(Arc::new(GatedDisk::new(MIB, gate.clone())), threads, PLAIN), gate)
    }

    fn of(disk: Arc<dyn Disk>, threads: u16, features: u64) -> Self {
        let config = Config {
            coalescing: Coalescing::policy(Policy::Batch),
            queues: QUEUES,
            queue_size: 64,
            threads,
            ..Config::default()
        };
        let mut guest = Self(Driver::over(QUEUES.into(), 64, Hold::default(), |memory, sink| {
            VirtioBlk::new(memory, disk, sink, config).unwrap()
        }));
        guest.enable_msix();
        guest.bring_up(features, 64);
        guest.write(CONFIG_MSIX_VECTOR, 2, 0);
        guest
    }

    /// Reset the device, wait for the end, and drive it again.
    #[track_caller]
    fn restart(&mut self, size: u16) {
        self.write(DEVICE_STATUS, 1, 0);
        self.until("the end of the reset", |guest| guest.status().is_empty());
        self.bring_up(PLAIN, size);
    }

    /// Make a request available, without a notification.
    fn request(&mut self, queue: u16, request_type: u32, sector: u64, data: Piece) -> u16 {
        let at = REQUESTS + 64 * u64::from(queue);
        let header =
            RequestHeader { request_type: request_type.into(), reserved: 0.into(), sector: sector.into() };
        self.memory.write_slice(header.as_bytes(), GuestAddress(at)).unwrap();
        self.memory.write_obj(0xffu8, GuestAddress(at + 32)).unwrap();
        self.put(queue, &[reads(at, 16), data, writes(at + 32, 1)])
    }

    fn status_of(&self, queue: u16) -> u8 {
        self.memory.read_obj(GuestAddress(REQUESTS + 64 * u64::from(queue) + 32)).unwrap()
    }

    /// Do what the owner's thread does, until the device's threads have made `done` true.
    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
            self.device.on_completions(NOW);
            self.device.before_sleep(NOW);
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Run a request of a queue.
    #[track_caller]
    fn run(&mut self, queue: u16, request_type: u32, sector: u64, data: Piece) {
        self.request(queue, request_type, sector, data);
        self.kick(queue);
        self.completes(queue, 0);
    }

    /// The only request of a queue ends with this status.
    #[track_caller]
    fn completes(&mut self, queue: u16, status: u8) {
        let mut taken = Vec::new();
        self.until("a completion", |guest| {
            taken.extend(guest.completions(queue));
            !taken.is_empty()
        });
        assert_eq!((taken.len(), self.status_of(queue)), (1, status));
    }

    /// Write and read by each queue.
    #[track_caller]
    fn check_io(&mut self) {
        for queue in 0..QUEUES {
            let (sector, to) = (64 * u64::from(queue), DATA + 0x2_0000);
            let data = self.fill(DATA, 4096, 0x51 + queue as u8);
            self.run(queue, VIRTIO_BLK_T_OUT, sector, reads(DATA, 4096));
            self.run(queue, VIRTIO_BLK_T_IN, sector, writes(to, 4096));
            assert_eq!(self.bytes(to, 4096), data);
        }
    }

    /// Requests that the device has taken, and completions that it has posted.
    fn counts(&self) -> (u64, u64) {
        let stats = self.device.stats();
        (stats.requests, stats.completions)
    }

    /// Start a read by each queue of a disk whose gate is closed.
    #[track_caller]
    fn start_reads(&mut self) {
        for queue in 0..QUEUES {
            self.request(queue, VIRTIO_BLK_T_IN, 0, writes(DATA, 512));
            self.kick(queue);
        }
        self.until("requests in flight", |guest| guest.counts() == (QUEUES.into(), 0));
    }
}

/// Open a gate after some time, on another thread.
fn open_later(gate: &Gate) -> thread::JoinHandle<()> {
    let gate = gate.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(5));
        gate.open();
    })
}

/// Open a gate when that many threads wait for its requests, on another thread.
fn open_for_waiting(gate: &Gate, threads: usize) -> thread::JoinHandle<()> {
    let gate = gate.clone();
    thread::spawn(move || {
        let begin = Instant::now();
        while gate.waiting() < threads {
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody waits");
            thread::sleep(Duration::from_micros(100));
        }
        gate.open();
    })
}

#[test]
fn queues_do_io_on_any_number_of_threads() {
    for threads in [1, 2, 3, 9] {
        for features in [ALL, PLAIN] {
            let mut guest = Guest::new(threads, features);
            assert_eq!(guest.device.threads(), usize::from(threads.min(QUEUES)));
            guest.check_io();
            guest.until("reports", |guest| guest.counts() == (6, 6));
            assert_eq!((guest.device.stats().errors, guest.device.moderation().len()), (0, 3));
            guest.restart(16);
            guest.check_io();
        }
    }
}

#[test]
fn each_queue_signals_its_vector() {
    let mut guest = Guest::new(2, PLAIN);
    for queue in [1, 0, 2] {
        guest.run(queue, VIRTIO_BLK_T_IN, 0, writes(DATA, 512));
        let mut vectors = Vec::new();
        guest.until("an interrupt", |guest| {
            vectors.extend(guest.counts.vectors());
            !vectors.is_empty()
        });
        assert_eq!(vectors, [u32::from(queue) + 1]);
    }
    assert_eq!(guest.device.stats().interrupts, 3);
}

#[test]
fn a_doorbells_event_needs_no_owner() {
    let mut guest = Guest::new(3, PLAIN);
    let head = guest.request(2, VIRTIO_BLK_T_IN, 0, writes(DATA, 512));
    rustix::io::write(guest.device.doorbell_event(2).unwrap(), &1u64.to_ne_bytes()).unwrap();
    let begin = Instant::now();
    while guest.used_index(2) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(guest.completions(2), [(head.into(), 513)]);
    guest.until("a report", |guest| guest.device.stats().doorbells > 0);
}

#[test]
fn a_reset_ends_when_the_disk_has_completed_its_requests() {
    for threads in [1, 3] {
        let (mut guest, gate) = Guest::gated(threads);
        guest.start_reads();
        guest.write(DEVICE_STATUS, 1, 0);
        thread::sleep(Duration::from_millis(5));
        assert!(!guest.status().is_empty(), "the disk has requests");
        gate.open();
        guest.until("the end of the reset", |guest| guest.status().is_empty());
        // Nothing is posted.
        assert!((0..QUEUES).all(|queue| guest.used_index(queue) == 0));
        guest.bring_up(PLAIN, 64);
        guest.check_io();
    }
}

#[test]
fn a_queue_is_reset_while_others_serve() {
    let mut guest = Guest::new(3, PLAIN);
    guest.check_io();
    guest.write(QUEUE_SELECT, 2, 1);
    guest.write(QUEUE_RESET, 2, 1);
    guest.until("the end of the reset", |guest| guest.read(QUEUE_RESET, 2) == 0);
    assert_eq!(guest.read(QUEUE_ENABLE, 2), 0);
    guest.run(0, VIRTIO_BLK_T_IN, 0, writes(DATA, 512));
    guest.set_up_queue(1, 32);
    guest.check_io();
}

#[test]
fn without_bus_mastering_memory_is_not_touched() {
    let mut guest = Guest::new(2, PLAIN);
    guest.device.config_write(4, &2u16.to_le_bytes());
    guest.request(0, VIRTIO_BLK_T_IN, 0, writes(DATA, 512));
    guest.kick(0);
    thread::sleep(Duration::from_millis(5));
    assert_eq!((guest.used_index(0), guest.status_of(0)), (0, 0xff));
    guest.device.config_write(4, &6u16.to_le_bytes());
    guest.completes(0, 0);
    guest.check_io();
}

#[test]
fn what_completes_without_bus_mastering_is_posted_later() {
    let (mut guest, gate) = Guest::gated(2);
    guest.start_reads();
    // One thread waits for its requests, after all have paused.
    let opened = open_for_waiting(&gate, 1);
    guest.device.config_write(4, &2u16.to_le_bytes());
    opened.join().unwrap();
    guest.device.quiesce(NOW);
    assert!((0..QUEUES).all(|queue| guest.used_index(queue) == 0));
    guest.device.config_write(4, &6u16.to_le_bytes());
    for queue in 0..QUEUES {
        guest.completes(queue, 0);
    }
    guest.check_io();
}

#[test]
fn a_pending_reset_ends_when_bus_mastering_is_disabled() {
    let (mut guest, gate) = Guest::gated(2);
    guest.start_reads();
    guest.write(DEVICE_STATUS, 1, 0);
    let opened = open_later(&gate);
    guest.device.config_write(4, &2u16.to_le_bytes());
    assert!(guest.status().is_empty());
    opened.join().unwrap();
}

#[test]
fn quiescing_posts_all_and_rings_go_on() {
    let (mut guest, gate) = Guest::gated(2);
    guest.start_reads();
    let opened = open_later(&gate);
    guest.device.quiesce(NOW);
    for queue in 0..QUEUES {
        assert_eq!(guest.completions(queue).len(), 1);
    }
    opened.join().unwrap();
    // The rings start again when the owner's thread is about to sleep. Until then requests wait.
    guest.request(0, VIRTIO_BLK_T_IN, 0, writes(DATA, 512));
    guest.kick(0);
    thread::sleep(Duration::from_millis(5));
    assert_eq!(guest.completions(0), []);
    guest.completes(0, 0);
    let all = 0..u64::MAX;
    assert!(!guest.device.uses_memory(std::slice::from_ref(&all), NOW));
    guest.device.memory_replaced(NOW);
    guest.check_io();
    guest.device.reset(NOW);
    assert!(guest.status().is_empty());
}

#[test]
fn a_broken_ring_stops_its_queue_and_is_reported() {
    let mut guest = Guest::new(3, PLAIN);
    // More chains than entries.
    let at = guest.rings_at(1) + DRIVER + 2;
    guest.memory.write_obj(1000u16, GuestAddress(at)).unwrap();
    guest.kick(1);
    guest.until("DEVICE_NEEDS_RESET", |guest| guest.status().contains(DeviceStatus::DEVICE_NEEDS_RESET));
    guest.until("an interrupt for it", |guest| guest.counts.vectors().contains(&0));
    guest.restart(64);
    guest.check_io();
}

#[test]
fn a_larger_disk_is_reported_and_used() {
    let (mut guest, gate) = Guest::gated(2);
    gate.open();
    // The disk checks reads and writes, the device other ranges.
    let beyond = MIB / 512;
    let range = RangeDesc { sector: beyond.into(), num_sectors: 8.into(), flags: RANGE_UNMAP.into() };
    guest.memory.write_slice(range.as_bytes(), GuestAddress(DATA)).unwrap();
    guest.request(1, VIRTIO_BLK_T_WRITE_ZEROES, 0, reads(DATA, 16));
    guest.kick(1);
    guest.completes(1, Status::IoErr as u8);
    gate.grow(2 * MIB);
    guest.device.refresh(NOW);
    assert_eq!(guest.read(DEVICE_CFG, 8), 2 * beyond);
    assert!(guest.counts.vectors().contains(&0));
    guest.run(1, VIRTIO_BLK_T_WRITE_ZEROES, 0, reads(DATA, 16));
    guest.until("reports", |guest| guest.device.stats().errors == 1);
}

#[test]
fn a_device_is_dropped_with_requests_in_flight() {
    let (mut guest, gate) = Guest::gated(2);
    guest.start_reads();
    let opened = open_later(&gate);
    drop(guest);
    opened.join().unwrap();
}
