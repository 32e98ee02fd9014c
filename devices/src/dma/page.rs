//! A page of guest memory that the device and the guest use concurrently: rings.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::window::PAGE_SIZE;

/// Alignment of descriptors in a page, in bytes.
const DESCRIPTOR_ALIGNMENT: usize = 16;

/// A page shared with the guest. The device chooses all offsets, so an access outside the page is a bug of the device
/// and panics.
pub(crate) struct GuestPage<T> {
    host: NonNull<u8>,
    /// Keeps the mapping.
    _memory: T,
}

// SAFETY: the host address is kept mapped by the snapshot that goes with it and is not tied to a thread.
unsafe impl<T: Send> Send for GuestPage<T> {}

impl<T> GuestPage<T> {
    /// The page at a host address, which `memory` keeps mapped. `None` if descriptors in it would not be aligned, which
    /// no usual backend causes: it maps guest pages to host pages.
    ///
    /// # Safety
    /// [`PAGE_SIZE`] bytes at `host` are guest memory that is mapped as long as `memory` lives.
    pub(super) unsafe fn new(host: *mut u8, memory: T) -> Option<Self> {
        let host =
            NonNull::new(host).filter(|host| host.addr().get().is_multiple_of(DESCRIPTOR_ALIGNMENT))?;
        Some(Self { host, _memory: memory })
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= PAGE_SIZE as usize && len <= PAGE_SIZE as usize - offset,
            "access outside a guest page"
        );
        // SAFETY: inside the page by the check above.
        unsafe { self.host.as_ptr().add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "unaligned atomic access to a guest page");
        // SAFETY: inside the page, and aligned because the page is aligned; mapped as long as `self` lives. The guest's
        // accesses to it are outside Rust's memory model and, on this architecture, atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Load a little-endian dword.
    #[inline]
    #[must_use]
    pub(crate) fn load(&self, offset: usize, ordering: Ordering) -> u32 {
        u32::from_le(self.word(offset).load(ordering))
    }

    /// Store a little-endian dword.
    #[inline]
    pub(crate) fn store(&self, offset: usize, value: u32, ordering: Ordering) {
        self.word(offset).store(value.to_le(), ordering);
    }

    /// Copy a structure of whole qwords out of the page, reading each qword once.
    #[inline]
    #[must_use]
    pub(crate) fn read<S: FromBytes + IntoBytes>(&self, offset: usize) -> S {
        const { assert!(align_of::<S>() == 1 && size_of::<S>().is_multiple_of(8)) };
        let from = self.at(offset, size_of::<S>()).cast::<u64>();
        assert!(from.is_aligned(), "unaligned copy from a guest page");
        let mut value = S::new_zeroed();
        // By qwords: the compiler splits a volatile access to an unaligned structure into single bytes.
        for (index, bytes) in value.as_mut_bytes().chunks_exact_mut(8).enumerate() {
            // SAFETY: inside the page and aligned by the checks above.
            let qword = unsafe { from.wrapping_add(index).read_volatile() };
            bytes.copy_from_slice(&qword.to_ne_bytes());
        }
        value
    }

    /// Copy a structure of whole qwords into the page.
    #[inline]
    pub(crate) fn write<S: IntoBytes + Immutable>(&self, offset: usize, value: S) {
        const { assert!(align_of::<S>() == 1 && size_of::<S>().is_multiple_of(8)) };
        let to = self.at(offset, size_of::<S>()).cast::<u64>();
        assert!(to.is_aligned(), "unaligned copy to a guest page");
        for (index, bytes) in value.as_bytes().chunks_exact(8).enumerate() {
            let mut qword = [0; 8];
            qword.copy_from_slice(bytes);
            // SAFETY: inside the page and aligned by the checks above.
            unsafe { to.wrapping_add(index).write_volatile(u64::from_ne_bytes(qword)) };
        }
    }

    /// Copy qwords out of the page, reading each once.
    #[inline]
    pub(crate) fn read_qwords(&self, offset: usize, to: &mut [U64]) {
        let from = self.at(offset, size_of_val(to)).cast::<u64>();
        assert!(from.is_aligned(), "unaligned copy from a guest page");
        for (index, qword) in to.iter_mut().enumerate() {
            // SAFETY: inside the page and aligned by the checks above.
            let bytes = unsafe { from.wrapping_add(index).read_volatile() }.to_ne_bytes();
            *qword = U64::from_bytes(bytes);
        }
    }

    /// Copy qwords into the page.
    #[inline]
    pub(crate) fn write_qwords(&self, offset: usize, from: &[U64]) {
        let to = self.at(offset, size_of_val(from)).cast::<u64>();
        assert!(to.is_aligned(), "unaligned copy to a guest page");
        for (index, qword) in from.iter().enumerate() {
            let value = u64::from_ne_bytes(qword.to_bytes());
            // SAFETY: inside the page and aligned by the checks above.
            unsafe { to.wrapping_add(index).write_volatile(value) };
        }
    }
}
