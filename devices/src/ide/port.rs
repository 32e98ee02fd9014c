//! The data port of a drive: the buffer of a block that guest and disk exchange by programmed I/O.

use paradisk_disk_formats::IoBuf;

use crate::scratch::Scratch;

/// The buffer of a block, and the guest's position in it.
///
/// The disk uses the memory only while no block is [open](Self::open).
pub(super) struct Port {
    memory: Scratch,
    at: usize,
    len: usize,
}

impl Port {
    /// A port for blocks of at most `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self { memory: Scratch::new(bytes), at: 0, len: 0 }
    }

    /// The buffer of a block, for the disk.
    pub(super) fn block(&self, len: usize) -> IoBuf {
        self.memory.buf(0, len)
    }

    /// Let the guest transfer a block of this length, cut to the buffer's.
    pub(super) fn open(&mut self, len: usize) {
        (self.at, self.len) = (0, self.memory.buf(0, len).len());
    }

    /// Let the guest transfer nothing.
    pub(super) fn close(&mut self) {
        (self.at, self.len) = (0, 0);
    }

    /// Whether the guest has transferred the whole block.
    pub(super) const fn is_done(&self) -> bool {
        self.at >= self.len
    }

    /// Copy to the guest. Returns the number of bytes.
    pub(super) fn read(&mut self, data: &mut [u8]) -> usize {
        let moved = self.left().read(data);
        self.at += moved;
        moved
    }

    /// Copy from the guest. Returns the number of bytes.
    pub(super) fn write(&mut self, data: &[u8]) -> usize {
        let moved = self.left().write(data);
        self.at += moved;
        moved
    }

    /// Fill the block with data that do not come from the disk.
    pub(super) fn fill(&self, data: &[u8]) {
        self.memory.buf(0, data.len()).write(data);
    }

    fn left(&self) -> IoBuf {
        self.memory.buf(self.at, self.len - self.at)
    }
}
