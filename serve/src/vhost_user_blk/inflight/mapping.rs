//! The memory that the client keeps.

use std::sync::atomic::Ordering::{Acquire, Release};

use vm_memory::{AtomicAccess, Bytes, MemoryRegionAddress};

use crate::client_region::ClientRegion;

/// A mapping of the client's file.
#[derive(Debug)]
pub(super) struct Mapping(ClientRegion);

impl Mapping {
    pub(super) const fn new(region: ClientRegion) -> Self {
        Self(region)
    }

    // Neither can fail: the queue's region is inside the mapping, and every field is aligned.
    #[inline]
    pub(super) fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        self.0.load(MemoryRegionAddress(at as u64), Acquire).unwrap_or_default()
    }

    #[inline]
    pub(super) fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        let _ = self.0.store(value, MemoryRegionAddress(at as u64), Release);
    }
}
