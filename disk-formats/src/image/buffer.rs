//! A buffer that direct I/O can use without a copy.

/// Alignment of the memory: a page, which suffices on every host.
const ALIGNMENT: usize = 4096;

/// A page-aligned byte buffer.
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

    /// The first `len` bytes, or all if the buffer is shorter.
    pub(super) fn first(&mut self, len: u64) -> &mut [u8] {
        let len = usize::try_from(len).map_or(self.len, |len| len.min(self.len));
        &mut self.memory[self.start..self.start + len]
    }
}
