//! Regions of guest memory: guest-physical and host address.

use std::ops::Range;

use vm_memory::{GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

/// Bytes of a guest page.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// A region of guest memory, with the host address of its start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) host: *mut u8,
}

pub(super) const NO_WINDOW: Window = Window { start: 0, len: 0, host: std::ptr::null_mut() };

/// Whether a guest-physical range overlaps `len` bytes at `start`; an empty length counts as one byte.
pub(crate) fn overlap(range: &Range<u64>, start: u64, len: u64) -> bool {
    start < range.end && range.start <= start.saturating_add(len.saturating_sub(1))
}

/// The region around `address`, if the device may both read and write it. `physical_memory` has only such regions, because accesses through
/// it check no permissions. `None` also if an IOMMU translates guest-physical addresses.
pub(super) fn window<M: GuestMemory + ?Sized>(memory: &M, address: u64) -> Option<Window> {
    let region = memory.physical_memory()?.find_region(GuestAddress(address))?;
    let host = region.get_host_address(MemoryRegionAddress(0)).ok()?;
    Some(Window { start: region.start_addr().0, len: region.len(), host })
}
