//! A disk in memory that holds requests back or fails them when the input says so. (The tests of `devices` have one of their own,
//! which also breaks the contract of queues.)

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use paradisk_disk_formats::{
    Allocation, Completion, DiscardLimits, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Op, OpenError,
    PushError, QueueConfig, QueueStats, RamDisk, Request, SectorSize, Status,
};

pub(crate) const CAPACITY: u64 = 64 << 10;

/// Requests are held back for fewer calls of `reap` than this: a device that waits for its disk, as PVSCSI's reset does, sleeps
/// meanwhile.
const HOLD_MOST: u32 = 16;

/// How the disks behave.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// Requests are held back until their queue is waited for.
    pub(crate) hold: AtomicBool,
    /// One in so many requests fails; 0: none.
    pub(crate) failing: AtomicU8,
    /// Requests so far while some fail, modulo 256.
    count: AtomicU8,
}

pub(crate) struct FuzzDisk {
    info: DiskInfo,
    behaviour: Arc<Behaviour>,
}

impl FuzzDisk {
    pub(crate) fn new(behaviour: Arc<Behaviour>) -> Self {
        let ram = RamDisk::new(CAPACITY, SectorSize::B512).expect("a disk");
        let discard = Some(DiscardLimits { granularity: 512, reads_zero: true });
        let info = DiskInfo { volatile_cache: true, discard, ..ram.info().clone() };
        Self { info, behaviour }
    }
}

impl Disk for FuzzDisk {
    fn info(&self) -> &DiskInfo {
        &self.info
    }
    fn queue(&self, _config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(FuzzQueue {
            data: vec![0; CAPACITY as usize],
            behaviour: Arc::clone(&self.behaviour),
            waited: false,
            looks: 0,
            requests: Vec::new(),
            event: File::open("/dev/null").expect("a file"),
        }))
    }
    fn status(&self, _offset: u64, limit: u64) -> Result<Allocation, IoError> {
        Ok(Allocation { len: limit, status: Status::Mapped })
    }
}

struct FuzzQueue {
    data: Vec<u8>,
    behaviour: Arc<Behaviour>,
    waited: bool,
    /// Calls of `reap` since the requests were last executed.
    looks: u32,
    requests: Vec<(u64, Op, u64, u64, Vec<IoBuf>)>,
    event: File,
}

impl FuzzQueue {
    fn execute(&mut self, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> Result<(), IoError> {
        let failing = self.behaviour.failing.load(Relaxed);
        if failing > 0 && self.behaviour.count.fetch_add(1, Relaxed).is_multiple_of(failing) {
            return Err(IoError::NoSpace);
        }
        if matches!(op, Op::Flush) {
            return Ok(());
        }
        let end = offset.checked_add(len).ok_or(IoError::OutOfRange)?;
        let data = self.data.get_mut(offset as usize..end as usize);
        let mut data = data.ok_or(IoError::OutOfRange)?;
        for buf in bufs {
            let (piece, rest) = data.split_at_mut_checked(buf.len()).expect("buffers of that length");
            match op {
                Op::Read => buf.write(piece),
                _ => buf.read(piece),
            };
            data = rest;
        }
        Ok(())
    }
}

impl DiskQueue for FuzzQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.requests.push((request.tag, request.op, request.offset, request.len, request.bufs.to_vec()));
        Ok(())
    }
    fn submit(&mut self) {}
    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.looks += 1;
        if self.behaviour.hold.load(Relaxed) && !std::mem::take(&mut self.waited) && self.looks < HOLD_MOST {
            return;
        }
        self.looks = 0;
        for (tag, op, offset, len, bufs) in std::mem::take(&mut self.requests) {
            out.push(Completion { tag, result: self.execute(op, offset, len, &bufs) });
        }
    }
    fn in_flight(&self) -> usize {
        self.requests.len()
    }
    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
    fn wait(&mut self) {
        self.waited = true;
    }
    fn engine(&self) -> &'static str {
        "fuzz"
    }
    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}
