//! The memory map as firmware would tell it (E820, ACPI 6.5, section 15).

use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use crate::layout::{ECAM, LOW_RAM_RESERVED};
use crate::memory::GuestMemory;

/// What is at an address. PVH's numbers are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ram = 1,
    Reserved = 2,
}

/// First address, bytes and kind, in order of address.
pub(super) fn entries(memory: &GuestMemory) -> Vec<(u64, u64, Kind)> {
    let mut entries = Vec::new();
    for region in memory.iter() {
        let (start, end) = (region.start_addr().raw_value(), region.start_addr().raw_value() + region.len());
        if start == 0 {
            entries.push((0, LOW_RAM_RESERVED.start, Kind::Ram));
            entries.push((
                LOW_RAM_RESERVED.start,
                LOW_RAM_RESERVED.end - LOW_RAM_RESERVED.start,
                Kind::Reserved,
            ));
            entries.push((LOW_RAM_RESERVED.end, end.saturating_sub(LOW_RAM_RESERVED.end), Kind::Ram));
            // Linux uses the window only where it is reserved.
            entries.push((ECAM.start, ECAM.end - ECAM.start, Kind::Reserved));
        } else {
            entries.push((start, end - start, Kind::Ram));
        }
    }
    entries
}
