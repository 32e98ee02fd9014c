//! Queues on fewer threads of the device: I/O on all at once, an interrupt vector for each, and resets; and queues on a thread that polls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paradisk_devices::virtio::spec::DEVICE_STATUS;
use paradisk_devices::{AdapterConfig, AdapterKind, Policy, Stats};
use paradisk_disk_formats::{RamDisk, SectorSize};

use crate::block_guest::BlockGuest;
use crate::gate::{Gate, GatedDisk};
use crate::vhost_client::{IN, OUT, Shape};
use crate::vmm::Served;

const QUEUES: u16 = 3;
/// Thread 0 serves queues 0 and 2, thread 1 serves queue 1.
const THREADS: u16 = 2;
/// Requests of each queue that are in flight together.
const DEPTH: u16 = 16;
const LEN: u32 = 4096;
const ALL: u64 = (QUEUES * DEPTH) as u64;
const DISK: u64 = ALL * LEN as u64;
const SOON: Duration = Duration::from_secs(60);

struct Rig {
    guest: BlockGuest,
    served: Served,
    gate: Gate,
    /// Requests so far.
    made: u64,
}

impl Rig {
    fn new(event_index: bool) -> Self {
        let gate = Gate::default();
        let config =
            AdapterConfig { queues: QUEUES, threads: THREADS, ..AdapterConfig::new(AdapterKind::VirtioBlk) };
        let served = Served::with(config, Arc::new(GatedDisk::new(DISK, gate.clone())));
        let shape = Shape { queues: QUEUES, event_index, ..Shape::default() };
        let guest = BlockGuest::connect(&served.socket, shape);
        Self { guest, served, gate, made: 0 }
    }

    fn queues() -> impl Iterator<Item = usize> {
        0..QUEUES.into()
    }

    /// Wait until the device's counters are as `expected`: a thread of the device counts what it has done after it has signalled it.
    #[track_caller]
    fn until(&self, expected: impl Fn(&Stats) -> bool) -> Stats {
        let begin = Instant::now();
        loop {
            let stats = self.served.handle.report(SOON).unwrap().stats;
            if expected(&stats) {
                return stats;
            }
            assert!(begin.elapsed() < SOON, "{stats:?}");
            std::thread::yield_now();
        }
    }

    /// Wait until the device has counted all requests as ended.
    #[track_caller]
    fn ended(&self) -> Stats {
        self.until(|stats| (stats.requests, stats.completions) == (self.made, self.made))
    }

    /// The first sector of a slot's place on the disk: no two slots of any queues share a sector.
    fn sector(queue: usize, slot: u16) -> u64 {
        (queue as u64 * u64::from(DEPTH) + u64::from(slot)) * u64::from(LEN / 512)
    }

    fn byte(queue: usize, slot: u16, seed: u8) -> u8 {
        seed ^ (queue as u8 * 16 + slot as u8)
    }

    /// Have requests of all queues in flight together, while the disk's gate is closed.
    #[track_caller]
    fn start_all(&mut self, request_type: u32) {
        self.ended();
        self.gate.close();
        for queue in Self::queues() {
            for slot in 0..DEPTH {
                self.guest.guest.add(queue, slot, request_type, Self::sector(queue, slot), LEN);
            }
            self.guest.kick(queue);
        }
        let before = self.made;
        self.made += ALL;
        self.until(|stats| (stats.requests, stats.completions) == (before + ALL, before));
    }

    #[track_caller]
    fn finish_all(&mut self) {
        self.gate.open();
        for queue in Self::queues() {
            let mut ended = self.guest.wait(queue, DEPTH.into());
            ended.sort_unstable();
            assert!(ended.into_iter().eq((0..DEPTH).map(|slot| (slot, 0))), "queue {queue}");
        }
    }

    /// Fill the memory of all slots.
    fn fill(&self, seed: u8) {
        for queue in Self::queues() {
            for slot in 0..DEPTH {
                self.guest.guest.fill(queue, slot, Self::byte(queue, slot, seed), LEN as usize);
            }
        }
    }

    #[track_caller]
    fn write_all(&mut self, seed: u8) {
        self.fill(seed);
        self.start_all(OUT);
        self.finish_all();
    }

    #[track_caller]
    fn check_all(&mut self, seed: u8) {
        self.fill(!seed);
        self.start_all(IN);
        self.finish_all();
        for queue in Self::queues() {
            for slot in 0..DEPTH {
                let byte = Self::byte(queue, slot, seed);
                let data = self.guest.guest.bytes(queue, slot, LEN as usize);
                assert!(data.iter().all(|&found| found == byte), "queue {queue}, slot {slot}");
            }
        }
    }

    /// A request of one queue signals the vector of this queue and no other.
    #[track_caller]
    fn check_interrupts(&mut self) {
        for queue in [1, 0, 2] {
            // A guest that does not wait for the interrupt still requests it.
            assert!(self.guest.guest.ask(queue));
            self.guest.guest.add(queue, 0, IN, 0, LEN);
            self.guest.kick(queue);
            self.made += 1;
            self.guest.wait_interrupt(queue);
            assert_eq!(self.guest.guest.take(queue), [(0, 0)]);
            let others: Vec<_> = Self::queues().filter(|&other| self.guest.interrupted(other)).collect();
            assert!(others.is_empty(), "{others:?} beside queue {queue}");
        }
    }

    /// Reset the device while requests of all queues are in flight.
    #[track_caller]
    fn reset(&mut self) {
        self.start_all(IN);
        self.guest.set(DEVICE_STATUS, 1, 0);
        assert!(!self.guest.status().is_empty(), "the disk has requests of all queues");
        self.gate.open();
        let begin = Instant::now();
        while !self.guest.status().is_empty() {
            assert!(begin.elapsed() < SOON, "the reset does not end");
            std::thread::yield_now();
        }
        let posted = Self::queues().map(|queue| self.guest.guest.take(queue).len());
        assert_eq!(posted.collect::<Vec<_>>(), [0; QUEUES as usize]);
    }
}

/// A failed test must not wait for a disk that waits for the test.
impl Drop for Rig {
    fn drop(&mut self) {
        self.gate.open();
    }
}

#[test]
fn queues_share_threads_and_serve_again_after_a_reset() {
    for event_index in [true, false] {
        let mut rig = Rig::new(event_index);
        let mut written = None;
        for seed in [0x51, 0xa4] {
            rig.guest.start();
            rig.check_interrupts();
            if let Some(before_the_reset) = written {
                rig.check_all(before_the_reset);
            }
            rig.write_all(seed);
            rig.check_all(seed);
            written = Some(seed);
            rig.reset();
        }
        assert_eq!(rig.ended().errors, 0);
        let moderation = rig.served.handle.report(SOON).unwrap().moderation;
        assert_eq!(moderation.len(), usize::from(QUEUES));
        assert!(moderation.iter().all(|vector| vector.policy == Policy::Batch && !vector.held_back));
    }
}

#[test]
fn a_server_that_polls_needs_no_doorbells() {
    let poll = Duration::from_secs(2);
    for event_index in [true, false] {
        let disk = Arc::new(RamDisk::new(1 << 20, SectorSize::B512).unwrap());
        let served = Served::polling(AdapterConfig::new(AdapterKind::VirtioBlk), poll, disk);
        let shape = Shape { event_index, ..Shape::default() };
        let mut guest = BlockGuest::connect(&served.socket, shape);
        guest.start();
        let BlockGuest { guest, doorbells, .. } = &mut guest;
        guest.check_polling(poll, || {
            rustix::io::write(&doorbells[0], &1u64.to_ne_bytes()).unwrap();
        });
    }
}
