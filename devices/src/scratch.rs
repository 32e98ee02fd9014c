//! Memory of our own that disk requests can read from and write to.
#![allow(unsafe_code, reason = "memory handed to a disk queue while it is not borrowed")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use paradisk_disk_formats::IoBuf;

/// Zeroed memory, aligned to 4,096 bytes. Seen as buffers only, never as a slice, since a queue may be using it.
///
/// Its owner drops it after the queue that may use it (a queue waits for its requests when it is dropped).
#[derive(Debug)]
pub(crate) struct Scratch {
    base: NonNull<u8>,
    layout: Layout,
}

/// What it is made of.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "only its layout is used")] [u8; 4096]);

// SAFETY: a plain allocation with one owner.
unsafe impl Send for Scratch {}

impl Scratch {
    /// `len` bytes, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Self {
        let pages = len.div_ceil(size_of::<Page>()).max(1);
        let Ok(layout) = Layout::array::<Page>(pages) else { handle_alloc_error(Layout::new::<Page>()) };
        // SAFETY: the layout has a size that is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout }
    }

    /// The piece `[start, start + len)`, cut at the end.
    pub(crate) fn buf(&self, start: usize, len: usize) -> IoBuf {
        // SAFETY: the allocation lives until `self` is dropped, which the owner does after the queue's requests have
        // ended; there are no references into it.
        unsafe { IoBuf::new(self.base.as_ptr(), self.layout.size()) }.slice(start, len)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and dropped once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
