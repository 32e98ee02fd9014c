//! Bounce buffers: aligned memory for requests whose own buffers direct I/O cannot use.

use rustix::io::Errno;

use super::slot::for_each_part;
use crate::host::iobuf::IoBuf;
use crate::host::memory::Memory;

/// Bytes of a bounce buffer.
pub(super) const UNIT: u64 = 128 << 10;
/// Buffers of a queue: 2 MiB, given by the host as they are first used.
const BUFFERS: u32 = 16;

/// A bounded pool. Requests wait in the queue while it is empty.
#[derive(Debug)]
pub(super) struct Pool {
    memory: Memory,
    free: Vec<u32>,
}

impl Pool {
    pub(super) fn new() -> Result<Self, Errno> {
        let memory = Memory::new((UNIT * u64::from(BUFFERS)) as usize)?;
        Ok(Self { memory, free: (0..BUFFERS).collect() })
    }

    /// A buffer, cut to `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Option<(u32, IoBuf)> {
        let index = self.free.pop()?;
        Some((index, self.buf(index, len)))
    }

    pub(super) fn buf(&self, index: u32, len: u64) -> IoBuf {
        self.memory.buf((u64::from(index) * UNIT) as usize, len.min(UNIT) as usize)
    }

    pub(super) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }
}

/// Copy `[start, start + inner.len())` of `bufs` into `inner`.
pub(super) fn gather(bufs: &[IoBuf], start: u64, inner: IoBuf) {
    let mut done = 0;
    for_each_part(bufs, start, inner.len() as u64, |part| {
        done += part.copy_to(&inner.slice(done, inner.len()));
    });
}

/// Copy `inner` to `[start, start + inner.len())` of `bufs`.
pub(super) fn scatter(inner: IoBuf, bufs: &[IoBuf], start: u64) {
    let mut done = 0;
    for_each_part(bufs, start, inner.len() as u64, |part| {
        done += inner.slice(done, inner.len()).copy_to(&part);
    });
}
