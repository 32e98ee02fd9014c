//! Host memory for payloads.
#![allow(
    unsafe_code,
    reason = "payload memory is written by the kernel while requests are in flight: raw pages"
)]

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use paradisk_disk_formats::IoBuf;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Page-aligned memory, cut into buffers of one size. Must outlive the requests that carry its buffers: drop it after
/// the queue.
#[derive(Debug)]
pub(crate) struct Buffers {
    base: NonNull<c_void>,
    len: usize,
    size: usize,
}

// SAFETY: the mapping belongs to this value alone, and nothing in it depends on a thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `count` buffers of `size` bytes, populated, so that no page fault occurs in a measurement.
    pub(crate) fn new(count: usize, size: usize) -> io::Result<Self> {
        let len = count.checked_mul(size).filter(|len| *len > 0).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs no other.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, size })
    }

    /// The same, each with random data of its own.
    pub(crate) fn random(count: usize, size: usize) -> io::Result<Self> {
        let buffers = Self::new(count, size)?;
        let mut rng = fastrand::Rng::with_seed(1);
        let mut data = vec![0; size];
        for index in 0..count {
            rng.fill(&mut data);
            buffers.get(index).write(&data);
        }
        Ok(buffers)
    }

    /// Buffer `index`, counted modulo their number.
    pub(crate) fn get(&self, index: usize) -> IoBuf {
        let index = index % (self.len / self.size);
        // SAFETY: inside the mapping by the line above; it stays mapped until `self` is dropped, which the owner does
        // after the queue; no reference to its bytes is ever made.
        unsafe { IoBuf::new(self.base.as_ptr().cast::<u8>().add(index * self.size), self.size) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; the queue that used it has been dropped.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_usable() {
        let buffers = Buffers::new(3, 4096).unwrap();
        let addresses: Vec<_> = (0..3).map(|index| buffers.get(index).addr() as usize).collect();
        assert_eq!(addresses[1] - addresses[0], 4096);
        assert_eq!(addresses[2] - addresses[1], 4096);
        assert_eq!(addresses[0] % 4096, 0);
        assert_eq!(buffers.get(3).addr() as usize, addresses[0]);
        buffers.get(2).write(&[7; 4096]);
        let mut back = [0; 4096];
        buffers.get(2).read(&mut back);
        assert_eq!(back, [7; 4096]);
        assert!(Buffers::new(0, 4096).is_err() && Buffers::new(usize::MAX, 2).is_err());
    }
}
