//! The data port of a drive: a block of data between guest and disk that passes by programmed I/O.

use paradisk_disk_formats::IoBuf;

use crate::scratch::Scratch;

/// Memory of a block, and how far the guest is in it.
///
/// The disk uses the memory only while no block is [open](Self::open).
pub(super) struct Port {
    memory: Scratch,
    at: usize,
    len: usize,
}

impl Port {
    /// For blocks of so many bytes at the most.
    pub(super) fn new(bytes: usize) -> Self {
        Self { memory: Scratch::new(bytes), at: 0, len: 0 }
    }

    /// Memory of a block, for the disk.
    pub(super) fn block(&self, len: usize) -> IoBuf {
        self.memory.buf(0, len)
    }

    /// The guest is to move a block of this length, which is no more than there is memory.
    pub(super) fn open(&mut self, len: usize) {
        (self.at, self.len) = (0, self.memory.buf(0, len).len());
    }

    /// The guest is to move nothing.
    pub(super) fn close(&mut self) {
        (self.at, self.len) = (0, 0);
    }

    /// Whether the guest has moved all of it.
    pub(super) const fn is_done(&self) -> bool {
        self.at >= self.len
    }

    /// Move to the guest; how much.
    pub(super) fn read(&mut self, data: &mut [u8]) -> usize {
        let moved = self.left().read(data);
        self.at += moved;
        moved
    }

    /// Move from the guest; how much.
    pub(super) fn write(&mut self, data: &[u8]) -> usize {
        let moved = self.left().write(data);
        self.at += moved;
        moved
    }

    /// Fill a block with data that is not of the disk.
    pub(super) fn fill(&self, data: &[u8]) {
        self.memory.buf(0, data.len()).write(data);
    }

    fn left(&self) -> IoBuf {
        self.memory.buf(self.at, self.len - self.at)
    }
}
