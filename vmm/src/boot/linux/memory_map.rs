//! The memory map that firmware would report (E820, ACPI 6.5, section 15).

use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use crate::layout::{ECAM, LOW_RAM_RESERVED};
use crate::memory::GuestMemory;

/// Kind of a memory range. PVH has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ram = 1,
    Reserved = 2,
}

/// First address, size and kind, in order of address.
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
            // Linux uses the window only if it is reserved.
            entries.push((ECAM.start, ECAM.end - ECAM.start, Kind::Reserved));
        } else {
            entries.push((start, end - start, Kind::Ram));
        }
    }
    entries
}
