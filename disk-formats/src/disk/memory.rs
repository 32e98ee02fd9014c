//! Disks without files, whose queue executes a request in `push`. The RAM disk is anonymous memory, which the host allocates where it is first
//! written. The null disk transfers no data, to measure adapters and queues alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::contract::disk::{Allocation, Disk, Status};
use crate::contract::error::{BadField, IoError, OpenError, PushError};
use crate::contract::info::{DiscardLimits, DiskInfo, Kind, SectorSize};
use crate::contract::queue::{Completion, DiskQueue, Op, QueueConfig, QueueStats, Request, check, is_plain};
use crate::host::memory::HostMemory;
use crate::queue::file_queue::check_depth;

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

impl Contents for Ram {
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

impl Contents for Null {
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

/// The storage behind such a queue.
pub(crate) trait Contents: Send + Sync + 'static {
    fn info(&self) -> &DiskInfo;

    /// Execute a request that has been validated.
    fn perform(&self, request: &Request<'_>) -> Result<(), IoError>;
}

/// A queue for a medium.
pub(crate) fn instant_queue<M: Contents>(
    medium: &Arc<M>,
    config: &QueueConfig,
) -> Result<Box<dyn DiskQueue>, OpenError> {
    let path = medium.info().kind.format;
    let depth = check_depth(path, config)? as usize;
    let never = eventfd(0, EventfdFlags::CLOEXEC).map_err(OpenError::os(path, "cannot make an I/O queue"))?;
    let free = Completion { tag: 0, result: Ok(()) };
    Ok(Box::new(InstantQueue {
        medium: Arc::clone(medium),
        ready: vec![free; depth].into(),
        count: 0,
        never,
    }))
}

struct InstantQueue<M> {
    medium: Arc<M>,
    /// Completions; the first `count` are ready. A slice and not a vector: a possible call to grow it would make `push`
    /// save registers.
    ready: Box<[Completion]>,
    count: usize,
    /// Never readable: every request can be reaped as soon as it is pushed.
    never: OwnedFd,
}

impl<M: Contents> InstantQueue<M> {
    /// Execute a request that is not plain ([`is_plain`]).
    #[inline(never)]
    fn push_other(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        let place = self.ready.get_mut(self.count).ok_or(PushError::Full)?;
        let result = check(self.medium.info(), request).and_then(|()| self.medium.perform(request));
        *place = Completion { tag: request.tag, result };
        self.count += 1;
        Ok(())
    }
}

impl<M: Contents> DiskQueue for InstantQueue<M> {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if !is_plain(self.medium.info(), request) {
            return self.push_other(request);
        }
        let place = self.ready.get_mut(self.count).ok_or(PushError::Full)?;
        *place = Completion { tag: request.tag, result: self.medium.perform(request) };
        self.count += 1;
        Ok(())
    }

    fn submit(&mut self) {}

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.extend_from_slice(self.ready.get(..self.count).unwrap_or_default());
        self.count = 0;
    }

    fn in_flight(&self) -> usize {
        self.count
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }

    fn eventfd(&mut self) -> Result<OwnedFd, IoError> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.never, 0)?)
    }

    fn wait(&mut self) {}

    fn engine(&self) -> &'static str {
        self.medium.info().kind.format
    }

    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}
