//! A guest's half of a channel's rings: indices, masks, packets.

use std::sync::atomic::Ordering;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Address of the rings of the first channel. Each channel has 16 pages.
pub(super) const RINGS: u64 = 0x1_0000;
pub(super) const RINGS_LEN: u64 = 0x1_0000;
/// Offsets in a ring's control page.
pub(super) const WRITE: u64 = 0;
pub(super) const READ: u64 = 4;
pub(super) const MASK: u64 = 8;
pub(super) const PENDING: u64 = 12;
pub(super) const FEATURES: u64 = 64;

/// The guest's side of a channel's rings. `pages`: pages of each ring, including the control page.
#[derive(Clone, Debug)]
pub(super) struct Rings {
    pub(super) relid: u32,
    pub(super) pages: u64,
    pub(super) write: u32,
    pub(super) read: u32,
    /// The guest must signal the host.
    pub(super) signal: bool,
}

/// A packet of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) transaction: u64,
    pub(super) payload: Vec<u8>,
}

impl Received {
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// SRB status, SCSI status and bytes of an answer to a request.
    pub(super) fn end(&self) -> (u8, u8, u32) {
        assert_eq!((self.kind, self.payload.len(), self.u32(0)), (0xb, 64, 1), "{self:?}");
        (self.payload[14], self.payload[15], self.u32(24))
    }
}

impl Rings {
    pub(super) fn page(&self, number: u64) -> u64 {
        // The pages of a ring are not in ascending order.
        RINGS + u64::from(self.relid - 1) * RINGS_LEN + (number ^ 1) * 4096
    }

    /// Address of an offset in a ring; ring 0 is the one that the guest writes.
    pub(super) fn at(&self, ring: u64, offset: u32) -> u64 {
        let page = u64::from(offset) / 4096;
        self.page(ring * self.pages + 1 + page) + u64::from(offset) % 4096
    }

    pub(super) fn control(&self, ring: u64, field: u64) -> u64 {
        self.page(ring * self.pages) + field
    }

    pub(super) const fn size(&self) -> u32 {
        (self.pages as u32 - 1) * 4096
    }

    pub(super) fn get(&self, memory: &GuestMemoryMmap, ring: u64, field: u64) -> u32 {
        memory.load(GuestAddress(self.control(ring, field)), Ordering::SeqCst).unwrap()
    }

    pub(super) fn set(&self, memory: &GuestMemoryMmap, ring: u64, field: u64, value: u32) {
        memory.store(value, GuestAddress(self.control(ring, field)), Ordering::SeqCst).unwrap();
    }

    /// Zero both control pages, as a driver does before it opens.
    pub(super) fn clear(&mut self, memory: &GuestMemoryMmap) {
        for ring in [0, 1] {
            memory.write_slice(&[0; 4096], GuestAddress(self.control(ring, 0))).unwrap();
            self.set(memory, ring, FEATURES, 1);
        }
        (self.write, self.read) = (0, 0);
    }

    /// Put a packet in; `words` includes its header. False: there is no free space.
    pub(super) fn put(&mut self, memory: &GuestMemoryMmap, words: &[u64]) -> bool {
        let read = self.get(memory, 0, READ) % self.size();
        let used = (self.write + self.size() - read) % self.size();
        if used + words.len() as u32 * 8 + 8 >= self.size() {
            return false;
        }
        let before = self.write;
        for word in words.iter().copied().chain([u64::from(before) << 32]) {
            memory.write_obj(word.to_le(), GuestAddress(self.at(0, self.write))).unwrap();
            self.write = (self.write + 8) % self.size();
        }
        self.set(memory, 0, WRITE, self.write);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.signal |= self.get(memory, 0, MASK) == 0 && self.get(memory, 0, READ) == before;
        true
    }

    /// The next packet, and the read index after it. Its space is not freed yet.
    pub(super) fn peek(&self, memory: &GuestMemoryMmap) -> Option<(Received, u32)> {
        if self.get(memory, 1, WRITE) == self.read {
            return None;
        }
        let word = |offset: u32| -> u64 {
            let at = (self.read + offset) % self.size();
            u64::from_le(memory.read_obj(GuestAddress(self.at(1, at))).unwrap())
        };
        let header = word(0);
        let (offset, len) = ((header >> 16 & 0xffff) as u32 * 8, (header >> 32 & 0xffff) as u32 * 8);
        assert_eq!(word(len), u64::from(self.read) << 32, "the trailer says where the packet begins");
        let payload = (offset..len).step_by(8).flat_map(|at| word(at).to_le_bytes()).collect();
        let flags = (header >> 48) as u16;
        let received = Received { kind: header as u16, flags, transaction: word(8), payload };
        Some((received, (self.read + len + 8) % self.size()))
    }

    /// Free space in the host's ring. The host may wait for it.
    pub(super) fn release(&mut self, memory: &GuestMemoryMmap, next: u32) {
        let free = |read: u32, write: u32| (read + self.size() - write - 1) % self.size() + 1;
        let before = free(self.read, self.get(memory, 1, WRITE));
        self.set(memory, 1, READ, next);
        std::sync::atomic::fence(Ordering::SeqCst);
        let pending = self.get(memory, 1, PENDING);
        let after = free(next, self.get(memory, 1, WRITE));
        self.signal |= pending != 0 && before <= pending && after > pending;
        self.read = next;
    }
}
