//! A channel's rings: control page and data, guest to host first. Indices count bytes of the data.

use core::sync::atomic::{Ordering, fence};

use super::spec::*;
use crate::adapter::PAGE;
use crate::platform::DmaRegion;

/// Bytes after each packet.
const TRAILER: usize = 8;

/// Both rings of a channel.
#[derive(Debug)]
pub(super) struct Rings {
    memory: DmaRegion,
    /// Bytes of a ring's data.
    size: usize,
    /// Written, and shown to the host.
    write: usize,
    shown: usize,
    /// Read, and shown to the host.
    read: usize,
    masked: bool,
}

/// A packet from the host: its descriptor, and where its payload begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) kind: u64,
    pub(super) transaction: u64,
    payload: usize,
    end: usize,
}

impl Rings {
    /// Rings in zeroed memory of `2 * pages` pages.
    pub(super) fn new(memory: DmaRegion, pages: usize) -> Self {
        let mut rings = Self { memory, size: (pages - 1) * PAGE, write: 0, shown: 0, read: 0, masked: false };
        rings.clear();
        rings
    }

    pub(super) const fn memory(&self) -> &DmaRegion {
        &self.memory
    }

    /// Empty, with the host on neither side.
    pub(super) fn clear(&mut self) {
        for control in [0, self.incoming()] {
            for at in (0..PAGE).step_by(8) {
                self.memory.write(control + at, 0u64);
            }
            self.memory.write(control + FEATURES, FEATURE_PENDING_SIZE);
        }
        (self.write, self.shown, self.read, self.masked) = (0, 0, 0, false);
    }

    /// Offset of the second ring.
    const fn incoming(&self) -> usize {
        self.size + PAGE
    }

    /// Put a packet in; `false`: there is no space for it. `words`: descriptor and payload.
    pub(super) fn put(&mut self, words: impl Iterator<Item = u64>, len: usize) -> bool {
        let read = self.memory.read::<u32>(READ_INDEX) as usize % self.size;
        let used = (self.write + self.size - read) % self.size;
        if used + len + TRAILER >= self.size {
            return false;
        }
        let start = self.write;
        let mut at = start;
        let trailer = (start as u64) << 32;
        for word in words.chain(core::iter::once(trailer)) {
            self.memory.write(PAGE + at, word);
            at += 8;
            if at == self.size {
                at = 0;
            }
        }
        self.write = at;
        true
    }

    /// Show the host what was put in; whether it wants to be signalled.
    pub(super) fn publish(&mut self) -> bool {
        let before = self.shown;
        if before == self.write {
            return false;
        }
        fence(Ordering::Release);
        self.memory.write(WRITE_INDEX, self.write as u32);
        self.shown = self.write;
        fence(Ordering::SeqCst);
        self.memory.read::<u32>(INTERRUPT_MASK) == 0 && self.memory.read::<u32>(READ_INDEX) as usize == before
    }

    /// No signals from the host while it is drained.
    pub(super) fn mask(&mut self) {
        if !self.masked {
            self.masked = true;
            self.memory.write(self.incoming() + INTERRUPT_MASK, 1u32);
        }
    }

    /// The next packet; without one, the host signals the next again.
    pub(super) fn next(&mut self) -> Option<Packet> {
        let control = self.incoming();
        if !self.readable() {
            if !self.masked {
                return None;
            }
            self.masked = false;
            self.memory.write(control + INTERRUPT_MASK, 0u32);
            fence(Ordering::SeqCst);
            if !self.readable() {
                return None;
            }
            self.mask();
        }
        fence(Ordering::Acquire);
        let descriptor = self.word(self.read);
        let (payload, len) =
            ((descriptor >> 16 & 0xffff) as usize * 8, (descriptor >> 32 & 0xffff) as usize * 8);
        Some(Packet {
            kind: descriptor & 0xffff,
            transaction: self.word(self.read + 8),
            payload: self.read + payload,
            end: self.read + len + TRAILER,
        })
    }

    /// A word of a packet's payload.
    pub(super) fn payload(&self, packet: &Packet, index: usize) -> u64 {
        self.word(packet.payload + 8 * index)
    }

    /// The packet was read.
    pub(super) fn done(&mut self, packet: &Packet) {
        self.read = packet.end % self.size;
        fence(Ordering::Release);
        self.memory.write(self.incoming() + READ_INDEX, self.read as u32);
    }

    fn readable(&self) -> bool {
        self.memory.read::<u32>(self.incoming() + WRITE_INDEX) as usize != self.read
    }

    fn word(&self, at: usize) -> u64 {
        self.memory.read(self.incoming() + PAGE + at % self.size)
    }
}
