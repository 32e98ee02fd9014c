//! The client's memory maps.
//!
//! Until it is reset, a device keeps the snapshot of memory from which its driver's rings were set up. All maps of that snapshot stay
//! mapped in this process, without the client's knowledge. So the rings continue to work if the client maps the same file again. A map
//! that is in no such snapshot is unmapped before the unmap is answered.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::{GuestMemorySliceIterator, Result as MemoryResult};
use vm_memory::{GuestAddress, GuestMemory, GuestMemoryBackend, GuestRegionCollection, Permissions};

use crate::client_region::{ClientRegion, NotMapped};

use super::spec::{DMA_READ, DMA_WRITE, DmaMap, DmaUnmap, UNMAP_ALL, UNMAP_DIRTY_BITMAP};

/// Maximum number of maps. Each takes a mapping and a descriptor of this process.
pub(super) const MOST_MAPS: usize = 2048;
/// Unit of maps in bytes.
pub(super) const PAGE_SIZE: u64 = 4096;

/// A snapshot of the client's memory that the device can access.
#[derive(Debug, Default)]
pub struct ClientMemory {
    all: GuestRegionCollection<ClientRegion>,
    /// The regions that the device may also write. Only these are the device's physical memory, because an access through it checks no
    /// permission.
    writable: GuestRegionCollection<ClientRegion>,
}

impl ClientMemory {
    const fn with(&self, access: Permissions) -> &GuestRegionCollection<ClientRegion> {
        match access {
            Permissions::No | Permissions::Read => &self.all,
            Permissions::Write | Permissions::ReadWrite => &self.writable,
        }
    }
}

impl GuestMemory for ClientMemory {
    type PhysicalMemory = GuestRegionCollection<ClientRegion>;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        GuestMemoryBackend::check_range(self.with(access), address, count)
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> MemoryResult<impl GuestMemorySliceIterator<'a, BS<'a, ()>>> {
        Ok(GuestMemoryBackend::get_slices(self.with(access), address, count))
    }

    fn physical_memory(&self) -> Option<&Self::PhysicalMemory> {
        Some(&self.writable)
    }
}

struct Map {
    size: u64,
    writable: bool,
    /// `None`: the client gave no descriptor.
    mapped: Option<Arc<ClientRegion>>,
}

/// The client's maps, by bus address.
#[derive(Default)]
pub(super) struct Maps {
    maps: BTreeMap<u64, Map>,
}

impl Maps {
    /// Add a map, with the client's descriptor if there is one.
    ///
    /// # Errors
    /// `EEXIST`: the map overlaps another. `ENOSPC`: too many maps. `EINVAL`: not whole pages, not a file, or not completely in the file.
    /// `ENOMEM`: too many bytes. Errors of mmap.
    pub(super) fn add(&mut self, map: &DmaMap, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let (address, size, offset) = (map.address.get(), map.size.get(), map.offset.get());
        let last = size.checked_sub(1).and_then(|less| address.checked_add(less)).ok_or(Errno::INVAL)?;
        if [address, size, offset].iter().any(|value| !value.is_multiple_of(PAGE_SIZE)) {
            return Err(Errno::INVAL);
        }
        if self.maps.len() >= MOST_MAPS {
            return Err(Errno::NOSPC);
        }
        let before = self.maps.range(..=last).next_back();
        if before.is_some_and(|(start, map)| start + (map.size - 1) >= address) {
            return Err(Errno::EXIST);
        }
        let flags = map.flags.get();
        let writable = flags & DMA_WRITE != 0;
        let mapped = match fd {
            Some(fd) if writable || flags & DMA_READ != 0 => {
                let region = ClientRegion::map(File::from(fd), offset, size, address, writable);
                Some(Arc::new(region.map_err(NotMapped::errno)?))
            }
            _ => None,
        };
        self.maps.insert(address, Map { size, writable, mapped });
        Ok(())
    }

    /// The bus addresses of the maps in a range.
    ///
    /// # Errors
    /// `ENOENT`: no map is in the range. `EINVAL`: a map is only partly in it. `ENOTSUP`: the bitmap of dirty pages is requested.
    pub(super) fn find(&self, unmap: &DmaUnmap) -> Result<Vec<Range<u64>>, Errno> {
        if unmap.flags.get() & UNMAP_DIRTY_BITMAP != 0 {
            return Err(Errno::NOTSUP);
        }
        // Exact for all mapped memory: vm-memory refuses a region with the last byte of the address space.
        let range = |(start, map): (&u64, &Map)| *start..start.saturating_add(map.size);
        if unmap.flags.get() & UNMAP_ALL != 0 {
            return Ok(self.maps.iter().map(range).collect());
        }
        let (address, size) = (unmap.address.get(), unmap.size.get());
        let last = size.checked_sub(1).and_then(|less| address.checked_add(less)).ok_or(Errno::INVAL)?;
        let cut = |at: u64| {
            let below = at.checked_sub(1).and_then(|below| self.maps.range(..=below).next_back());
            below.is_some_and(|(start, map)| start + (map.size - 1) >= at)
        };
        if cut(address) || last.checked_add(1).is_some_and(cut) {
            return Err(Errno::INVAL);
        }
        let inside: Vec<_> = self.maps.range(address..=last).map(range).collect();
        if inside.is_empty() { Err(Errno::NOENT) } else { Ok(inside) }
    }

    /// Remove maps that were found.
    pub(super) fn remove(&mut self, found: &[Range<u64>]) {
        for range in found {
            self.maps.remove(&range.start);
        }
    }

    /// The current memory.
    pub(super) fn memory(&self) -> ClientMemory {
        let regions = |writable: bool| {
            let maps = self.maps.values().filter(|map| map.writable || !writable);
            let regions = maps.filter_map(|map| map.mapped.clone()).collect();
            // The regions are sorted and disjoint, so this fails only if there are none.
            GuestRegionCollection::from_arc_regions(regions).unwrap_or_default()
        };
        ClientMemory { all: regions(false), writable: regions(true) }
    }
}
