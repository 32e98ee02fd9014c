//! The contract of an I/O queue: one for each I/O thread.

pub(crate) mod check;
#[cfg(feature = "conformance")]
pub mod conformance;
pub(crate) mod delayed;
pub(crate) mod engine;
pub(crate) mod file_queue;
pub(crate) mod instant;

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::{IoError, PushError};
use crate::host::iobuf::IoBuf;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Disk to buffers.
    Read,
    /// Buffers to disk; `fua`: on stable storage when completed.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// All writes completed before this request was pushed are on stable storage when it completes. No range, no
    /// buffers.
    Flush,
    /// The range's content is no longer needed. No buffers.
    Discard,
    /// The range reads as zeros afterwards. No buffers.
    WriteZeroes {
        /// The range may be deallocated.
        may_unmap: bool,
    },
}

/// A request as it is pushed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Comes back in the completion; the queue gives it no meaning.
    pub tag: u64,
    /// What to do.
    pub op: Op,
    /// Byte offset on the disk, whole logical sectors.
    pub offset: u64,
    /// Bytes, whole logical sectors, the sum of the buffers' lengths for reads and writes.
    pub len: u64,
    /// Where the payload is or goes. Copied by the queue; what they point to must live until the completion.
    pub bufs: &'a [IoBuf],
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// All of it was done, or why not. After an error, the range holds old or new data sector by sector.
    pub result: Result<(), IoError>,
}

/// How the I/O of a file is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// io_uring; falls back to threads where the kernel refuses it, and where the crate is built without its feature
    /// `io-uring` (see [`DiskQueue::engine`]).
    #[default]
    IoUring,
    /// A pool of threads with preadv and pwritev.
    Threads,
}

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Requests in flight at the most, 1 to 4,096.
    pub depth: u32,
    /// Who moves the bytes (ignored by disks without files).
    pub engine: EngineKind,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { depth: 256, engine: EngineKind::default() }
    }
}

/// What a queue has done since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueStats {
    /// System calls that submitted or waited.
    pub submits: u64,
    /// Time-stamp-counter ticks spent in them on the queue's own thread.
    pub submit_ticks: u64,
    /// Requests that needed a bounce buffer.
    pub bounced: u64,
    /// Requests that took the slow path (a helper thread).
    pub slow: u64,
}

/// An I/O queue, owned by one thread.
///
/// # Contract
/// - A request that is invalid (range, alignment, read-only) is taken and completes with its error; only a full queue
///   refuses.
/// - Nothing needs to happen before [`submit`](Self::submit); requests may complete in any order; overlapping requests
///   in flight have no order, each sector ends as one of them left it.
/// - `push`, `submit` and `reap` take no lock and, once warm, allocate nothing on the path of reads and writes.
/// - Requests in flight when the queue is dropped are waited for: no buffer is accessed afterwards.
pub trait DiskQueue: Send {
    /// Take a request.
    ///
    /// # Errors
    /// [`PushError::Full`]: nothing was taken; reap first.
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError>;

    /// Hand everything pushed to the host, with one system call where one serves.
    fn submit(&mut self);

    /// Append the requests that have ended to `out`, without waiting.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Requests taken and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Whether every request has ended when [`push`](Self::push) returns, without a system call that refers to the calling thread: then
    /// the threads of a process may call the queue in turns. With io_uring, what a thread has submitted completes at the cost of that
    /// thread.
    fn completes_in_push(&self) -> bool {
        false
    }

    /// Allow inline I/O: transfers to and from the page cache that this thread makes itself, and that may block it for
    /// a short time. That is faster than io_uring, which hands them to worker threads where the file system may have to
    /// wait (writes on ext4, all on tmpfs). For threads that serve only this queue's client. Queues without such a case
    /// do nothing.
    fn allow_blocking(&mut self) {}

    /// A descriptor to sleep on: readable (level) while completions may be there to reap. Reap after each submit
    /// before sleeping: completions that are there at once need not make it readable. Completions may interrupt the
    /// sleep (EINTR from epoll_wait): reap then too.
    fn event(&self) -> BorrowedFd<'_>;

    /// An eventfd that is written to when completions may be there to reap, for event loops that read what woke them, as they
    /// cannot read [`event`](Self::event). Ask before the first push; read it, then reap. As with `event`, reap after each
    /// submit, too.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] where the queue has none, or the host's.
    fn eventfd(&mut self) -> Result<OwnedFd, IoError> {
        Err(IoError::Unsupported)
    }

    /// Block until at least one request in flight has ended or none is in flight; nothing is reaped. Submits first.
    fn wait(&mut self);

    /// Who really moves the bytes: `io_uring`, `threads`, `ram`, `null`.
    fn engine(&self) -> &'static str;

    /// What it has done so far.
    fn stats(&self) -> QueueStats;
}
