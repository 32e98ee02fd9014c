//! Memory of the caller that requests read from and write to.
#![allow(unsafe_code, reason = "raw guest memory: its validity is a contract with the caller")]

/// A memory buffer that the host may read or write while a request is in flight: an iovec that may be sent to other
/// threads. A guest may change its memory at any time, so the buffer is never accessed as a slice.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct IoBuf(libc::iovec);

// SAFETY: an `IoBuf` is an address and a length. The caller of `IoBuf::new` promised that the memory stays valid for
// reads and writes from any thread until the requests that carry it have completed.
unsafe impl Send for IoBuf {}
// SAFETY: as above; a shared reference only gives access to the address and the length.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Memory of `len` bytes at `base`.
    ///
    /// # Safety
    /// The memory must be mapped, readable and writable until every request that carries this buffer has been reaped or
    /// its queue has been dropped. Until then others (such as a guest) may read or write the memory, but no Rust
    /// reference to it may exist.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self(libc::iovec { iov_base: base.cast(), iov_len: len })
    }

    /// Address.
    #[must_use]
    pub const fn addr(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }

    /// The part `[start, start + len)` of this buffer, clamped to its end.
    #[must_use]
    pub fn slice(&self, start: usize, len: usize) -> Self {
        let start = start.min(self.len());
        // SAFETY: `start` is at most the length, so the address stays inside the memory that the creator of `self`
        // promised, or one past its end. The clamped length does not reach beyond it.
        unsafe { Self::new(self.addr().add(start), len.min(self.len() - start)) }
    }

    /// Copy `data` into the memory from its start; returns the bytes copied (the shorter of the two).
    pub fn write(&self, data: &[u8]) -> usize {
        let len = data.len().min(self.len());
        // SAFETY: both sides are valid for `len` bytes (the buffer by the promise of `new`). A Rust slice cannot
        // overlap the buffer, to which no reference may exist.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.addr(), len) };
        len
    }

    /// Copy the memory from its start into `data`; returns the bytes copied (the shorter of the two).
    pub fn read(&self, data: &mut [u8]) -> usize {
        let len = data.len().min(self.len());
        // SAFETY: as for `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.addr(), data.as_mut_ptr(), len) };
        len
    }

    /// Copy the memory from its start to the start of `other`; returns the bytes copied (the shorter of the two). The
    /// buffers may overlap.
    pub fn copy_to(&self, other: &Self) -> usize {
        let len = self.len().min(other.len());
        // SAFETY: both are valid for `len` bytes by the promise of `new`.
        unsafe { std::ptr::copy(self.addr(), other.addr(), len) };
        len
    }

    /// Whether all bytes are zeros. The result may be outdated if others write to the memory.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        let mut chunk = [0; 4096];
        (0..self.len()).step_by(chunk.len()).all(|at| {
            let len = self.slice(at, chunk.len()).read(&mut chunk);
            chunk.iter().take(len).all(|byte| *byte == 0)
        })
    }

    /// An empty buffer.
    #[must_use]
    pub const fn empty() -> Self {
        Self(libc::iovec { iov_base: std::ptr::dangling_mut(), iov_len: 0 })
    }

    /// Fill the memory with zeros.
    pub fn zero(&self) {
        // SAFETY: valid for writes of its length by the promise of `new`.
        unsafe { std::ptr::write_bytes(self.addr(), 0, self.len()) };
    }

    /// The buffers as iovecs.
    #[must_use]
    pub const fn as_iovecs(bufs: &[Self]) -> &[libc::iovec] {
        // SAFETY: `IoBuf` is a transparent wrapper around `iovec`.
        unsafe { std::slice::from_raw_parts(bufs.as_ptr().cast(), bufs.len()) }
    }
}

/// Call `visit` for the parts of `bufs` that make up their range `[start, start + len)`, in order.
pub(crate) fn for_each_part(bufs: &[IoBuf], start: u64, len: u64, mut visit: impl FnMut(IoBuf)) {
    let (mut skip, mut left) = (start, len);
    for buf in bufs {
        let size = buf.len() as u64;
        if skip >= size {
            skip -= size;
            continue;
        }
        if left == 0 {
            return;
        }
        let part = buf.slice(skip as usize, left.min(usize::MAX as u64) as usize);
        left -= part.len() as u64;
        skip = 0;
        visit(part);
    }
}

/// Total length of the buffers; `None` if it overflows.
#[must_use]
pub fn total_len(bufs: &[IoBuf]) -> Option<u64> {
    bufs.iter().try_fold(0u64, |sum, buf| sum.checked_add(buf.len() as u64))
}
