//! The load generator's DMA memory: a buffer for each request in flight, and the generations of blocks.

use crate::adapter::{Buffer, Layout, PAGE};
use crate::platform::DmaRegion;
use crate::platform::Platform;

use super::pattern::View;

/// Where in its page a scattered buffer starts: it ends inside one as well.
const SKEW: usize = 512;

/// Buffers of one size in a region.
#[derive(Debug)]
pub(super) struct Buffers {
    region: DmaRegion,
    len: u32,
    /// Offset of the first buffer.
    first: usize,
    /// From one buffer to the next.
    step: usize,
    page_stride: u32,
}

impl Buffers {
    /// Bytes that `count` buffers of `len` bytes take.
    pub(super) fn size(count: usize, len: usize, layout: Layout) -> usize {
        match layout {
            Layout::Contiguous => count * len.next_multiple_of(PAGE),
            Layout::Scattered => (count + 1) * (len + SKEW).next_multiple_of(PAGE),
        }
    }

    /// `count` buffers of `len` bytes at the start of `memory`, which has their [`size`](Self::size).
    pub(super) fn new(memory: &DmaRegion, count: usize, len: u32, layout: Layout) -> Option<Self> {
        let region = memory.part(0, Self::size(count, len as usize, layout))?;
        Some(match layout {
            Layout::Contiguous => {
                let step = (len as usize).next_multiple_of(PAGE);
                Self { region, len, first: 0, step, page_stride: PAGE as u32 }
            }
            // Page by page: the first pages of all buffers, then the second ones. Each row has one page more than there are
            // buffers. So the pages of a buffer are apart even if it is the only one.
            Layout::Scattered => {
                Self { region, len, first: SKEW, step: PAGE, page_stride: ((count + 1) * PAGE) as u32 }
            }
        })
    }

    /// Buffer `index` as the device sees it.
    pub(super) fn buffer(&self, index: usize) -> Buffer {
        let address = self.region.address() + (self.first + index * self.step) as u64;
        Buffer { address, len: self.len, page_stride: self.page_stride }
    }

    /// Buffer `index` as the driver sees it.
    pub(super) fn view(&self, index: usize) -> View<'_> {
        View { region: &self.region, buffer: self.buffer(index) }
    }
}

/// What a churned block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u32);

impl Version {
    const BUSY: u32 = 1 << 31;
    /// After a failed write.
    pub(super) const UNKNOWN: Self = Self(Self::BUSY - 1);

    /// Writes since the block was filled; `None`: unknown.
    pub(super) fn writes(self) -> Option<u64> {
        (self != Self::UNKNOWN).then_some(u64::from(self.0))
    }

    /// After one more write.
    pub(super) fn next(self) -> Self {
        // An unknown block is known again: its next generation is beyond all those it may hold.
        if self == Self::UNKNOWN { Self(Self::UNKNOWN.0 / 2) } else { Self(self.0 + 1) }
    }
}

/// The versions of all blocks of a span.
#[derive(Debug)]
pub(super) struct Versions(DmaRegion);

impl Versions {
    /// Bytes for `blocks` blocks; `None` where that is beyond any memory.
    pub(super) fn size(blocks: u64) -> Option<usize> {
        usize::try_from(blocks).ok()?.checked_mul(4)?.checked_next_multiple_of(8)
    }

    /// All blocks as they were filled.
    pub(super) fn new(region: DmaRegion) -> Self {
        for offset in (0..region.len()).step_by(8) {
            region.write(offset, 0u64);
        }
        Self(region)
    }

    /// Take a block for one access; `None`: another access has it.
    pub(super) fn take(&self, block: u64) -> Option<Version> {
        let at = block as usize * 4;
        let value: u32 = self.0.read(at);
        if value & Version::BUSY != 0 {
            return None;
        }
        self.0.write(at, value | Version::BUSY);
        Some(Version(value))
    }

    /// The access to a block has ended; it holds `version` now.
    pub(super) fn put(&self, block: u64, version: Version) {
        self.0.write(block as usize * 4, version.0);
    }
}

/// Memory that grows from job to job and is kept.
#[derive(Debug)]
pub(super) struct Memory(Option<DmaRegion>);

impl Memory {
    /// None yet.
    pub(super) const EMPTY: Self = Self(None);

    /// At least `len` bytes; `None` where the platform has no more.
    pub(super) fn reserve<P: Platform>(&mut self, platform: &mut P, len: usize) -> Option<&DmaRegion> {
        let held = self.0.as_ref().map_or(0, DmaRegion::len);
        if held < len {
            // Memory is never freed. If possible the size doubles, so that at most half of all memory is wasted.
            let region =
                platform.dma(len.max(held.saturating_mul(2)), PAGE).or_else(|| platform.dma(len, PAGE))?;
            self.0 = Some(region);
        }
        self.0.as_ref()
    }
}
