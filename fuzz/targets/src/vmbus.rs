//! A VMBus with its synthetic SCSI controller, under any guest.
//!
//! With the highest bit of the first byte set, the driver is up before. What follows is taken for what the guest does: messages, packets
//! in the rings, signals, and changes of its memory, the rings among it.

use std::sync::Arc;

use paradisk_devices::vmbus::{Posted, Synic, VmbusDevice};
use paradisk_devices::{AdapterConfig, AdapterKind, Attachment, Coalescing, Policy, Time, build_vmbus};
use paradisk_disk_formats::{RamDisk, SectorSize};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MEMORY: usize = 256 << 10;
const PAGE: u64 = 4096;
/// Rings of the channels: of each channel two, of three pages each.
const RINGS: u64 = 2 * PAGE;
const RING_PAGES: u64 = 3;
const RING: u64 = RING_PAGES * PAGE;
const DATA: u32 = 2 * 4096;
const CHANNELS: u64 = 3;

/// Nine virtual processors, so a controller has two sub-channels. Every fifth message finds its slot busy.
struct Slots(u32);

impl Synic for Slots {
    fn processors(&self) -> Option<u32> {
        Some(9)
    }
    fn post_message(&mut self, _vp: u32, payload: &[u8]) -> Posted {
        assert!(payload.len() <= 240);
        self.0 += 1;
        if self.0.is_multiple_of(5) { Posted::Busy } else { Posted::Done }
    }
    fn signal_event(&mut self, _vp: u32, flag: u16) {
        assert!((1..2048).contains(&flag));
    }
}

struct Guest {
    bus: Box<dyn VmbusDevice>,
    memory: Arc<GuestMemoryMmap>,
    now: Time,
}

impl Guest {
    fn new() -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory"));
        let disk = || Attachment::new(Arc::new(RamDisk::new(1 << 20, SectorSize::B512).expect("a disk")));
        let disks = [(0, disk()), (3, disk())];
        let kind = AdapterKind::Storvsc;
        let config = AdapterConfig {
            coalescing: Coalescing::policy(Policy::Batch),
            tasks: 8,
            ..AdapterConfig::new(kind)
        };
        let bus = build_vmbus(memory.clone(), Box::new(Slots(0)), config, &disks).expect("a bus");
        Self { bus, memory, now: Time(0) }
    }

    fn post(&mut self, message: &[u32]) {
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bus.on_message(4, 1, &bytes, self.now);
        (0..4).for_each(|_| self.bus.on_end_of_message(0, self.now));
    }

    /// Share the rings of a channel, and open it.
    fn open(&mut self, channel: u64) {
        let relid = channel as u32 + 1;
        let first = (RINGS + channel * 2 * RING) / PAGE;
        for ring in [0, RING] {
            let control = RINGS + channel * 2 * RING + ring;
            let _ = self.memory.write_slice(&[0; 68], GuestAddress(control));
        }
        let mut message = vec![8, 0, relid, relid, 56 | 1 << 16, 6 * PAGE as u32, 0];
        message.extend((first..first + 2 * RING_PAGES).flat_map(|page| [page as u32, 0]));
        self.post(&message);
        let mut open = vec![5, 0, relid, 1, relid, 0, RING_PAGES as u32];
        open.resize(37, 0);
        self.post(&open);
    }

    /// Put bytes into a channel's ring as they are, and signal.
    fn put(&mut self, channel: u64, packet: &[u8]) {
        let ring = RINGS + channel * 2 * RING;
        let write = self.memory.read_obj::<u32>(GuestAddress(ring)).unwrap_or_default() % DATA / 8 * 8;
        let mut at = write;
        for word in packet.chunks(8) {
            let _ = self.memory.write_slice(word, GuestAddress(ring + PAGE + u64::from(at)));
            at = (at + 8) % DATA;
        }
        // The trailer.
        let _ = self.memory.write_obj((at + 8) % DATA, GuestAddress(ring));
        self.bus.on_doorbell(channel as usize, self.now);
    }

    fn up(&mut self) {
        self.post(&[14, 0, 0x5_0003, 0, 2, 0, 0, 0, 0, 0]);
        self.post(&[3, 0]);
        self.open(0);
        for (operation, content) in [(7u32, 0u32), (9, 0x0602), (10, 0), (8, 0), (13, 2)] {
            let mut words = vec![6 | 2 << 16, 10 | 1 << 16, 1, 0, operation, 1, 0, content];
            words.resize(20, 0);
            let packet: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.put(0, &packet);
        }
        self.open(1);
    }
}

/// So many bytes of the input; fewer at its end.
fn take<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    taken
}

pub(crate) fn run(data: &[u8]) {
    let [flags, input @ ..] = data else { return };
    let mut input = input;
    let mut guest = Guest::new();
    if flags & 0x80 != 0 {
        guest.up();
    }
    while let [code, rest @ ..] = input {
        input = rest;
        let channel = u64::from(code >> 4) % CHANNELS;
        guest.now.0 += 50_000;
        match code & 0xf {
            0..5 => {
                let count = take(&mut input, 1).first().map_or(0, |count| usize::from(*count) % 32);
                let packet = take(&mut input, 8 * count);
                guest.put(channel, packet);
            }
            5 | 6 => {
                let count = take(&mut input, 1).first().map_or(0, |count| usize::from(*count));
                let message = take(&mut input, count);
                guest.bus.on_message(1, 1, message, guest.now);
            }
            7 | 8 => {
                let place = take(&mut input, 3);
                let address = place.iter().fold(0, |address, byte| address << 8 | u64::from(*byte));
                let bytes = take(&mut input, 8);
                let _ = guest.memory.write_slice(bytes, GuestAddress(address % MEMORY as u64));
            }
            9 => guest.bus.on_doorbell(channel as usize, guest.now),
            10 => guest.bus.on_completions(guest.now),
            11 => drop(guest.bus.before_sleep(guest.now)),
            12 => guest.bus.on_end_of_message(0, guest.now),
            13 => {
                // All that the host has written is read.
                let ring = RINGS + channel * 2 * RING + RING;
                let write = guest.memory.read_obj::<u32>(GuestAddress(ring)).unwrap_or_default();
                let _ = guest.memory.write_obj(write, GuestAddress(ring + 4));
            }
            14 => guest.open(channel),
            _ => guest.up(),
        }
    }
    guest.bus.quiesce(guest.now);
    guest.bus.reset(guest.now);
}
