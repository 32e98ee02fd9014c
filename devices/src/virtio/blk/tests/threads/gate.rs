//! A disk whose requests end while a gate is open, for several threads.
#![expect(clippy::disallowed_types, reason = "a disk for tests")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use paradisk_disk_formats::{
    Allocation, Completion, Disk, DiskInfo, DiskQueue, IoError, OpenError, PushError, QueueConfig,
    QueueStats, RamDisk, Request, SectorSize,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// A gate, closed at first.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<GateState>);

#[derive(Default)]
struct GateState {
    open: AtomicBool,
    /// Threads that have waited for a closed gate.
    waiting: AtomicUsize,
    /// Of all queues.
    events: Mutex<Vec<Arc<OwnedFd>>>,
    grown: OnceLock<DiskInfo>,
    disk: OnceLock<DiskInfo>,
}

impl Gate {
    pub(super) fn open(&self) {
        self.0.open.store(true, Ordering::SeqCst);
        self.0.events.lock().unwrap().iter().for_each(|event| signal(event));
    }

    pub(super) fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::SeqCst)
    }

    fn is_open(&self) -> bool {
        self.0.open.load(Ordering::SeqCst)
    }

    /// Let the disk report this capacity from now on. May be called once.
    pub(super) fn grow(&self, capacity: u64) {
        let info = self.0.disk.get().unwrap();
        self.0.grown.set(DiskInfo { capacity, ..info.clone() }).unwrap();
    }
}

/// A disk with twice the capacity that it reports, until [`Gate::grow`] is called.
pub(super) struct GatedDisk {
    disk: RamDisk,
    gate: Gate,
}

impl GatedDisk {
    pub(super) fn new(capacity: u64, gate: Gate) -> Self {
        let disk = RamDisk::new(2 * capacity, SectorSize::B512).unwrap();
        gate.0.disk.set(DiskInfo { capacity, ..disk.info().clone() }).unwrap();
        Self { disk, gate }
    }
}

impl Disk for GatedDisk {
    fn info(&self) -> &DiskInfo {
        self.gate.0.grown.get().or(self.gate.0.disk.get()).unwrap()
    }

    fn queue(&self, config: &QueueConfig) -> Result<Box<dyn DiskQueue>, OpenError> {
        let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        self.gate.0.events.lock().unwrap().push(Arc::clone(&event));
        Ok(Box::new(GatedQueue {
            queue: self.disk.queue(config)?,
            gate: self.gate.clone(),
            event,
            ended: Vec::new(),
        }))
    }

    fn status(&self, offset: u64, limit: u64) -> Result<Allocation, IoError> {
        self.disk.status(offset, limit)
    }
}

struct GatedQueue {
    queue: Box<dyn DiskQueue>,
    gate: Gate,
    event: Arc<OwnedFd>,
    ended: Vec<Completion>,
}

impl DiskQueue for GatedQueue {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        self.queue.push(request)
    }

    fn submit(&mut self) {
        self.queue.submit();
        self.queue.reap(&mut self.ended);
        if self.gate.is_open() {
            signal(&self.event);
        }
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.gate.is_open() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            out.append(&mut self.ended);
        }
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wait(&mut self) {
        if !self.gate.is_open() {
            self.gate.0.waiting.fetch_add(1, Ordering::SeqCst);
        }
        poll(&mut [PollFd::new(&self.event, PollFlags::IN)], None).unwrap();
    }

    fn engine(&self) -> &'static str {
        "gated"
    }

    fn stats(&self) -> QueueStats {
        self.queue.stats()
    }
}

fn signal(event: &OwnedFd) {
    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
}
