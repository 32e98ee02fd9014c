//! A disk in memory that holds requests back until it is told to end them, or waited for.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::SegQueue;
use paradisk_disk_formats::{
    Allocation, Completion, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Kind, Op, OpenError, PushError,
    QueueConfig, QueueStats, Request, SectorSize, Status,
};

/// Held while true: no request completes unless the queue is waited for, as with a disk whose I/O does not complete.
#[derive(Clone, Default)]
pub(crate) struct Hold(Arc<HoldState>);

#[derive(Default)]
struct HoldState {
    held: AtomicBool,
    waits: AtomicU32,
    breaches: SegQueue<Breach>,
}

/// How a queue breaks its contract, at the next request that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// It is completed with another tag.
    Tag(u64),
    /// It is completed twice.
    Twice,
    /// It is never completed.
    Lose,
}

impl Hold {
    pub(crate) fn set(&self, held: bool) {
        self.0.held.store(held, Ordering::Relaxed);
    }

    /// Number of waits for a queue while requests were held back. With a real disk, each of these would have blocked the thread.
    pub(crate) fn waits(&self) -> u32 {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// One queue breaks its contract once.
    pub(crate) fn breach(&self, breach: Breach) {
        self.0.breaches.push(breach);
    }

    fn get(&self) -> bool {
        self.0.held.load(Ordering::Relaxed)
    }
}

/// What the disk was asked to do, in this order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<SegQueue<Op>>);

impl Log {
    pub(crate) fn take(&self) -> Vec<Op> {
        std::iter::from_fn(|| self.0.pop()).collect()
    }
}

pub(crate) struct TestDisk {
    pub(crate) info: DiskInfo,
    pub(crate) log: Log,
    hold: Hold,
    grown: OnceLock<DiskInfo>,
}

impl TestDisk {
    pub(crate) fn new(capacity: u64, hold: Hold) -> Self {
        let info = DiskInfo {
            kind: Kind { format: "test", subformat: None },
            capacity,
            logical_sector: SectorSize::B512,
            physical_sector: 512,
            read_only: false,
            volatile_cache: false,
            discard: None,
            buffer_alignment: 1,
        };
        Self { info, log: Log::default(), hold, grown: OnceLock::new() }
    }

    /// Report this larger capacity from now on. May be called once.
    pub(crate) fn grow(&self, capacity: u64) {
        self.grown.set(DiskInfo { capacity, ..self.info.clone() }).unwrap();
    }
}

impl Disk for TestDisk {
    fn info(&self) -> &DiskInfo {
        self.grown.get().unwrap_or(&self.info)
    }
    fn queue(&self, _config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        Ok(Box::new(TestQueue {
            data: vec![0; self.info.capacity as usize],
            hold: self.hold.clone(),
            log: self.log.clone(),
            waited: false,
            requests: Vec::new(),
            event: File::open("/dev/null").unwrap(),
        }))
    }
    fn status(&self, _offset: u64, limit: u64) -> Result<Allocation, IoError> {
        Ok(Allocation { len: limit, status: Status::Mapped })
    }
}

struct TestQueue {
    data: Vec<u8>,
    hold: Hold,
    log: Log,
    waited: bool,
    requests: Vec<(u64, Op, u64, u64, Vec<IoBuf>)>,
    event: File,
}

impl TestQueue {
    fn execute(&mut self, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) -> Result<(), IoError> {
        let range = offset as usize..offset.checked_add(len).ok_or(IoError::OutOfRange)? as usize;
        let mut data = self.data.get_mut(range).ok_or(IoError::OutOfRange)?;
        for buf in bufs {
            let (piece, rest) = data.split_at_mut_checked(buf.len()).ok_or(IoError::Misaligned)?;
            match op {
                Op::Read => buf.write(piece),
                _ => buf.read(piece),
            };
            data = rest;
        }
        if matches!(op, Op::WriteZeroes { .. }) {
            data.fill(0);
        }
        Ok(())
    }
}

impl DiskQueue for TestQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.log.0.push(request.op);
        self.requests.push((request.tag, request.op, request.offset, request.len, request.bufs.to_vec()));
        Ok(())
    }
    fn submit(&mut self) {}
    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.hold.get() && !std::mem::take(&mut self.waited) {
            return;
        }
        for (tag, op, offset, len, bufs) in std::mem::take(&mut self.requests) {
            let completion = Completion { tag, result: self.execute(op, offset, len, &bufs) };
            match self.hold.0.breaches.pop() {
                None => out.push(completion),
                Some(Breach::Tag(tag)) => out.push(Completion { tag, ..completion }),
                Some(Breach::Twice) => out.extend([completion; 2]),
                Some(Breach::Lose) => {}
            }
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
        if self.hold.get() && !self.requests.is_empty() {
            self.hold.0.waits.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn engine(&self) -> &'static str {
        "test"
    }
    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}
