//! A descriptor chain as the guest meant it: bytes to read, then bytes to write, however they are cut into descriptors
//! (VIRTIO 1.2, 2.7.4).

use virtio_queue::desc::split::Descriptor;
use vm_memory::GuestAddressSpace;
use zerocopy::{FromBytes, IntoBytes};

use super::queue::Broken;
use crate::dma::Dma;

/// Descriptors of a chain at the most. Drivers stay below the queue's size.
const MAX_DESCRIPTORS: usize = 1024;

/// A run of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) len: u64,
}

/// A chain. Kept, so that its memory is.
#[derive(Debug, Default)]
pub(super) struct Chain {
    readable: Vec<Segment>,
    /// Segments of `readable` that are used up.
    taken: usize,
    pub(super) writable: Vec<Segment>,
    /// It can be walked to its end, but is not as a chain is to be: it has a descriptor without bytes, or one to
    /// read after one to write.
    pub(super) malformed: bool,
}

impl Chain {
    /// Walk a chain.
    ///
    /// # Errors
    /// [`Broken`] where it has no end: it loops, leaves its table, or is longer than a chain may be.
    pub(super) fn collect(&mut self, descriptors: impl Iterator<Item = Descriptor>) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        self.taken = 0;
        self.malformed = false;
        let (mut complete, mut ends_writable) = (false, false);
        for (count, descriptor) in descriptors.enumerate() {
            if count >= MAX_DESCRIPTORS {
                return Err(Broken);
            }
            // The iterator just ends where it cannot go on. It has come to the end where no next one was promised.
            complete = !descriptor.has_next();
            let segment = Segment { address: descriptor.addr().0, len: descriptor.len().into() };
            self.malformed |= segment.len == 0;
            if descriptor.is_write_only() {
                self.writable.push(segment);
            } else {
                self.malformed |= !self.writable.is_empty();
                self.readable.push(segment);
            }
            ends_writable = descriptor.is_write_only();
        }
        if !ends_writable {
            // Out of order, or nothing to write anyway: the last byte is not one to write.
            self.writable.clear();
        }
        if complete { Ok(()) } else { Err(Broken) }
    }

    /// What is left to read.
    pub(super) fn readable(&self) -> &[Segment] {
        self.readable.get(self.taken..).unwrap_or_default()
    }

    /// Take a structure from the start of what is to be read. `None`: it is not all there.
    pub(super) fn take_header<T, A>(&mut self, dma: &mut Dma<A>) -> Option<T>
    where
        T: FromBytes + IntoBytes,
        A: GuestAddressSpace,
    {
        let mut header = T::new_zeroed();
        self.take_bytes(header.as_mut_bytes(), dma)?;
        Some(header)
    }

    /// Take bytes from the start of what is to be read. `None`: they are not all there.
    #[inline]
    pub(super) fn take_bytes<A: GuestAddressSpace>(
        &mut self,
        bytes: &mut [u8],
        dma: &mut Dma<A>,
    ) -> Option<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let segment = self.readable.get_mut(self.taken)?;
            let len = segment.len.min(rest.len() as u64);
            let (piece, after) = rest.split_at_mut(len as usize);
            dma.read_bytes(segment.address, piece).ok()?;
            rest = after;
            segment.len -= len;
            segment.address = segment.address.wrapping_add(len);
            if segment.len == 0 {
                self.taken += 1;
            }
        }
        Some(())
    }

    /// Take the last byte to write. `None`: there is nothing to write.
    pub(super) fn take_last_byte(&mut self) -> Option<u64> {
        let segment = self.writable.last_mut()?;
        segment.len = segment.len.checked_sub(1)?;
        let address = segment.address.checked_add(segment.len);
        if segment.len == 0 {
            self.writable.pop();
        }
        address
    }
}
