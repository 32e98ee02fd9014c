//! The fallback engine: a pool of threads that call preadv, pwritev and pwritev2.
#![allow(unsafe_code, reason = "hands buffers to the kernel by address")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::{Direction, Ended, Engine, EngineStats, Signal, Transfer};
use crate::contract::iobuf::IoBuf;
use crate::host;
use crate::host::backing::BackingFile;
use crate::host::sys::{self, RwMode};
use crate::host::threads::{self, ThreadKind};

/// Maximum number of threads of a pool.
const WORKERS: u32 = 8;

/// A transfer's buffers and direction.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// One buffer, copied from the caller's slice.
    One(IoBuf, Direction),
    /// Several buffers: pointer and length of the caller's slice.
    Many(*const IoBuf, usize, Direction),
}

#[derive(Clone, Copy, Debug)]
struct Job {
    token: u64,
    file: u32,
    offset: u64,
    work: Work,
}

// SAFETY: the pointer of `Work::Many` is a slice that the caller of `Engine::stage` keeps in place until `next` has
// returned the job's token. Workers only read it.
unsafe impl Send for Job {}

/// State shared by the queue's thread and the workers.
#[derive(Debug)]
struct Shared {
    files: Vec<Arc<BackingFile>>,
    jobs: ArrayQueue<Job>,
    ended: ArrayQueue<Ended>,
    /// A semaphore: its count is the number of submitted jobs; [`STOP`] more when the pool ends.
    work: OwnedFd,
    signal: Arc<Signal>,
}

/// Added to the semaphore when the pool is dropped: more than the number of workers.
const STOP: u64 = 1 << 32;

/// The thread pool.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    capacity: usize,
    in_flight: usize,
    unsubmitted: u64,
    stats: EngineStats,
}

impl Threads {
    pub(crate) fn new(files: &[Arc<BackingFile>], depth: u32) -> Result<Self, std::io::Error> {
        let capacity = depth.max(1) as usize;
        let shared = Arc::new(Shared {
            files: files.to_vec(),
            jobs: ArrayQueue::new(capacity),
            ended: ArrayQueue::new(capacity),
            work: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?,
            signal: Arc::new(Signal::new()?),
        });
        let mut pool = Self {
            shared,
            workers: Vec::new(),
            capacity,
            in_flight: 0,
            unsubmitted: 0,
            stats: EngineStats::default(),
        };
        for _ in 0..depth.clamp(1, WORKERS) {
            let shared = Arc::clone(&pool.shared);
            let worker = threads::spawn(ThreadKind::DiskTransfer, "disk-io", move || shared.run())?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    fn take(&mut self, job: Job) {
        let taken = self.shared.jobs.push(job);
        debug_assert!(taken.is_ok(), "the queue has a free slot");
        self.in_flight += 1;
        self.unsubmitted += 1;
    }
}

impl Shared {
    fn run(&self) {
        loop {
            match rustix::io::read(&self.work, &mut [0; 8]) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            // Jobs are published before they are counted, so a count without a job means the pool ends.
            let Some(job) = self.jobs.pop() else { return };
            let result = self.perform(&job);
            let kept = self.ended.push((job.token, result));
            debug_assert!(kept.is_ok(), "as large as the number of jobs");
            self.signal.raise();
        }
    }

    fn perform(&self, job: &Job) -> Result<u32, Errno> {
        let file = self.files.get(job.file as usize).ok_or(Errno::BADF)?.file();
        loop {
            let result = match job.work {
                Work::One(buf, direction) => move_bytes(file.as_fd(), &[buf], job.offset, direction),
                Work::Many(bufs, count, direction) => {
                    // SAFETY: see `Job`.
                    let bufs = unsafe { std::slice::from_raw_parts(bufs, count) };
                    move_bytes(file.as_fd(), bufs, job.offset, direction)
                }
            };
            if result != Err(Errno::INTR) {
                return result;
            }
        }
    }
}

fn move_bytes(fd: BorrowedFd<'_>, bufs: &[IoBuf], offset: u64, direction: Direction) -> Result<u32, Errno> {
    let mode = match direction {
        Direction::Read => RwMode::Read,
        Direction::Write { dsync: false } => RwMode::Write,
        Direction::Write { dsync: true } => RwMode::WriteThrough,
    };
    let moved = host::transfer(fd, bufs, offset, mode)?;
    u32::try_from(moved).map_err(|_| Errno::OVERFLOW)
}

impl Engine for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn has_capacity(&self) -> bool {
        self.in_flight < self.capacity
    }

    unsafe fn stage(&mut self, transfer: &Transfer<'_>) {
        let work = match transfer.bufs {
            [buf] => Work::One(*buf, transfer.direction),
            bufs => Work::Many(bufs.as_ptr(), bufs.len(), transfer.direction),
        };
        self.take(Job { token: transfer.token, file: transfer.file, offset: transfer.offset, work });
    }

    fn submit(&mut self) {
        if self.unsubmitted > 0 {
            let before = sys::ticks();
            // The write cannot block: the 64-bit counter stays far below its maximum.
            let _ = rustix::io::write(&self.shared.work, &self.unsubmitted.to_ne_bytes());
            self.stats.submits += 1;
            self.stats.ticks += sys::ticks().wrapping_sub(before);
            self.unsubmitted = 0;
        }
    }

    fn next(&mut self) -> Option<Ended> {
        let ended = self.shared.ended.pop().or_else(|| {
            self.shared.signal.lower();
            self.shared.ended.pop()
        })?;
        self.in_flight -= 1;
        Some(ended)
    }

    fn lost(&mut self) -> Option<Errno> {
        None
    }

    fn wait(&mut self) {
        self.submit();
        if self.shared.ended.is_empty() {
            let before = sys::ticks();
            let mut fds = [PollFd::new(&*self.shared.signal, PollFlags::IN)];
            // A poll that fails with EINTR counts as a wake-up: the caller checks, and waits again.
            let _ = poll(&mut fds, None);
            self.stats.submits += 1;
            self.stats.ticks += sys::ticks().wrapping_sub(before);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }

    /// A duplicate of the signal's descriptor. `lower` works even if the caller has read the counter.
    fn eventfd(&mut self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&*self.shared.signal, 0)
    }

    fn signal(&self) -> &Arc<Signal> {
        &self.shared.signal
    }

    fn watch(&mut self) {}

    fn stats(&self) -> EngineStats {
        self.stats
    }
}

impl Drop for Threads {
    /// Waits for the submitted jobs. No buffer is accessed afterwards.
    fn drop(&mut self) {
        // Jobs that were never submitted must not run.
        while self.unsubmitted > 0 && self.shared.jobs.pop().is_some() {}
        let _ = rustix::io::write(&self.shared.work, &STOP.to_ne_bytes());
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
