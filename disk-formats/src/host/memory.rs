//! Anonymous memory for RAM disks, bounce buffers, and callers without a guest.
#![allow(
    unsafe_code,
    reason = "maps memory that guests' buffers are copied to and from, never seen as a slice"
)]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::contract::iobuf::IoBuf;

/// Page-aligned zeroed memory, which the host allocates at first access. It is accessed only as [`IoBuf`]s, never as a
/// slice, because requests may be using it.
#[derive(Debug)]
pub struct HostMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: this value owns the mapping, and accesses it only by raw copies through `IoBuf`. Several threads may copy at
// once: then the content of the bytes is unspecified, as on any shared medium.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `len` bytes, rounded up to whole pages; at least one page.
    ///
    /// # Errors
    /// The host's, if it has no memory.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// The part `[offset, offset + len)`, clamped to the end of the memory.
    pub(crate) fn buf(&self, offset: usize, len: usize) -> IoBuf {
        // SAFETY: the whole mapping is readable and writable for the life of `self`. Users of the result keep `self`
        // alive: the RAM disk copies at once, and the bounce pool outlives the requests of its queue.
        unsafe { IoBuf::new(self.base.as_ptr(), self.len) }.slice(offset, len)
    }

    /// As `buf`, for the requests of a caller.
    ///
    /// # Safety
    /// The memory must not be dropped before every request that carries the buffer has been reaped or its queue has
    /// been dropped. The buffer must not be used after the memory is dropped.
    #[must_use]
    pub unsafe fn piece(&self, offset: usize, len: usize) -> IoBuf {
        self.buf(offset, len)
    }

    /// Make `[offset, offset + len)` read as zeros, and return whole pages to the host.
    pub(crate) fn discard(&self, offset: usize, len: usize) {
        let page = page_size();
        let start = offset.min(self.len);
        let end = offset.saturating_add(len).min(self.len);
        let first = start.next_multiple_of(page).min(end);
        let last = (end - end % page).max(first);
        self.buf(start, first - start).zero();
        if last > first {
            // SAFETY: whole pages inside the private anonymous mapping; they read as zeros afterwards.
            let done =
                unsafe { madvise(self.base.as_ptr().add(first).cast(), last - first, Advice::LinuxDontNeed) };
            if done.is_err() {
                self.buf(first, last - first).zero();
            }
        }
        self.buf(last, end - last).zero();
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and no buffer of it is used any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Page size of the host in bytes.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discard_zeroes_the_range_and_nothing_else() {
        let page = page_size();
        let memory = HostMemory::new(4 * page).unwrap();
        for (start, len) in [(0, 4 * page), (1, page), (page - 1, 2 * page + 2), (7, 9), (3 * page, 5 * page)]
        {
            memory.buf(0, 4 * page).write(&vec![0xA5; 4 * page]);
            memory.discard(start, len);
            let mut seen = vec![0; 4 * page];
            memory.buf(0, 4 * page).read(&mut seen);
            for (at, byte) in seen.iter().enumerate() {
                let inside = at >= start && at < start + len;
                assert_eq!(*byte, if inside { 0 } else { 0xA5 }, "byte {at} of discard {start}+{len}");
            }
        }
    }
}
