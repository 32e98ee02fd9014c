//! The contract of a disk: its description, its identity, its allocation status, and its queues.

use crate::contract::error::{IoError, OpenError};
use crate::contract::info::DiskInfo;
use crate::contract::metrics::Metrics;
use crate::contract::queue::{DiskQueue, QueueConfig};

/// The identity of a disk, stable from one open to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Identity {
    /// The identity that the image stores: VHD's Unique Id, VHDX's Virtual Disk ID, as the bytes of a UUID in text
    /// order. Copies of an image have the same identity, as have all VHDX images of a chain.
    pub image: Option<[u8; 16]>,
    /// A digest of the location of the disk's file: its inode and path; for a block device its path. A copied or moved
    /// file has another one.
    pub file: Option<[u8; 16]>,
}

/// Whether a range is allocated on the host (GET LBA STATUS, block status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Allocated.
    Mapped,
    /// Not allocated: reads as zeros.
    Zeros,
}

/// The status of a run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Number of bytes with this status from the requested offset; at least one sector.
    pub len: u64,
    /// Their status.
    pub status: Status,
}

/// Memory use of a disk's map. The map has the location of each block, or sector, in the images of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapMemory {
    /// Bytes in use.
    pub bytes: u64,
    /// Maximum of `bytes` so far.
    pub peak: u64,
    /// Limit in bytes.
    pub budget: u64,
    /// Number of parts of the map that were evicted.
    pub evictions: u64,
}

impl MapMemory {
    /// The sum of two maps.
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
    /// Description of the disk.
    fn info(&self) -> &DiskInfo;

    /// Identity of the disk.
    fn identity(&self) -> Identity {
        Identity::default()
    }

    /// A queue for use by one thread. It may be moved to another thread before its first use.
    ///
    /// # Errors
    /// [`OpenError`] if the host refuses the engine's resources.
    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError>;

    /// The allocation status at `offset`, and the length of the run that has it (at most `limit` bytes). May block.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`], or the host's error.
    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError>;

    /// Memory of the disk's map, for disks that have one.
    fn map_memory(&self) -> Option<MapMemory> {
        None
    }

    /// The counters of its queues, for a disk that has some ([`Layered::metered`](crate::Layered::metered)).
    fn metrics(&self) -> Option<Metrics> {
        None
    }

    /// Evict the disk from the host's page cache, so that a measurement starts in the same state for all disks: how the
    /// pages were read decides the size of the folios, and with it the cost of accesses. May block; best effort.
    ///
    /// # Errors
    /// The host's, if dirty pages could not be written back.
    fn uncache(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// Check whether the host has made the disk larger while it is open (block devices, raw files). Returns the
    /// capacity in bytes, which applies to requests of all queues from now on. The caller notifies adapters and
    /// servers. May block.
    ///
    /// # Errors
    /// The host's; [`OpenError::Unsupported`] if the disk has become smaller: the capacity then stays as it is.
    fn rescan(&self) -> Result<u64, OpenError> {
        Ok(self.info().capacity)
    }

    /// Grow the disk to `capacity` bytes while it is open. The added range has the file's data where the file reaches
    /// beyond the disk, else zeros. Otherwise as [`rescan`](Self::rescan). May block.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] if the disk is not a writable raw file, or is larger; [`OpenError::Invalid`] if
    /// `capacity` is not whole sectors; the host's.
    fn grow(&self, _capacity: u64) -> Result<u64, OpenError> {
        let format = self.info().kind.format;
        let reason = "a disk of this format cannot grow while it is open".to_owned();
        Err(OpenError::unsupported(format, reason))
    }
}
