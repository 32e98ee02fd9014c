//! The RAM disk: anonymous memory, allocated by the host where it is first written.

use std::sync::Arc;

use crate::contract::disk::{Allocation, Disk, Status};
use crate::contract::error::{IoError, OpenError};
use crate::contract::info::{DiskInfo, SectorSize};
use crate::contract::queue::{DiskQueue, Op, QueueConfig, Request};
use crate::disk::null::memory_info;
use crate::host::memory::HostMemory;
use crate::queue::instant::{Medium, instant_queue};

/// A disk in memory, which all its queues share. It reads as zeros at first. Dropping it frees the memory.
#[derive(Debug)]
pub struct RamDisk(Arc<Ram>);

#[derive(Debug)]
struct Ram {
    info: DiskInfo,
    memory: HostMemory,
}

impl RamDisk {
    /// A RAM disk of `capacity` bytes that reads as zeros.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] if the capacity is 0 or not whole sectors; [`OpenError::Os`] if the host refuses the memory.
    pub fn new(capacity: u64, logical_sector: SectorSize) -> Result<Self, OpenError> {
        let info = memory_info("ram", capacity, logical_sector)?;
        let refused = OpenError::os("ram", "cannot map its memory");
        let len = usize::try_from(capacity).map_err(|_| refused(std::io::ErrorKind::OutOfMemory.into()))?;
        let memory = HostMemory::new(len).map_err(refused)?;
        Ok(Self(Arc::new(Ram { info, memory })))
    }
}

impl Medium for Ram {
    fn info(&self) -> &DiskInfo {
        &self.info
    }

    #[inline]
    fn perform(&self, request: &Request<'_>) -> Result<(), IoError> {
        // The request was validated: it lies inside the capacity, which fits a usize.
        let (mut at, len) = (request.offset as usize, request.len as usize);
        match request.op {
            Op::Read => request.bufs.iter().for_each(|buf| at += self.memory.buf(at, buf.len()).copy_to(buf)),
            Op::Write { .. } => {
                request.bufs.iter().for_each(|buf| at += buf.copy_to(&self.memory.buf(at, buf.len())));
            }
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes { may_unmap: true } => self.memory.discard(at, len),
            Op::WriteZeroes { may_unmap: false } => self.memory.buf(at, len).zero(),
        }
        Ok(())
    }
}

impl Disk for RamDisk {
    fn info(&self) -> &DiskInfo {
        &self.0.info
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        instant_queue(&self.0, config)
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        let left = self.info().capacity.checked_sub(offset).filter(|left| *left > 0);
        Ok(Allocation { len: left.ok_or(IoError::OutOfRange)?.min(limit), status: Status::Mapped })
    }
}
