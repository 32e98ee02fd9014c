//! The contract of a disk: what it is, and queues to use it.

pub(crate) mod allocations;
pub(crate) mod file_disk;
pub(crate) mod identity;
pub(crate) mod image;
pub(crate) mod info;
pub(crate) mod null;
pub(crate) mod open;
pub(crate) mod ram;
pub(crate) mod revisions;

use crate::disk::identity::Identity;
use crate::disk::info::DiskInfo;
use crate::error::{IoError, OpenError};
use crate::queue::{DiskQueue, QueueConfig};

/// Whether a range has space on the host (GET LBA STATUS, block status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Stored.
    Mapped,
    /// Not stored; reads as zeros.
    Zeros,
}

/// The status of a run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Bytes that share the status, from the requested offset; at least one sector.
    pub len: u64,
    /// Their status.
    pub status: Status,
}

/// Memory of a disk's map: where each of its blocks, or sectors, is in the images of its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapMemory {
    /// Bytes in use.
    pub bytes: u64,
    /// The most that were in use.
    pub peak: u64,
    /// Bytes that it takes at the most.
    pub budget: u64,
    /// Parts of the map that were evicted.
    pub evictions: u64,
}

impl MapMemory {
    /// Of two maps together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            peak: self.peak.saturating_add(other.peak),
            budget: self.budget.saturating_add(other.budget),
            evictions: self.evictions.saturating_add(other.evictions),
        }
    }
}

/// A disk that adapters, servers and tools can use.
pub trait Disk: Send + Sync {
    /// What it is.
    fn info(&self) -> &DiskInfo;

    /// Its identity.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// A queue for the calling thread's use (it may be moved to another before its first use).
    ///
    /// # Errors
    /// [`OpenError`] where the host refuses the engine's resources.
    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError>;

    /// The status at `offset`, and how far it reaches (`limit` bytes at the most). May block.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`], or the host's error.
    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError>;

    /// Memory of the disk's map, for disks that have one.
    fn map_memory(&self) -> Option<MapMemory> {
        None
    }

    /// Have the host's page cache forget what it holds of the disk, so that a measurement begins alike for all disks:
    /// how pages got there decides how large they are, and what accesses to them cost. May block; best effort.
    ///
    /// # Errors
    /// The host's, where changes could not be written back before.
    fn uncache(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// Look whether the host has made the disk larger while it is open, as block devices and raw files may be; the
    /// capacity in bytes that it has from now on, for requests of all queues. The caller notifies adapters and servers
    /// of the disk. May block.
    ///
    /// # Errors
    /// The host's; [`OpenError::Unsupported`] where it has become smaller: then nothing changes.
    fn rescan(&self) -> Result<u64, OpenError> {
        Ok(self.info().capacity)
    }

    /// Make the disk larger while it is open: `capacity` bytes, with what the file has behind the disk, else zeros. As for
    /// [`rescan`](Self::rescan). May block.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] where it is no raw file that may be written, or is larger; [`OpenError::Invalid`] for
    /// parts of sectors; the host's.
    fn grow(&self, _capacity: u64) -> Result<u64, OpenError> {
        let format = self.info().kind.format;
        let reason = "it has the size that it was made with".to_owned();
        Err(OpenError::Unsupported { path: format.into(), reason })
    }
}
