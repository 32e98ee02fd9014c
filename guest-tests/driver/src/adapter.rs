//! What the load generator needs of a host bus adapter, whatever its rings look like.

use crate::platform::Platform;
use crate::workload::Fault;

/// Bytes of a page: the unit in which buffers are scattered.
pub const PAGE: usize = 4096;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Disk to memory.
    Read,
    /// Memory to disk.
    Write,
    /// Flush: completed writes are on stable storage; no data.
    Flush,
}

/// How buffers lie in bus address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// In one piece.
    #[default]
    Contiguous,
    /// No two pages next to each other, and the first byte inside a page: every page needs an element of its own.
    Scattered,
}

/// Memory of a request, as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bus address of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// From the start of one page of the buffer to that of the next: [`PAGE`] where it is contiguous.
    pub page_stride: u32,
}

impl Buffer {
    /// No memory.
    pub const NONE: Self = Self { address: 0, len: 0, page_stride: PAGE as u32 };

    /// `len` bytes in one piece.
    #[must_use]
    pub const fn contiguous(address: u64, len: u32) -> Self {
        Self { address, len, page_stride: PAGE as u32 }
    }

    /// Whether one address describes it.
    #[must_use]
    pub const fn is_contiguous(&self) -> bool {
        self.page_stride as usize == PAGE || self.address as usize % PAGE + self.len as usize <= PAGE
    }

    /// Its pieces, none of which crosses a page: address and length of each.
    pub fn segments(self) -> impl Iterator<Item = (u64, u32)> + Clone {
        let mut address = self.address;
        let mut left = self.len;
        core::iter::from_fn(move || {
            let in_page = (address % PAGE as u64) as u32;
            let segment = (address, left.min(PAGE as u32 - in_page));
            left -= segment.1;
            address = address - u64::from(in_page) + u64::from(self.page_stride);
            (segment.1 != 0).then_some(segment)
        })
    }
}

/// A request to an adapter.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in the completion: below [`Adapter::slots`], unique among those in flight.
    pub tag: u32,
    /// Target on the adapter's bus.
    pub target: u32,
    /// What to do.
    pub op: Op,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks.
    pub blocks: u32,
    /// Memory.
    pub data: Buffer,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag; `u32::MAX` where the adapter named none that exists.
    pub tag: u32,
    /// `host << 8 | scsi` status; 0 is success.
    pub status: u32,
    /// Bytes moved.
    pub transferred: u64,
}

/// Device registers touched since the driver came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Doorbells written.
    pub doorbells: u64,
    /// Other registers read or written.
    pub registers: u64,
}

/// Size of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block; a power of two, at least 512.
    pub block_size: u32,
}

/// When a driver rings the doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KickPolicy {
    /// With each request, unless the device asked for fewer; as Linux does.
    #[default]
    PerRequest,
    /// Once for the requests submitted before [`Adapter::kick`].
    PerBatch,
}

/// A host bus adapter with its driver.
pub trait Adapter {
    /// Requests that may be in flight.
    fn slots(&self) -> u32;

    /// How it wants buffers to lie.
    fn layout(&self) -> Layout;

    /// Read a disk's size, with nothing in flight.
    ///
    /// # Errors
    /// The fault that the disk or the adapter showed.
    fn geometry<P: Platform>(&mut self, platform: &mut P, target: u32) -> Result<Geometry, Fault>;

    /// Hand in a request; `false`: the ring is full, nothing was done.
    fn submit<P: Platform>(&mut self, platform: &mut P, request: &Request) -> bool;

    /// End of a batch of submissions.
    fn kick<P: Platform>(&mut self, platform: &mut P);

    /// An interrupt arrived: acknowledge it where the device wants that, before completions are looked for.
    fn interrupted<P: Platform>(&mut self, platform: &mut P);

    /// The next completion.
    fn poll<P: Platform>(&mut self, platform: &mut P) -> Option<Completion>;

    /// Stop everything in flight and come up again; completions of what was in flight are dropped.
    ///
    /// # Errors
    /// The step of the bring-up that failed.
    fn reset<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault>;

    /// Registers touched so far.
    fn counters(&self) -> Counters;
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn segments_stay_inside_pages_and_follow_the_stride() {
        let buffer = Buffer { address: 0x1_0200, len: 8192, page_stride: 0x3000 };
        assert!(!buffer.is_contiguous());
        let segments: Vec<_> = buffer.segments().collect();
        assert_eq!(segments, [(0x1_0200, 0xe00), (0x1_3000, 0x1000), (0x1_6000, 0x200)]);
        assert!(Buffer { address: 0x1_0200, len: 512, page_stride: 0x3000 }.is_contiguous());
        assert!(Buffer::contiguous(0x200, 8192).is_contiguous());
        assert_eq!(Buffer::NONE.segments().count(), 0);
    }
}
