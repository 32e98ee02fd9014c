//! A driver of the virtio transport and of its rings, right or wrong.

use paradisk_devices::virtio::spec::{
    DEVICE_STATUS, DRIVER_FEATURE, DRIVER_FEATURE_SELECT, QUEUE_DESC, QUEUE_DEVICE, QUEUE_DRIVER,
    QUEUE_ENABLE, QUEUE_SELECT, QUEUE_SIZE,
};

use crate::common::device::Guest;
use crate::common::input::Input;

/// Where structures are in the BAR, and how far doorbells are from each other.
const DEVICE_CFG: u64 = 0x2000;
const NOTIFY: u64 = 0x3000;
const NOTIFY_STEP: u64 = 4;

const SIZE: u16 = 16;
/// Rings of queue `n` begin at `RINGS + n * STEP`: descriptors, available ring, used ring, and a table of indirect descriptors.
const RINGS: u64 = 0x1000;
const STEP: u64 = 0x1000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const TABLE: u64 = 0xc00;
/// Headers and answers of requests, then data, are behind them.
pub(crate) const HEADERS: u64 = 0x8000;
const DATA: u64 = 0x1_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A piece of a chain: address, bytes, and whether the device writes it.
pub(crate) type Piece = (u64, u32, bool);

pub(crate) struct Driver {
    pub(crate) guest: Guest,
    queues: u16,
    /// Next entry of each queue's available ring, and next descriptor.
    next: [(u16, u16); 8],
}

impl Driver {
    pub(crate) fn new(guest: Guest, queues: u16) -> Self {
        Self { guest, queues, next: [(0, 0); 8] }
    }

    fn register(&mut self, register: u64, len: usize, value: u64) {
        self.guest.write(0, register, &value.to_le_bytes()[..len]);
    }

    /// What a driver does (VIRTIO 1.2, 3.1.1), with these features in the low 32 bits.
    pub(crate) fn up(&mut self, features: u32) {
        self.register(DEVICE_STATUS, 1, 0);
        self.register(DEVICE_STATUS, 1, 3);
        for (half, features) in [(0, features), (1, 1)] {
            self.register(DRIVER_FEATURE_SELECT, 4, half);
            self.register(DRIVER_FEATURE, 4, features.into());
        }
        self.register(DEVICE_STATUS, 1, 11);
        for queue in 0..self.queues {
            let at = RINGS + STEP * u64::from(queue);
            self.guest.poke(at, &[0; STEP as usize]);
            self.next[usize::from(queue)] = (0, 0);
            self.register(QUEUE_SELECT, 2, queue.into());
            self.register(QUEUE_SIZE, 2, SIZE.into());
            for (register, offset) in [(QUEUE_DESC, 0), (QUEUE_DRIVER, AVAILABLE), (QUEUE_DEVICE, USED)] {
                self.register(register, 8, at + offset);
            }
            self.register(QUEUE_ENABLE, 2, 1);
        }
        self.register(DEVICE_STATUS, 1, 15);
    }

    fn descriptor(&self, at: u64, piece: Piece, flags: u16, next: u16) {
        let (address, len, write) = piece;
        let flags = flags | if write { WRITE } else { 0 };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.guest.poke(at, &bytes);
    }

    /// Make a chain available, through a table if `indirect`.
    pub(crate) fn put(&mut self, queue: u16, pieces: &[Piece], indirect: bool) {
        let queue = queue % self.queues;
        let rings = RINGS + STEP * u64::from(queue);
        let (available, first) = self.next[usize::from(queue)];
        let last = |n: usize| if n + 1 == pieces.len() { 0 } else { NEXT };
        let mut used = pieces.len() as u16;
        if indirect {
            for (n, piece) in pieces.iter().enumerate() {
                self.descriptor(rings + TABLE + 16 * n as u64, *piece, last(n), n as u16 + 1);
            }
            let table = (rings + TABLE, 16 * pieces.len() as u32, false);
            self.descriptor(rings + 16 * u64::from(first), table, INDIRECT, 0);
            used = 1;
        } else {
            for (n, piece) in pieces.iter().enumerate() {
                let slot = |n: usize| (first + n as u16) % SIZE;
                self.descriptor(rings + 16 * u64::from(slot(n)), *piece, last(n), slot(n + 1));
            }
        }
        self.guest.poke(rings + AVAILABLE + 4 + 2 * u64::from(available % SIZE), &first.to_le_bytes());
        let available = available.wrapping_add(1);
        self.guest.poke(rings + AVAILABLE + 2, &available.to_le_bytes());
        self.next[usize::from(queue)] = (available, (first + used) % SIZE);
    }

    pub(crate) fn kick(&mut self, queue: u16) {
        self.register(NOTIFY + NOTIFY_STEP * u64::from(queue % self.queues), 2, queue.into());
    }

    pub(crate) fn configure(&mut self, offset: u8, value: u16) {
        self.register(DEVICE_CFG + u64::from(offset % 64), 4, value.into());
    }

    /// What a driver of any kind does; `code` says what.
    pub(crate) fn act(&mut self, code: u8, input: &mut Input<'_>) {
        let queue = u16::from(code >> 4);
        match code & 7 {
            0 => {
                // Descriptors, rings and headers are anything.
                self.guest.poke_from(RINGS + (u64::from(input.u16()) << 1), input);
            }
            1 if code & 0x10 != 0 => {
                let (offset, value) = (input.u8(), input.u16());
                self.configure(offset, value);
            }
            1 => {
                let (place, value) = (input.u16(), input.u16());
                let width = 1 << (code >> 6);
                let offset = if code & 0x20 != 0 { place % 64 } else { place };
                self.guest.write(0, offset.into(), &u64::from(value).to_le_bytes()[..width]);
            }
            2 => {
                let (offset, mut data) = (input.u16(), [0; 8]);
                self.guest.device.bar_read(0, offset.into(), &mut data[..1 << (code >> 6)], self.guest.now);
            }
            3 => self.kick(queue),
            4 => self.guest.turn(),
            5 if code & 0x80 != 0 => self.guest.plug(input.u8()),
            5 => self.guest.own(input.u8()),
            6 => self.guest.behave(code),
            _ => {
                // Indirect descriptors, event indices, and what each kind has.
                let features = u32::from(input.u16()) | u32::from(code >> 4) << 28;
                self.up(features);
            }
        }
    }
}

/// Pieces of data, mostly whole sectors.
pub(crate) fn data(input: &mut Input<'_>, count: u8, write: bool) -> Vec<Piece> {
    let piece = |_| {
        let how = input.u8();
        let address = DATA + (u64::from(input.u16()) << 2);
        let len = if how & 0x80 == 0 { 512 * u32::from(how & 7) } else { u32::from(input.u16()) };
        (address, len, write ^ (how & 0x78 == 0x78))
    };
    (0..count).map(piece).collect()
}
