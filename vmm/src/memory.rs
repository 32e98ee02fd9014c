//! Guest RAM in one or two KVM memory slots. It is a memfd, so that other processes can map it.
#![allow(unsafe_code, reason = "KVM is given host addresses of guest memory")]

use std::fs::File;
use std::io;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::error::Error;
use crate::layout::{HIGH_RAM, LOW_RAM_END};

const PAGE: u64 = 4096;

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
    let memfd = memfd_create("guest-memory", MemfdFlags::CLOEXEC).map_err(|errno| error(errno.into()))?;
    ftruncate(&memfd, size).map_err(|errno| error(errno.into()))?;
    let file = Arc::new(File::from(memfd));
    let ranges = ranges(size).into_iter().map(|(address, offset, len)| {
        (GuestAddress(address), len as usize, Some(FileOffset::from_arc(Arc::clone(&file), offset)))
    });
    let memory =
        GuestMemoryMmap::from_ranges_with_files(ranges).map_err(|source| error(io::Error::other(source)))?;
    Ok(Arc::new(memory))
}

/// Guest-physical address, offset in the file and length of each part.
fn ranges(size: u64) -> Vec<(u64, u64, u64)> {
    let low = size.min(LOW_RAM_END);
    let mut ranges = vec![(0, 0, low)];
    if size > low {
        ranges.push((HIGH_RAM, low, size - low));
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
        assert_eq!(ranges(PAGE), [(0, 0, PAGE)]);
        assert_eq!(ranges(LOW_RAM_END), [(0, 0, LOW_RAM_END)]);
        assert_eq!(ranges(5 << 30), [(0, 0, LOW_RAM_END), (HIGH_RAM, LOW_RAM_END, 2 << 30)]);
    }

    #[test]
    fn ram_is_one_shareable_file() {
        let memory = allocate(LOW_RAM_END + 2 * PAGE).unwrap();
        memory.write_obj(0x1234_5678_u32, GuestAddress(HIGH_RAM + PAGE)).unwrap();
        let file = memory.find_region(GuestAddress(0)).unwrap().file_offset().unwrap().arc().clone();
        let mut word = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&*file, &mut word, LOW_RAM_END + PAGE).unwrap();
        assert_eq!(u32::from_le_bytes(word), 0x1234_5678);
        assert!(!memory.address_in_range(GuestAddress(LOW_RAM_END)));
    }

    #[test]
    fn sizes_that_cannot_be() {
        assert!(matches!(allocate(0), Err(Error::MemorySize(0))));
        assert!(matches!(allocate(PAGE + 1), Err(Error::MemorySize(4097))));
        assert!(matches!(allocate(1 << 62), Err(Error::Memory { .. })));
    }
}
