//! A guest with its own implementation of the bus, written from the layouts and not from `spec`: bytes at offsets, indices, masks. It
//! executes what the test requires, valid or not.

mod control;
mod packets;
mod random;
mod requests;
mod rings;
mod signals;
mod small_tables;
mod sub_channels;
mod suppression;
mod threads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_queue::SegQueue;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use self::packets::*;
use self::rings::*;
use super::*;
use crate::device::{IoDevice, Sleep};
use crate::moderation::Policy;
use crate::scsi::Address;
use crate::testing::{Hold, MEMORY, MEMORY_END, MIB, Owner, bus, unit};
use crate::time::Time;

const DATA: u64 = MIB;
/// Logical units of the guest.
const LUNS: [u8; 2] = [0, 3];
/// Transaction IDs of requests are below this.
const CONTROL: u64 = 1 << 40;

/// The hypervisor's state: a message slot and event flags for each of four virtual processors.
#[derive(Default)]
struct Hypervisor {
    slots: [SegQueue<Vec<u8>>; 4],
    pending: [AtomicBool; 4],
    /// Event flags that are set, by processor.
    flags: [AtomicU64; 4],
    off: AtomicBool,
}

struct TestSynic(Arc<Hypervisor>);

impl Synic for TestSynic {
    fn processors(&self) -> Option<u32> {
        Some(4)
    }
    fn post_message(&mut self, vp: u32, payload: &[u8]) -> Posted {
        assert!(payload.len() <= 240);
        let index = vp as usize;
        match self.0.slots.get(index) {
            Some(slot) if !self.0.off.load(Ordering::Relaxed) => {
                if slot.is_empty() {
                    slot.push(payload.to_vec());
                    return Posted::Done;
                }
                self.0.pending[index].store(true, Ordering::Relaxed);
                Posted::Busy
            }
            _ => Posted::Off,
        }
    }
    fn signal_event(&mut self, vp: u32, flag: u16) {
        assert!((1..64).contains(&flag) && vp < 4, "flag {flag} of {vp}");
        self.0.flags[vp as usize].fetch_or(1 << flag, Ordering::SeqCst);
    }
}

struct Guest {
    device: Vmbus<Arc<GuestMemoryMmap>>,
    memory: Arc<GuestMemoryMmap>,
    hypervisor: Arc<Hypervisor>,
    hold: Hold,
    now: Time,
    /// Messages that were read from the slots, oldest first.
    messages: Vec<Vec<u8>>,
    /// The rings, by the number of the channel.
    rings: BTreeMap<u32, Rings>,
    pages: u64,
    transaction: u64,
    version: u32,
}

impl Owner for Guest {
    fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

fn words(message: &[u8]) -> Vec<u32> {
    message.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

impl Guest {
    /// A guest that has not sent any message, with disks at logical units 0 and 3.
    fn powered(config: Config) -> Self {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&MEMORY).unwrap());
        let (hypervisor, hold) = (Arc::new(Hypervisor::default()), Hold::default());
        let bus = bus(config.tasks, &LUNS.map(|lun| Address { target: 0, lun: lun.into() }), &hold);
        let device = Vmbus::new(memory.clone(), bus, Box::new(TestSynic(hypervisor.clone())), config);
        let (messages, rings) = (Vec::new(), BTreeMap::new());
        let now = Time(1 << 30);
        Self {
            device,
            memory,
            hypervisor,
            hold,
            now,
            messages,
            rings,
            pages: 3,
            transaction: 0,
            version: 0x5_0003,
        }
    }

    /// A guest whose driver is up.
    fn up(config: Config) -> Self {
        let mut guest = Self::powered(config);
        guest.bring_up();
        guest.clear_unit_attention(&LUNS);
        guest
    }

    fn new() -> Self {
        Self::up(config(Policy::Batch))
    }

    /// Post a message of these dwords.
    fn post(&mut self, message: &[u32]) -> HypercallStatus {
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_le_bytes()).collect();
        let connection = if self.version >= 0x5_0000 { 4 } else { 1 };
        self.device.on_message(connection, 1, &bytes, self.now)
    }

    /// Read the slots of all processors until they are empty.
    fn read_messages(&mut self) {
        for vp in 0..4 {
            while let Some(message) = self.hypervisor.slots[vp].pop() {
                self.messages.push(message);
                if self.hypervisor.pending[vp].swap(false, Ordering::Relaxed) {
                    self.device.on_end_of_message(vp as u32, self.now);
                }
            }
        }
    }

    /// All messages since the last call, as dwords.
    fn received(&mut self) -> Vec<Vec<u32>> {
        self.read_messages();
        std::mem::take(&mut self.messages).iter().map(|message| words(message)).collect()
    }

    /// The only message since the last call, which must have this type.
    #[track_caller]
    fn answer(&mut self, kind: u32) -> Vec<u32> {
        let mut received = self.received();
        assert_eq!(received.len(), 1, "{received:x?}");
        let message = received.remove(0);
        assert_eq!(message[..2], [kind, 0], "{message:x?}");
        message
    }

    /// Whether the version is supported.
    fn contact(&mut self, vp: u32) -> bool {
        let sint = if self.version >= 0x5_0000 { 2 } else { 0xffff_0000 };
        self.post(&[14, 0, self.version, vp, sint, 0, 0, 0, 0, 0]);
        self.answer(15)[2] & 0xff == 1
    }

    /// Number, connection and index of the channels that are offered.
    fn offers(&mut self) -> Vec<(u32, u32, u16)> {
        let received = self.received();
        let offers = received.iter().filter(|message| message[0] == 1);
        offers
            .map(|message| {
                assert_eq!((message.len(), message[2], message[6] != 0), (49, 0xba61_63d9, true));
                assert_eq!(message[47], 0x0001_00ff, "no monitor, a connection of its own");
                (message[46], message[48], message[45] as u16)
            })
            .collect()
    }

    /// Create a GPADL of a channel's rings. Returns the status.
    fn share(&mut self, relid: u32, gpadl: u32) -> u32 {
        let rings = Rings { relid, pages: self.pages, write: 0, read: 0, signal: false };
        let pages: Vec<u64> = (0..2 * self.pages).map(|number| rings.page(number) >> 12).collect();
        self.rings.insert(relid, rings);
        self.share_pages(relid, gpadl, &pages);
        let answer = self.answer(10);
        assert_eq!(answer[2..4], [relid, gpadl]);
        answer[4]
    }

    /// Send the messages of a GPADL.
    fn share_pages(&mut self, relid: u32, gpadl: u32, pages: &[u64]) {
        let split = |pages: &[u64]| -> Vec<u32> {
            pages.iter().flat_map(|page| [*page as u32, (*page >> 32) as u32]).collect()
        };
        let (first, more) = pages.split_at(pages.len().min(26));
        let count = pages.len() as u32;
        let mut message = vec![8, 0, relid, gpadl, (8 + 8 * count) | 1 << 16, count << 12, 0];
        message.extend(split(first));
        self.post(&message);
        for pages in more.chunks(28) {
            let mut message = vec![9, 0, 0, gpadl];
            message.extend(split(pages));
            self.post(&message);
        }
    }

    fn post_open(&mut self, relid: u32, gpadl: u32, vp: u32) {
        let mut message = vec![5, 0, relid, 77, gpadl, vp, self.pages as u32];
        message.resize(37, 0);
        self.post(&message);
    }

    /// Open a channel. Returns the status.
    fn open(&mut self, relid: u32, gpadl: u32, vp: u32) -> u32 {
        let memory = self.memory.clone();
        if let Some(rings) = self.rings.get_mut(&relid) {
            rings.clear(&memory);
        }
        self.post_open(relid, gpadl, vp);
        let answer = self.answer(6);
        assert_eq!(answer[2..4], [relid, 77]);
        answer[4]
    }

    /// Connect, and initialize the controller until it accepts requests.
    fn bring_up(&mut self) {
        assert!(self.contact(0));
        self.post(&[3, 0]);
        let offers = self.offers();
        assert_eq!(offers, [(1, 17, 0)]);
        self.open_primary();
    }

    fn open_primary(&mut self) {
        assert_eq!(self.share(1, 0xe1e10), 0);
        assert_eq!(self.open(1, 0xe1e10, 0), 0);
        for (operation, content) in [(7, 0), (9, 0x0602), (10, 0), (8, 0)] {
            assert_eq!(self.control(1, vstor(operation, content)), 0, "{operation}");
        }
    }

    /// Signal the host, if the rule for signals requires it.
    fn kick(&mut self, relid: u32) {
        let signal = self.rings.get_mut(&relid).is_some_and(|rings| std::mem::take(&mut rings.signal));
        if signal {
            self.device.on_doorbell(relid as usize - 1, self.now);
        }
    }

    /// Put a packet in and signal. False: the ring is full.
    fn put(&mut self, relid: u32, words: &[u64]) -> bool {
        let put = self.rings.get_mut(&relid).is_some_and(|rings| rings.put(&self.memory, words));
        self.kick(relid);
        put
    }

    /// Put reads in for both units in turn, each to a page of its own.
    #[track_caller]
    fn put_reads(&mut self, count: u64) {
        for n in 0..count {
            let read = transfer(false, LUNS[n as usize % 2], 0, 1);
            assert!(self.put(1, &transfer_at(n, read, DATA + n * 4096)));
        }
    }

    /// Take all packets of a channel, with or without a signal.
    fn take(&mut self, relid: u32) -> Vec<Received> {
        let Some(rings) = self.rings.get_mut(&relid) else { return Vec::new() };
        let mut taken = Vec::new();
        while let Some((received, next)) = rings.peek(&self.memory) {
            rings.release(&self.memory, next);
            taken.push(received);
        }
        self.kick(relid);
        taken
    }

    /// Let the device work until it would sleep. Returns the packets that it has posted to a channel.
    fn run_all(&mut self, relid: u32) -> Vec<Received> {
        let mut taken = Vec::new();
        for _ in 0..10_000 {
            self.device.on_completions(self.now);
            taken.extend(self.take(relid));
            if self.device.before_sleep(self.now) != Sleep::No {
                taken.extend(self.take(relid));
                return taken;
            }
        }
        panic!("never sleeps");
    }

    /// Run a packet while no other is outstanding.
    #[track_caller]
    fn run(&mut self, relid: u32, words: &[u64]) -> Received {
        assert!(self.put(relid, words));
        let taken = self.run_all(relid);
        assert_eq!(taken.len(), 1, "{taken:?}");
        assert_eq!((taken[0].transaction, taken[0].flags), (words[1], 0));
        assert_eq!(taken[0].payload.len(), 64, "answers have 80 bytes");
        taken[0].clone()
    }

    /// Run an operation that is not a SCSI request. Returns the status.
    #[track_caller]
    fn control(&mut self, relid: u32, payload: [u64; 8]) -> u32 {
        self.transaction += 1;
        let answer = self.run(relid, &in_band(CONTROL + self.transaction, payload));
        assert_eq!((answer.kind, answer.u32(0)), (0xb, 1));
        answer.u32(8)
    }

    fn clear_unit_attention(&mut self, luns: &[u8]) {
        for lun in luns {
            self.run(1, &in_band(1, srb(*lun, &[0; 6], 2, 0)));
        }
    }

    /// Check that the channel works: write sectors, and read them back to another buffer.
    #[track_caller]
    fn check_io(&mut self, relid: u32) {
        let data = self.fill(DATA, 4096, 0x5a);
        let write = transfer_at(5, transfer(true, 3, 8, 8), DATA);
        assert_eq!(self.run(relid, &write).end(), (1, 0, 4096));
        let read = transfer_at(6, transfer(false, 3, 8, 8), DATA + 0x2_0200);
        assert_eq!(self.run(relid, &read).end(), (1, 0, 4096));
        assert_eq!(self.bytes(DATA + 0x2_0200, 4096), data);
    }

    /// Event flags of a virtual processor since the last call.
    fn flags(&self, vp: usize) -> u64 {
        self.hypervisor.flags[vp].swap(0, Ordering::SeqCst)
    }
}

/// A bus with three sub-channels.
fn config(policy: Policy) -> Config {
    Config { coalescing: Coalescing::policy(policy), sub_channels: 3, ..Config::new(4) }
}

#[test]
fn a_guest_does_io() {
    for version in [0x3_0000, 0x4_0000, 0x4_0001, 0x5_0000, 0x5_0001, 0x5_0002, 0x5_0003] {
        let mut guest = Guest::powered(config(Policy::Batch));
        guest.version = version;
        guest.bring_up();
        guest.clear_unit_attention(&LUNS);
        guest.check_io(1);
        let stats = guest.device.stats();
        assert_eq!((stats.requests, stats.errors), (4, 2), "{stats:?}");
    }
}
