//! A disk's queue that keeps the memory of the requests in its care.
#![allow(unsafe_code, reason = "memory that a disk's queue uses while nobody else can reach it")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use disk_formats::{Completion, DiskQueue, IoBuf, IoError, Op, PushError, Request};

/// Memory, zeroed when it is made, aligned to pages for disks without a page cache.
#[derive(Debug)]
pub(super) struct Block {
    base: NonNull<u8>,
    layout: Layout,
}

const PAGE: usize = 4096;

// SAFETY: a plain allocation with one owner.
unsafe impl Send for Block {}

impl Block {
    /// `size` bytes, at least one; `None` where the host has no memory.
    pub(super) fn new(size: usize) -> Option<Self> {
        let layout = Layout::from_size_align(size.max(1), PAGE).ok()?;
        // SAFETY: the layout has a size that is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }

    /// Bytes.
    pub(super) fn size(&self) -> usize {
        self.layout.size()
    }

    /// Its content.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, initialised; only `Lender` gives its address away, and has it by value then.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.size()) }
    }

    /// Its content, to be changed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.size()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and dropped once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A request that ended, and the block that was lent.
pub(super) struct Returned {
    pub(super) number: u32,
    pub(super) result: Result<(), IoError>,
    pub(super) block: Option<Block>,
}

/// A queue that blocks are lent to, each with a request, until the request ends.
pub(super) struct Lender {
    /// First, so dropped first: it waits for the requests that use the blocks.
    queue: Box<dyn DiskQueue>,
    /// By the request's number: `None` while there is no such request, else its block, where it has one.
    lent: Box<[Option<Option<Block>>]>,
    completions: Vec<Completion>,
    pushed: bool,
}

impl Lender {
    /// Over a queue of this depth, which nobody has used.
    pub(super) fn new(queue: Box<dyn DiskQueue>, depth: usize) -> Self {
        Self {
            queue,
            lent: std::iter::repeat_with(|| None).take(depth).collect(),
            completions: Vec::with_capacity(depth),
            pushed: false,
        }
    }

    /// Start request `number`, below the depth and not in use, with `len` bytes of the block as its payload.
    ///
    /// # Errors
    /// [`PushError`] where the number is no such number or the queue is full; the block is lost.
    pub(super) fn push(
        &mut self,
        number: u32,
        op: Op,
        offset: u64,
        len: u64,
        block: Option<Block>,
    ) -> Result<(), PushError> {
        let place = self.lent.get_mut(number as usize).filter(|place| place.is_none());
        let place = place.ok_or(PushError::Full)?;
        let buf = block.as_ref().map(|block| {
            // SAFETY: the block is reachable by nobody until `reap` sees the request's end, or the queue has been
            // dropped, which waits for it.
            unsafe { IoBuf::new(block.base.as_ptr(), block.size()) }.slice(0, len as usize)
        });
        *place = Some(block);
        self.pushed = true;
        let request = Request { tag: number.into(), op, offset, len, bufs: buf.as_slice() };
        let taken = self.queue.push(&request);
        if taken.is_err() {
            *place = None;
        }
        taken
    }

    /// Hand the disk what was pushed.
    pub(super) fn submit(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.queue.submit();
        }
    }

    /// Append the requests that have ended.
    pub(super) fn reap(&mut self, ended: &mut Vec<Returned>) {
        self.queue.reap(&mut self.completions);
        for Completion { tag, result } in self.completions.drain(..) {
            let block = self.lent.get_mut(tag as usize).and_then(Option::take).flatten();
            ended.push(Returned { number: tag as u32, result, block });
        }
    }

    /// Requests that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Readable while requests may have ended.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }

    /// Block until a request has ended, or none is on its way.
    pub(super) fn wait(&mut self) {
        self.pushed = false;
        self.queue.wait();
    }
}
