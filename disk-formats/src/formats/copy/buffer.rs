//! Buffers that direct I/O can use without a copy, and the zeros in them.

use std::ops::Range;

/// Bytes that are copied or compared at once. Chunks of a disk begin at multiples of it.
pub(crate) const CHUNK: u64 = 2 << 20;

/// Alignment of the memory: a page, which suffices on every host.
const ALIGNMENT: usize = 4096;

/// A page-aligned byte buffer.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, len }
    }

    /// The first `len` bytes, or all if the buffer is shorter.
    pub(crate) fn first(&mut self, len: u64) -> &mut [u8] {
        let len = usize::try_from(len).map_or(self.len, |len| len.min(self.len));
        &mut self.memory[self.start..self.start + len]
    }
}

/// Whether all bytes are zeros.
pub(crate) fn all_zeros(data: &[u8]) -> bool {
    // 256 bytes: long enough for vector instructions, short enough to stop early.
    data.chunks(256).all(|step| step.iter().fold(0, |seen, byte| seen | byte) == 0)
}

/// The parts of `data` that are not zeros, in units of `grain` bytes, adjacent ones merged.
pub(crate) fn filled(data: &[u8], grain: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let skipped =
            data.get(at..)?.chunks(grain).take_while(|part| all_zeros(part)).map(<[u8]>::len).sum::<usize>();
        let start = at + skipped;
        let len = data
            .get(start..)?
            .chunks(grain)
            .take_while(|part| !all_zeros(part))
            .map(<[u8]>::len)
            .sum::<usize>();
        at = start + len;
        (len > 0).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_parts_in_grains() {
        let parts = |data: &[u8]| filled(data, 4).collect::<Vec<_>>();
        assert!(parts(&[]).is_empty());
        assert!(parts(&[0; 9]).is_empty());
        assert_eq!(parts(&[1; 9]), [Range { start: 0, end: 9 }]);
        assert_eq!(parts(&[0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]), [0..8, 16..17]);
    }

    #[test]
    fn one_byte_anywhere_is_seen() {
        let mut data = vec![0; 1000];
        assert!(all_zeros(&data));
        for at in 0..data.len() {
            data[at] = 0x80;
            assert!(!all_zeros(&data), "{at}");
            data[at] = 0;
        }
    }
}
