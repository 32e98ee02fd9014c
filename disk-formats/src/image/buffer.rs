//! Memory that direct I/O takes without a copy.

/// Alignment of the memory: a page, which every host takes.
const ALIGNMENT: usize = 4096;

/// Bytes that begin at a page.
pub(super) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, len }
    }

    /// The first `len` bytes, or fewer where there are fewer.
    pub(super) fn first(&mut self, len: u64) -> &mut [u8] {
        let len = usize::try_from(len).map_or(self.len, |len| len.min(self.len));
        &mut self.memory[self.start..self.start + len]
    }
}
