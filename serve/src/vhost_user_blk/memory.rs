//! Guest memory as the client has described it: regions of files, each with its address in the guest and its address in the
//! client. Addresses of rings are those of the client.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{FileType, fstat};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use crate::sigbus::Watched;

/// Memory as the rings use it.
pub(super) type Memory = Arc<GuestMemoryMmap<()>>;

/// Maximum number of regions: the number of memory slots of older versions of KVM.
pub(super) const MAX_SLOTS: usize = 509;

/// An address of the client is not in memory that it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum NotShared {
    #[error(
        "the client shares no memory; QEMU does with -object memory-backend-memfd,id=ram,size=SIZE,share=on -machine memory-backend=ram"
    )]
    Nothing,
    #[error("the client has a ring at {0:#x}, which is not in the memory that it shares")]
    Outside(u64),
}

/// A mapped region.
#[derive(Clone, Debug)]
struct Region {
    guest: u64,
    client: u64,
    size: u64,
    /// Before the mapping, so dropped before it.
    _watched: Arc<Watched>,
    mapping: Arc<GuestRegionMmap<()>>,
}

/// All regions.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions(Vec<Region>);

impl Regions {
    /// Map one more.
    ///
    /// # Errors
    /// It exceeds its file or the address space, overlaps another region, or is one too many.
    pub(super) fn add(&mut self, described: &VhostUserMemoryRegion, file: File) -> Result<()> {
        let VhostUserMemoryRegion { guest_phys_addr: guest, memory_size: size, user_addr: client, .. } =
            *described;
        let ends = [guest, client].map(|start| start.checked_add(size));
        let taken = self.0.iter().any(|other| {
            overlap((guest, size), (other.guest, other.size))
                || overlap((client, size), (other.client, other.size))
        });
        if ends.contains(&None) || size == 0 || taken || self.0.len() >= MAX_SLOTS {
            return Err(Error::InvalidParam);
        }
        reaches(&file, described.mmap_offset, size)?;
        let mapping = GuestRegionMmap::new(described.mmap_region(file)?, GuestAddress(guest));
        let mapping = Arc::new(mapping.ok_or(Error::InvalidParam)?);
        let watched = Watched::new(mapping.as_ptr(), size as usize).map_err(Error::ReqHandlerError)?;
        self.0.push(Region { guest, client, size, mapping, _watched: Arc::new(watched) });
        Ok(())
    }

    /// Remove a region. It is unmapped when the last [`Memory`] with it is dropped.
    ///
    /// # Errors
    /// There is no such region.
    pub(super) fn remove(&mut self, guest: u64, client: u64, size: u64) -> Result<()> {
        let index = self
            .0
            .iter()
            .position(|region| (region.guest, region.client, region.size) == (guest, client, size));
        self.0.remove(index.ok_or(Error::InvalidParam)?);
        Ok(())
    }

    /// The regions as memory.
    ///
    /// # Errors
    /// None for regions that [`add`](Self::add) took.
    pub(super) fn memory(&self) -> Result<Memory> {
        let mut regions: Vec<_> = self.0.iter().collect();
        regions.sort_by_key(|region| region.guest);
        let mappings = regions.into_iter().map(|region| Arc::clone(&region.mapping)).collect();
        GuestMemoryMmap::from_arc_regions(mappings).map(Arc::new).map_err(|_| Error::InvalidParam)
    }

    /// The guest's address of what is at `address` in the client.
    ///
    /// # Errors
    /// It is not memory.
    pub(super) fn guest_address(&self, address: u64) -> Result<u64> {
        let inside = |region: &&Region| address.wrapping_sub(region.client) < region.size;
        let outside = || {
            Error::ReqHandlerError(io::Error::other(if self.0.is_empty() {
                NotShared::Nothing
            } else {
                NotShared::Outside(address)
            }))
        };
        let region = self.0.iter().find(inside).ok_or_else(outside)?;
        Ok(region.guest + (address - region.client))
    }
}

/// Check that a file is long enough for a mapping: an access beyond its end raises SIGBUS.
///
/// # Errors
/// It is too short.
pub(super) fn reaches(file: &File, offset: u64, size: u64) -> Result<()> {
    // Not by statx, as the standard library has it: that call takes a path, too, so the sandbox refuses it.
    let stat = fstat(file).map_err(|errno| Error::ReqHandlerError(errno.into()))?;
    let end = offset.checked_add(size);
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    // Only regular files have a length.
    if is_file && end.is_none_or(|end| end > stat.st_size as u64) {
        return Err(Error::InvalidParam);
    }
    Ok(())
}

/// Whether two ranges of start and length, which do not wrap, overlap.
const fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0.saturating_add(b.1) && b.0 < a.0.saturating_add(a.1)
}
