//! The disk under test, and the caller's side: guest-like memory, and a queue that executes one request or one batch at a time.

use std::any::Any;
use std::sync::Arc;

use crate::contract::disk::Disk;
use crate::contract::error::IoError;
use crate::contract::iobuf::IoBuf;
use crate::contract::queue::{Completion, DiskQueue, EngineKind, Op, QueueConfig, Request};
use crate::host::memory::HostMemory;

/// Guest-like memory, with buffers at any address.
#[derive(Debug)]
pub struct Guest(HostMemory);

impl Guest {
    /// At least `len` bytes of zeros, page-aligned.
    ///
    /// # Panics
    /// If the host has no memory.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(HostMemory::new(len).expect("memory"))
    }

    /// A buffer at byte `at`. It must not be in flight when the memory is dropped.
    #[must_use]
    pub fn buf(&self, at: usize, len: usize) -> IoBuf {
        self.0.buf(at, len)
    }

    /// A copy of `len` bytes at byte `at`.
    #[must_use]
    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.buf(at, len).read(&mut data);
        data
    }

    /// Store `data` at byte `at`.
    pub fn put(&self, at: usize, data: &[u8]) {
        self.buf(at, data.len()).write(data);
    }
}

/// A queue, and its completions.
pub struct Driver {
    /// The queue.
    pub queue: Box<dyn DiskQueue>,
    /// Completed requests.
    pub done: Vec<Completion>,
}

impl Driver {
    /// A queue of the given depth.
    ///
    /// # Panics
    /// If the queue cannot be created.
    #[must_use]
    pub fn new(disk: &dyn Disk, engine: EngineKind, depth: u32) -> Self {
        let queue = disk.queue(&QueueConfig { depth, engine }).expect("a queue");
        Self { queue, done: Vec::new() }
    }

    /// Execute one request. Returns its result.
    ///
    /// # Errors
    /// The request's error.
    ///
    /// # Panics
    /// If the queue loses the request.
    pub fn run(&mut self, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> Result<(), IoError> {
        self.drain();
        self.done.clear();
        self.queue
            .push(&Request { tag: 0x7A6, op, offset, len, bufs })
            .expect("an empty queue has a free slot");
        self.drain();
        assert_eq!(self.done.len(), 1, "one request, one completion");
        assert_eq!(self.done[0].tag, 0x7A6);
        self.done[0].result
    }

    /// Read through one aligned buffer.
    ///
    /// # Panics
    /// If the read fails.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let guest = Guest::new(len);
        self.run(Op::Read, offset, len as u64, &[guest.buf(0, len)]).expect("a good read");
        guest.get(0, len)
    }

    /// Write through one aligned buffer.
    ///
    /// # Panics
    /// If the write fails.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let guest = Guest::new(data.len());
        guest.put(0, data);
        let write = Op::Write { fua: false };
        self.run(write, offset, data.len() as u64, &[guest.buf(0, data.len())]).expect("a good write");
    }

    /// Wait for all requests in flight.
    ///
    /// # Panics
    /// If `wait` returns although requests are in flight and none has completed.
    pub fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            self.queue.wait();
            let before = self.done.len();
            self.queue.reap(&mut self.done);
            assert!(self.done.len() > before, "wait returned and nothing had ended");
        }
    }
}

/// A random number generator with a seed (xorshift64*), so that each run is the same. The states of all crash tests follow from
/// its numbers, so it does not change with a release of another crate.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

/// Reads bytes of the disk from the medium, bypassing the disk: by a second open of the file, for example.
pub type Peek = Box<dyn Fn(u64, &mut [u8])>;

/// A disk created for one check.
pub struct Fresh {
    /// The disk: at least 8 MiB, reading as zeros, writable.
    pub disk: Arc<dyn Disk>,
    /// Access to the medium, which sees what was flushed, if there is such access.
    pub peek: Option<Peek>,
    /// Resources that must live as long as the disk (a temporary file, a loop device). Dropped after it.
    pub hold: Box<dyn Any>,
}

/// The disk under test, and the expectations.
pub struct Suite<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// Creates a fresh disk.
    pub make: &'a dyn Fn() -> Fresh,
    /// Creates a read-only disk with any content.
    pub make_read_only: Option<&'a dyn Fn() -> Fresh>,
    /// The engines to test, and the name that a queue must report for each.
    pub engines: &'a [(EngineKind, &'a str)],
    /// Written data can be read back (true except for the null disk).
    pub keeps_data: bool,
}
