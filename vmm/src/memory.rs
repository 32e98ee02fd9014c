//! Guest RAM in one or two KVM memory slots: anonymous memory in huge pages, if the host has them.
#![allow(unsafe_code, reason = "KVM is given host addresses of guest memory, and the kernel advice on it")]

use std::io;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use crate::error::Error;
use crate::layout::{HIGH_RAM, LOW_RAM_END};

const PAGE: u64 = 4096;
/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// To map memory at an aligned address.
const ATTEMPTS: u32 = 16;

/// Guest memory, shared by virtual CPUs, devices and the user of the machine.
pub type GuestMemory = Arc<GuestMemoryMmap>;

/// A virtual machine's descriptor, and the memory in its slots, which stays mapped while the descriptor is open.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) fd: VmFd,
    pub(crate) memory: GuestMemory,
}

impl Vm {
    pub(crate) fn new(fd: VmFd, memory: GuestMemory) -> Result<Self, Error> {
        for (slot, region) in memory.iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                flags: 0,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
            };
            // SAFETY: the whole region is mapped, and `Self` keeps it mapped until the descriptor is closed. The guest
            // writes only memory that the host accesses through `vm_memory`, without references.
            unsafe { fd.set_user_memory_region(region) }.map_err(Error::kvm("KVM_SET_USER_MEMORY_REGION"))?;
        }
        Ok(Self { fd, memory })
    }
}

/// Guest RAM of `size` bytes, from 0 to [`LOW_RAM_END`] and then from [`HIGH_RAM`].
pub(crate) fn allocate(size: u64) -> Result<GuestMemory, Error> {
    if size == 0 || !size.is_multiple_of(PAGE) {
        return Err(Error::MemorySize(size));
    }
    let error = |source| Error::Memory { size, source };
    let region = |(address, len): (u64, u64)| {
        let mapping = map(len as usize)?;
        GuestRegionMmap::new(mapping, GuestAddress(address)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    };
    let regions = ranges(size).into_iter().map(region).collect::<Result<Vec<_>, _>>().map_err(error)?;
    let memory = GuestMemoryMmap::from_regions(regions).map_err(|source| error(io::Error::other(source)))?;
    Ok(Arc::new(memory))
}

/// Memory whose address is a multiple of [`HUGE_PAGE`], as the guest's is: otherwise KVM could not map a huge page as one. If other threads map
/// memory again and again meanwhile, the address is another.
fn map(len: usize) -> io::Result<MmapRegion> {
    let new = || MmapRegion::new(len).map_err(io::Error::other);
    let mut mapping = new()?;
    // Linux aligns no mapping before 6.7, and later not all. It takes the upper end of a free range: so occupy the excess there, and map again.
    for _ in 0..ATTEMPTS {
        let excess = mapping.as_ptr() as usize % HUGE_PAGE;
        if excess == 0 || len < HUGE_PAGE {
            break;
        }
        let top = mapping.as_ptr().wrapping_add(len - excess);
        drop(mapping);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without FIXED the kernel replaces no mapping; the memory is not accessed.
        let occupied = unsafe { mmap_anonymous(top.cast(), excess, ProtFlags::empty(), flags) };
        mapping = new()?;
        if let Ok(occupied) = occupied {
            // SAFETY: this function made the mapping, and nothing refers to it.
            unsafe { munmap(occupied, excess) }?;
        }
    }
    // SAFETY: the range is one mapping; the advice changes none of its content. An error means that the kernel has no huge pages.
    let _ = unsafe { madvise(mapping.as_ptr().cast(), len, Advice::LinuxHugepage) };
    Ok(mapping)
}

/// Guest-physical address and length of each part.
fn ranges(size: u64) -> Vec<(u64, u64)> {
    let low = size.min(LOW_RAM_END);
    let mut ranges = vec![(0, low)];
    if size > low {
        ranges.push((HIGH_RAM, size - low));
    }
    ranges
}

/// Write to guest memory; `what` names it in an error.
pub(crate) fn put(memory: &GuestMemory, what: &'static str, address: u64, bytes: &[u8]) -> Result<(), Error> {
    memory.write_slice(bytes, GuestAddress(address)).map_err(|_| Error::OutsideMemory {
        what,
        address,
        len: bytes.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_leaves_the_hole_free() {
        assert_eq!(ranges(PAGE), [(0, PAGE)]);
        assert_eq!(ranges(LOW_RAM_END), [(0, LOW_RAM_END)]);
        assert_eq!(ranges(5 << 30), [(0, LOW_RAM_END), (HIGH_RAM, 2 << 30)]);
    }

    #[test]
    fn ram_is_aligned_to_huge_pages() {
        // A small mapping before each makes the next address an odd one on kernels that align nothing.
        let odd = || MmapRegion::<()>::new(PAGE as usize).unwrap();
        let others: Vec<_> =
            (0..8).map(|_| (odd(), allocate(LOW_RAM_END + HUGE_PAGE as u64 + 3 * PAGE).unwrap())).collect();
        for (_, memory) in &others {
            let addresses = memory.iter().map(|region| region.as_ptr() as usize % HUGE_PAGE);
            assert_eq!(addresses.collect::<Vec<_>>(), [0, 0]);
            memory.write_obj(0x1234_5678_u32, GuestAddress(HIGH_RAM + PAGE)).unwrap();
            assert_eq!(memory.read_obj::<u32>(GuestAddress(HIGH_RAM + PAGE)).unwrap(), 0x1234_5678);
            assert!(!memory.address_in_range(GuestAddress(LOW_RAM_END)));
        }
    }

    #[test]
    fn sizes_that_cannot_be() {
        assert!(matches!(allocate(0), Err(Error::MemorySize(0))));
        assert!(matches!(allocate(PAGE + 1), Err(Error::MemorySize(4097))));
        assert!(matches!(allocate(1 << 62), Err(Error::Memory { .. })));
    }
}
