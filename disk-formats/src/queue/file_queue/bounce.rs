//! Bounce buffers: aligned memory for requests whose buffers direct I/O cannot use.
//!
//! A piece of such a request has a bounce buffer from its start to its end. The pool is bounded: while it is empty,
//! pieces wait in the queue.

use rustix::io::Errno;

use super::slot::Piece;
use crate::contract::info::DiskInfo;
use crate::contract::iobuf::{IoBuf, for_each_part};
use crate::host::memory::HostMemory;

/// Size of a bounce buffer in bytes.
pub(super) const UNIT: u64 = 128 << 10;
/// Bounce buffers of a queue: 2 MiB, which the host allocates at first use.
const BUFFERS: u32 = 16;

/// The alignment that direct I/O requires of buffers, and the pool for requests whose buffers do not have it.
#[derive(Debug)]
pub(super) struct Bounce {
    /// `None` if the disk needs no bounce buffers.
    pool: Option<Pool>,
    /// Bits of buffer addresses that must be zero.
    address_mask: usize,
    /// Bits of buffer lengths that must be zero; 0 if the disk needs no bounce buffers.
    length_mask: usize,
    /// Number of requests that went through bounce buffers.
    pub(super) requests: u64,
}

#[derive(Debug)]
struct Pool {
    memory: HostMemory,
    free: Vec<u32>,
}

impl Bounce {
    /// For files whose units of direct I/O have `unit` bytes.
    ///
    /// # Errors
    /// The host's, if it refuses the memory.
    pub(super) fn new(info: &DiskInfo, unit: u64) -> Result<Self, Errno> {
        let bounces = info.buffer_alignment > 1;
        let unit = unit.max(u64::from(info.logical_sector.bytes())) as usize;
        Ok(Self {
            pool: if bounces { Some(Pool::new()?) } else { None },
            address_mask: (info.buffer_alignment as usize).saturating_sub(1),
            length_mask: if bounces { unit - 1 } else { 0 },
            requests: 0,
        })
    }

    /// Whether the buffer's address is aligned.
    #[inline]
    pub(super) fn address_fits(&self, buf: &IoBuf) -> bool {
        buf.addr().addr() & self.address_mask == 0
    }

    /// Whether the buffer's address and length are aligned, as one of several buffers needs.
    #[inline]
    pub(super) fn fits(&self, buf: &IoBuf) -> bool {
        self.address_fits(buf) && buf.len() & self.length_mask == 0
    }

    /// Assign a bounce buffer to the piece, and fill it from `bufs` for a write; `false` if the pool is empty.
    pub(super) fn assign(&mut self, piece: &mut Piece, bufs: &[IoBuf], writes: bool) -> bool {
        debug_assert!(self.pool.is_some(), "all buffers of this disk are aligned");
        let Some(pool) = &mut self.pool else { return false };
        let Some(number) = pool.free.pop() else { return false };
        piece.bounce = Some(number);
        piece.buf = pool.buf(number, piece.len);
        if writes {
            gather(bufs, piece.start, piece.buf);
        }
        true
    }

    /// Return the piece's bounce buffer to the pool. After a read its content is first copied to `bufs`. `false`: the piece has no bounce
    /// buffer.
    pub(super) fn release(&mut self, piece: &mut Piece, bufs: &[IoBuf], read: bool) -> bool {
        let (Some(pool), Some(number)) = (&mut self.pool, piece.bounce.take()) else { return false };
        if read {
            scatter(pool.buf(number, piece.total), bufs, piece.start);
        }
        pool.free.push(number);
        true
    }

    /// Return the piece's bounce buffer, if any, to the pool. Its content is dropped.
    pub(super) fn reclaim(&mut self, piece: &mut Piece) {
        if let Some(pool) = &mut self.pool {
            pool.free.extend(piece.bounce.take());
        }
    }
}

impl Pool {
    fn new() -> Result<Self, Errno> {
        let memory = HostMemory::new((UNIT * u64::from(BUFFERS)) as usize).map_err(|_| Errno::NOMEM)?;
        Ok(Self { memory, free: (0..BUFFERS).collect() })
    }

    fn buf(&self, number: u32, len: u64) -> IoBuf {
        self.memory.buf((u64::from(number) * UNIT) as usize, len.min(UNIT) as usize)
    }
}

/// Copy `[start, start + inner.len())` of `bufs` into `inner`.
fn gather(bufs: &[IoBuf], start: u64, inner: IoBuf) {
    let mut done = 0;
    for_each_part(bufs, start, inner.len() as u64, |part| {
        done += part.copy_to(&inner.slice(done, inner.len()));
    });
}

/// Copy `inner` to `[start, start + inner.len())` of `bufs`.
fn scatter(inner: IoBuf, bufs: &[IoBuf], start: u64) {
    let mut done = 0;
    for_each_part(bufs, start, inner.len() as u64, |part| {
        done += inner.slice(done, inner.len()).copy_to(&part);
    });
}
