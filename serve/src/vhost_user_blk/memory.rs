//! Guest memory as the client has described it: regions of files, each with its address in the guest and its address in the
//! client. Addresses of rings are those of the client.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};
use vm_memory::GuestRegionCollection;

use crate::client_region::ClientRegion;

/// Memory as the rings use it.
pub(super) type Memory = Arc<GuestRegionCollection<ClientRegion>>;

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
    mapping: Arc<ClientRegion>,
}

/// All regions.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions(Vec<Region>);

impl Regions {
    /// Map one more.
    ///
    /// # Errors
    /// It overlaps another region, is one too many, or cannot be mapped.
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
        let mapping = ClientRegion::map(file, described.mmap_offset, size, guest, true);
        let mapping = Arc::new(mapping.map_err(|error| Error::ReqHandlerError(error.into()))?);
        self.0.push(Region { guest, client, size, mapping });
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
        GuestRegionCollection::from_arc_regions(mappings).map(Arc::new).map_err(|_| Error::InvalidParam)
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

/// Whether two ranges of start and length, which do not wrap, overlap.
const fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0.saturating_add(b.1) && b.0 < a.0.saturating_add(a.1)
}
