//! A disk in memory. Tests decide when its queue completes requests and which ones fail. It records requests.
#![expect(clippy::disallowed_types, reason = "a test looks at the disk while the queue uses it")]

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use paradisk_disk_formats::{
    Allocation, Completion, DiscardLimits, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Kind, Op, OpenError,
    PushError, QueueConfig, QueueStats, Request, SectorSize, Status,
};

/// The state that a test reads and sets.
pub(super) struct Control {
    pub(super) data: Vec<u8>,
    /// Number of further requests that may complete.
    pub(super) allowed: usize,
    /// The last of the allowed completes first.
    pub(super) reverse: bool,
    /// Errors of the next requests that complete.
    pub(super) errors: VecDeque<Option<IoError>>,
    /// Byte whose lowest bit flips before the next read.
    pub(super) decays: Option<usize>,
    /// Ranges of status look-ups: offset and limit in bytes.
    pub(super) looked_up: Vec<(u64, u64)>,
    /// Completed requests.
    pub(super) log: Vec<(Op, u64, u64)>,
    pub(super) submits: u64,
}

pub(super) struct MemoryDisk {
    info: DiskInfo,
    grown: OnceLock<DiskInfo>,
    control: Arc<Mutex<Control>>,
}

struct MemoryQueue {
    depth: usize,
    info: DiskInfo,
    control: Arc<Mutex<Control>>,
    pending: Vec<Pending>,
    submitted: usize,
    event: File,
}

struct Pending {
    tag: u64,
    op: Op,
    offset: u64,
    len: u64,
    bufs: Vec<IoBuf>,
}

/// Sectors of 512 bytes, physical ones of 4,096, a volatile cache, discards that read as zeros.
pub(super) fn info(sectors: u64) -> DiskInfo {
    DiskInfo {
        kind: Kind { format: "ram", subformat: None },
        capacity: sectors * 512,
        logical_sector: SectorSize::B512,
        physical_sector: 4096,
        read_only: false,
        volatile_cache: true,
        discard: Some(DiscardLimits { granularity: 4096, reads_zero: true }),
        buffer_alignment: 1,
    }
}

fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryDisk {
    pub(super) fn new(info: DiskInfo) -> Self {
        // Large disks are not allocated in full; no test uses all of one.
        let data = vec![0; info.capacity.min(64 << 20) as usize];
        let control = Control {
            data,
            allowed: usize::MAX,
            reverse: false,
            errors: VecDeque::new(),
            decays: None,
            looked_up: Vec::new(),
            log: Vec::new(),
            submits: 0,
        };
        Self { info, grown: OnceLock::new(), control: Arc::new(Mutex::new(control)) }
    }

    pub(super) fn control<T>(&self, change: impl FnOnce(&mut Control) -> T) -> T {
        change(&mut lock(&self.control))
    }

    /// Raise the capacity, once.
    pub(super) fn grow(&self, capacity: u64) {
        let info = DiskInfo { capacity, ..self.info.clone() };
        self.grown.set(info).unwrap();
    }

    pub(super) fn memory_queue(&self, depth: usize) -> Box<dyn DiskQueue> {
        Box::new(MemoryQueue {
            depth,
            info: self.info.clone(),
            control: Arc::clone(&self.control),
            pending: Vec::new(),
            submitted: 0,
            event: File::open("/dev/null").unwrap(),
        })
    }
}

impl Disk for MemoryDisk {
    fn info(&self) -> &DiskInfo {
        self.grown.get().unwrap_or(&self.info)
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(self.memory_queue(config.depth as usize))
    }

    /// Runs of zero sectors are not stored.
    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        let mut control = lock(&self.control);
        control.looked_up.push((offset, limit));
        // Ranges that are not in memory were never written.
        if offset >= control.data.len() as u64 && offset + limit <= self.info.capacity {
            return Ok(Allocation { len: limit, status: Status::Zeros });
        }
        let sector = self.info.logical_sector.bytes() as usize;
        let range =
            control.data.get(offset as usize..(offset + limit) as usize).ok_or(IoError::OutOfRange)?;
        let zeros: Vec<bool> =
            range.chunks(sector).map(|sector| sector.iter().all(|byte| *byte == 0)).collect();
        let run = zeros.iter().take_while(|zero| **zero == zeros[0]).count() as u64;
        let status = if zeros[0] { Status::Zeros } else { Status::Mapped };
        Ok(Allocation { len: run * sector as u64, status })
    }
}

impl MemoryQueue {
    fn execute(&self, pending: &Pending, control: &mut Control) -> Result<(), IoError> {
        let sector = u64::from(self.info.logical_sector.bytes());
        let moves = matches!(pending.op, Op::Read | Op::Write { .. });
        let sum = paradisk_disk_formats::total_len(&pending.bufs).unwrap();
        let whole = pending.offset.is_multiple_of(sector) && pending.len.is_multiple_of(sector);
        if !whole || moves && sum != pending.len {
            return Err(IoError::Misaligned);
        }
        if pending.offset + pending.len > self.info.capacity {
            return Err(IoError::OutOfRange);
        }
        if self.info.read_only && !matches!(pending.op, Op::Read | Op::Flush) {
            return Err(IoError::ReadOnly);
        }
        if let Some(Some(error)) = control.errors.pop_front() {
            return Err(error);
        }
        if pending.op == Op::Read
            && let Some(at) = control.decays.take()
        {
            control.data[at] ^= 1;
        }
        let Some(data) =
            control.data.get_mut(pending.offset as usize..(pending.offset + pending.len) as usize)
        else {
            return Ok(());
        };
        let mut at = 0;
        match pending.op {
            Op::Read => pending.bufs.iter().for_each(|buf| at += buf.write(&data[at..])),
            Op::Write { .. } => pending.bufs.iter().for_each(|buf| at += buf.read(&mut data[at..])),
            Op::Discard | Op::WriteZeroes { .. } => data.fill(0),
            _ => {}
        }
        Ok(())
    }
}

impl DiskQueue for MemoryQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if self.pending.len() >= self.depth {
            return Err(PushError::Full);
        }
        let Request { tag, op, offset, len, bufs } = *request;
        self.pending.push(Pending { tag, op, offset, len, bufs: bufs.to_vec() });
        Ok(())
    }

    fn submit(&mut self) {
        self.submitted = self.pending.len();
        lock(&self.control).submits += 1;
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let control = Arc::clone(&self.control);
        let mut control = lock(&control);
        let count = self.submitted.min(control.allowed);
        if control.allowed != usize::MAX {
            control.allowed -= count;
        }
        let mut batch: Vec<Pending> = self.pending.drain(..count).collect();
        self.submitted -= count;
        if control.reverse {
            batch.reverse();
        }
        for pending in batch {
            let result = self.execute(&pending, &mut control);
            control.log.push((pending.op, pending.offset, pending.len));
            out.push(Completion { tag: pending.tag, result });
        }
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wait(&mut self) {
        self.submit();
        let mut control = lock(&self.control);
        control.allowed = control.allowed.max(1);
    }

    fn engine(&self) -> &'static str {
        "ram"
    }

    fn stats(&self) -> QueueStats {
        QueueStats { submits: lock(&self.control).submits, ..QueueStats::default() }
    }
}
