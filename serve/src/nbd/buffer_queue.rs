//! A disk's queue that owns the buffers of the requests in flight, so that nothing else can reach their memory.
#![allow(unsafe_code, reason = "memory that a disk's queue uses while nothing else can reach it")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use paradisk_disk_formats::{Completion, DiskQueue, IoBuf, IoError, Op, Request};

/// Page-aligned memory (for direct I/O), zeroed when it is allocated.
#[derive(Debug)]
pub(super) struct Buffer {
    base: NonNull<u8>,
    layout: Layout,
}

const PAGE: usize = 4096;

// SAFETY: a plain allocation with one owner.
unsafe impl Send for Buffer {}

impl Buffer {
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
        // SAFETY: allocated with this size, initialised; only `BufferQueue` passes its address on, and owns it then.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.size()) }
    }

    /// Its content, mutable.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and dropped once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A request that has completed, and its buffer.
pub(super) struct Completed {
    pub(super) number: u32,
    pub(super) result: Result<(), IoError>,
    pub(super) buffer: Option<Buffer>,
}

/// Takes a buffer with a request, and returns it when the request has completed.
pub(super) struct BufferQueue {
    /// The first field, so dropped first: that waits for the requests that use the buffers.
    queue: Box<dyn DiskQueue>,
    /// By the request's number. Outer `None`: no such request is in flight. Inner `None`: the request has no buffer.
    in_use: Box<[Option<Option<Buffer>>]>,
    completions: Vec<Completion>,
    pushed: bool,
}

impl BufferQueue {
    /// Over an unused queue of this depth.
    pub(super) fn new(queue: Box<dyn DiskQueue>, depth: usize) -> Self {
        Self {
            queue,
            in_use: std::iter::repeat_with(|| None).take(depth).collect(),
            completions: Vec::with_capacity(depth),
            pushed: false,
        }
    }

    /// Start request `number`, below the depth and not in use, with `len` bytes of the buffer from `at` as its payload.
    ///
    /// # Errors
    /// The buffer, for an invalid number or a full queue.
    pub(super) fn push(
        &mut self,
        number: u32,
        op: Op,
        offset: u64,
        len: u64,
        buffer: Option<Buffer>,
        at: usize,
    ) -> Result<(), Option<Buffer>> {
        let Some(place) = self.in_use.get_mut(number as usize).filter(|place| place.is_none()) else {
            return Err(buffer);
        };
        let buf = buffer.as_ref().map(|buffer| {
            // SAFETY: nothing else reaches the buffer until `reap` sees the completion, or the queue has been dropped,
            // which waits for it.
            unsafe { IoBuf::new(buffer.base.as_ptr(), buffer.size()) }.slice(at, len as usize)
        });
        *place = Some(buffer);
        let request = Request { tag: number.into(), op, offset, len, bufs: buf.as_slice() };
        if self.queue.push(&request).is_err() {
            // A refused request is not in the queue.
            return Err(place.take().flatten());
        }
        self.pushed = true;
        Ok(())
    }

    /// Submit the requests that were pushed.
    pub(super) fn submit(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.queue.submit();
        }
    }

    /// Append the requests that have completed.
    pub(super) fn reap(&mut self, ended: &mut Vec<Completed>) {
        self.queue.reap(&mut self.completions);
        for Completion { tag, result } in self.completions.drain(..) {
            // A tag that was never pushed is no number.
            let number = u32::try_from(tag).unwrap_or(u32::MAX);
            let buffer = self.in_use.get_mut(number as usize).and_then(Option::take).flatten();
            ended.push(Completed { number, result, buffer });
        }
    }

    /// Requests that have not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Readable while requests may have completed.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }
}
