//! Anonymous memory: the RAM disk's medium, bounce buffers, and the buffers of callers that have no guest.
#![allow(
    unsafe_code,
    reason = "maps memory that guests' buffers are copied to and from, never seen as a slice"
)]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::host::iobuf::IoBuf;

/// Page-aligned zeroed memory, given by the host when it is first touched. Seen as buffers only, never as a slice: requests may be
/// using it.
#[derive(Debug)]
pub struct HostMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached only by raw copies through `IoBuf`, which several
// threads may do at once as with any shared medium: bytes race, nothing else does.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `len` bytes, rounded up to whole pages, at least one.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// The piece `[offset, offset + len)`, cut at the end of the memory.
    pub(crate) fn buf(&self, offset: usize, len: usize) -> IoBuf {
        // SAFETY: the whole mapping is readable and writable for the life of `self`. Holders of the result keep `self`
        // alive as long: the RAM disk copies at once, the bounce pool outlives the requests of its queue.
        unsafe { IoBuf::new(self.base.as_ptr(), self.len) }.slice(offset, len)
    }

    /// The same for a caller's requests.
    ///
    /// # Safety
    /// The memory must not be dropped before every request that carries the piece has been reaped or its queue has been dropped, and
    /// the piece must not be read or written afterwards.
    #[must_use]
    pub unsafe fn piece(&self, offset: usize, len: usize) -> IoBuf {
        self.buf(offset, len)
    }

    /// Make `[offset, offset + len)` read as zeros, and give whole pages back to the host.
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
        // SAFETY: the mapping was made by `new` with this length, and nobody keeps pieces of it longer.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Bytes of a page of the host.
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
