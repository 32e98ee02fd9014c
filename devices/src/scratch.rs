//! Memory of our own that disk requests can read from and write to.
#![allow(unsafe_code, reason = "memory handed to a disk queue while it is not borrowed")]

use std::alloc::{Layout, handle_alloc_error};

use paradisk_disk_formats::{HostMemory, IoBuf};

/// Zeroed pages. Its owner drops it after the queue that may use it (a queue waits for its requests when it is dropped).
#[derive(Debug)]
pub(crate) struct Scratch(HostMemory);

impl Scratch {
    /// `len` bytes, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> Self {
        Self(HostMemory::new(len).unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>())))
    }

    /// The piece `[start, start + len)`, cut at the end.
    pub(crate) fn buf(&self, start: usize, len: usize) -> IoBuf {
        // SAFETY: the memory lives until `self` is dropped, which the owner does after the queue's requests have ended.
        unsafe { self.0.piece(start, len) }
    }
}
