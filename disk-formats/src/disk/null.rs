//! The null disk completes requests at once and transfers no data, to measure adapters and queues alone.

use std::sync::Arc;

use crate::contract::disk::{Allocation, Disk, Status};
use crate::contract::error::{BadField, IoError, OpenError};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::contract::queue::{DiskQueue, QueueConfig, Request};
use crate::queue::instant::{Medium, instant_queue};

/// A disk without storage. Reads leave the buffers unchanged.
#[derive(Debug)]
pub struct NullDisk(Arc<Null>);

#[derive(Debug)]
struct Null(DiskInfo);

impl NullDisk {
    /// A null disk of `capacity` bytes.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] if the capacity is 0 or not whole sectors.
    pub fn new(capacity: u64, logical_sector: SectorSize) -> Result<Self, OpenError> {
        let info = memory_info("null", capacity, logical_sector)?;
        Ok(Self(Arc::new(Null(info))))
    }
}

/// The description of a disk without files.
pub(crate) fn memory_info(
    format: &'static str,
    capacity: u64,
    logical_sector: SectorSize,
) -> Result<DiskInfo, OpenError> {
    let sector = u64::from(logical_sector.bytes());
    if capacity == 0 || !capacity.is_multiple_of(sector) {
        return Err(BadField::new(
            "capacity",
            format!("{capacity} bytes"),
            format!("whole sectors of {sector} bytes, at least one"),
        )
        .of(format));
    }
    Ok(DiskInfo {
        kind: Kind { format, subformat: None },
        capacity,
        logical_sector,
        physical_sector: 4096,
        read_only: false,
        volatile_cache: false,
        discard: Some(DiscardLimits { granularity: sector.max(4096), reads_zero: format == "ram" }),
        buffer_alignment: 1,
    })
}

impl Medium for Null {
    fn info(&self) -> &DiskInfo {
        &self.0
    }

    #[inline]
    fn perform(&self, _request: &Request<'_>) -> Result<(), IoError> {
        Ok(())
    }
}

impl Disk for NullDisk {
    fn info(&self) -> &DiskInfo {
        &self.0.0
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        instant_queue(&self.0, config)
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        let left = self.info().capacity.checked_sub(offset).filter(|left| *left > 0);
        Ok(Allocation { len: left.ok_or(IoError::OutOfRange)?.min(limit), status: Status::Mapped })
    }
}
