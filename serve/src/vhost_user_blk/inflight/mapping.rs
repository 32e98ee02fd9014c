//! The memory that the client keeps.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Release};

use vm_memory::{AtomicAccess, Bytes, MmapRegion, VolatileMemory};

use crate::sigbus::Watched;

/// A mapping of the client's file.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The first field, so dropped first.
    _watched: Watched,
    region: MmapRegion<()>,
}

impl Mapping {
    /// # Errors
    /// Too many mappings are watched.
    pub(super) fn new(region: MmapRegion<()>) -> io::Result<Self> {
        let watched = Watched::new(region.as_ptr(), region.size())?;
        Ok(Self { _watched: watched, region })
    }

    // Neither can fail: the queue's region is inside the mapping, and every field is aligned.
    #[inline]
    pub(super) fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        self.region.as_volatile_slice().load(at, Acquire).unwrap_or_default()
    }

    #[inline]
    pub(super) fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        let _ = self.region.as_volatile_slice().store(value, at, Release);
    }
}
