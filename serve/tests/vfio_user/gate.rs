//! A disk that holds requests back while its gate is closed. The tests of vhost-user-blk use it, too.
#![expect(clippy::disallowed_types, reason = "a disk for tests")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paradisk_disk_formats::{
    Allocation, Completion, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Op, OpenError, PushError, QueueConfig,
    QueueStats, RamDisk, Request, SectorSize,
};

use rustix::event::{EventfdFlags, eventfd};

/// A gate, open at first.
#[derive(Clone)]
pub(crate) struct Gate(Arc<State>);

struct State {
    /// Requests that may pass.
    passes: AtomicUsize,
    /// The completion events of all queues of the disk.
    events: Mutex<Vec<Arc<OwnedFd>>>,
}

/// The number of passes of an open gate.
const OPEN: usize = usize::MAX;

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(State { passes: AtomicUsize::new(OPEN), events: Mutex::default() }))
    }
}

impl Gate {
    pub(crate) fn close(&self) {
        self.0.passes.store(0, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.0.passes.store(OPEN, Ordering::SeqCst);
        self.signal();
    }

    /// Let so many requests through a gate that is closed, the oldest first.
    #[allow(dead_code, reason = "the tests of vhost-user-blk use it")]
    pub(crate) fn let_through(&self, requests: usize) {
        self.0.passes.fetch_add(requests, Ordering::SeqCst);
        self.signal();
    }

    fn signal(&self) {
        self.0.events.lock().unwrap().iter().for_each(|event| signal(event));
    }

    fn is_open(&self) -> bool {
        self.0.passes.load(Ordering::SeqCst) > 0
    }

    /// The passes for as many of these requests as may pass.
    fn pass(&self, requests: usize) -> usize {
        let left = |passes| if passes == OPEN { OPEN } else { passes - requests.min(passes) };
        let before =
            self.0.passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |passes| Some(left(passes)));
        requests.min(before.unwrap())
    }
}

/// A disk in memory that starts no request while its gate is closed.
pub(crate) struct GatedDisk {
    disk: RamDisk,
    gate: Gate,
}

impl GatedDisk {
    pub(crate) fn new(capacity: u64, gate: Gate) -> Self {
        Self { disk: RamDisk::new(capacity, SectorSize::B512).unwrap(), gate }
    }
}

impl Disk for GatedDisk {
    fn info(&self) -> &DiskInfo {
        self.disk.info()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        let (queue, gate, event) = (self.disk.queue(config)?, self.gate.clone(), Arc::new(new_event()));
        gate.0.events.lock().unwrap().push(Arc::clone(&event));
        Ok(Box::new(GatedQueue { queue, gate, event, kept: Vec::new() }))
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.disk.status(offset, limit)
    }
}

struct GatedQueue {
    queue: Box<dyn DiskQueue>,
    gate: Gate,
    event: Arc<OwnedFd>,
    kept: Vec<(u64, Op, u64, u64, Vec<IoBuf>)>,
}

impl DiskQueue for GatedQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        let Request { tag, op, offset, len, bufs } = *request;
        self.kept.push((tag, op, offset, len, bufs.to_vec()));
        Ok(())
    }

    fn submit(&mut self) {
        if self.gate.is_open() {
            signal(&self.event);
        }
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.gate.is_open() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            let passes = self.gate.pass(self.kept.len());
            for (tag, op, offset, len, bufs) in self.kept.drain(..passes) {
                self.queue.push(&Request { tag, op, offset, len, bufs: &bufs }).unwrap();
            }
            self.queue.submit();
            self.queue.reap(out);
        }
    }

    fn in_flight(&self) -> usize {
        self.kept.len() + self.queue.in_flight()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wait(&mut self) {
        while !self.gate.is_open() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn engine(&self) -> &'static str {
        "gated"
    }

    fn stats(&self) -> QueueStats {
        self.queue.stats()
    }
}

fn new_event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn signal(event: &OwnedFd) {
    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
}
