//! I/O queues: requests, completions, and the contract of [`DiskQueue`]. A disk can have several queues, for instance one for each thread
//! that uses the disk. All queues validate requests in the same way ([`check`]).

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::contract::error::{IoError, PushError};
use crate::contract::info::DiskInfo;
use crate::contract::iobuf::{IoBuf, total_len};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Transfer from the disk to the buffers.
    Read,
    /// Transfer from the buffers to the disk. With `fua`, the data are on stable storage when the request completes.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// When it completes, all writes that completed before it was pushed are on stable storage. Has no range and no
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

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The caller's identifier for the request. The completion returns it; the queue does not interpret it.
    pub tag: u64,
    /// The operation.
    pub op: Op,
    /// Byte offset on the disk; a multiple of the logical sector.
    pub offset: u64,
    /// Bytes; a multiple of the logical sector. For reads and writes the sum of the buffers' lengths.
    pub len: u64,
    /// The payload's buffers. The queue copies the slice; the memory that the buffers point to must stay valid until
    /// the completion.
    pub bufs: &'a [IoBuf],
}

/// The completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Success, or the error. After an error, each sector of the range holds old or new data.
    pub result: Result<(), IoError>,
}

/// The I/O engine of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineKind {
    /// io_uring. The queue falls back to threads if the kernel refuses io_uring, and if the crate is built without its
    /// feature `io-uring` (see [`DiskQueue::engine`]).
    #[default]
    IoUring,
    /// A pool of threads that call preadv and pwritev.
    Threads,
}

/// Options of a new queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Maximum number of requests in flight, 1 to 4,096.
    pub depth: u32,
    /// The I/O engine. Disks without files ignore it.
    pub engine: EngineKind,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { depth: 256, engine: EngineKind::default() }
    }
}

/// Counters of a queue since its creation.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueStats {
    /// System calls that submitted operations or waited for them.
    pub submits: u64,
    /// Time-stamp-counter ticks that the queue's own thread spent in these system calls.
    pub submit_ticks: u64,
    /// Requests that needed a bounce buffer.
    pub bounced: u64,
    /// Jobs of the helper threads: preparations of mappings, discards, writes of zeros, flushes. A request may need several.
    pub slow: u64,
}

/// An I/O queue. One thread at a time uses it, usually always the same one.
///
/// # Contract
/// - `push` accepts an invalid request (range, alignment, read-only disk) and completes it with an error. `push` fails
///   only if the queue is full.
/// - The queue may defer requests until [`submit`](Self::submit). Requests may complete in any order. Overlapping
///   requests in flight are not ordered: each sector holds the data of one of them.
/// - For reads and writes of mapped blocks, `push`, `submit` and `reap` take no lock, and after warm-up they allocate
///   nothing. (A write takes a lock if the map has evicted its granule before the write completes.)
/// - Dropping the queue waits for the requests in flight. No buffer is accessed afterwards.
pub trait DiskQueue: Send {
    /// Add a request to the queue.
    ///
    /// # Errors
    /// [`PushError::Full`]: the request was not added. Reap completions first.
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError>;

    /// Start all pushed requests, with a single system call if possible.
    fn submit(&mut self);

    /// Append the completions that are available to `out`, without waiting.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Number of requests pushed and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Allow inline I/O: the calling thread itself transfers to and from the page cache, and may block for a short
    /// time. Inline I/O is faster than io_uring if io_uring would pass the transfer to a worker thread (writes on
    /// ext4, all transfers on tmpfs), and for reads of what the page cache has. Allow it on threads that serve only
    /// this queue. Queues without such transfers ignore the call.
    fn allow_blocking(&mut self) {}

    /// A descriptor to sleep on. It is readable (level-triggered) while completions may be available, except for
    /// completions that are available as soon as `submit` returns: reap after each submit, before sleeping.
    fn event(&self) -> BorrowedFd<'_>;

    /// An eventfd that is signaled when completions may be available, for event loops that read the descriptor that
    /// woke them ([`event`](Self::event) cannot be read). Request it before the first push. Read it, then reap. As with
    /// `event`, reap after each submit, too.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if the queue has no eventfd; or the host's error.
    fn eventfd(&mut self) -> Result<OwnedFd, IoError> {
        Err(IoError::Unsupported)
    }

    /// Submit, then block until at least one request in flight has completed, or until none is in flight. Does not
    /// reap.
    fn wait(&mut self);

    /// The engine in use: `io_uring`, `threads`, `ram` or `null`.
    fn engine(&self) -> &'static str;

    /// Counters since the creation.
    fn stats(&self) -> QueueStats;
}

/// Whether the request is a valid READ or WRITE with one buffer, as nearly all requests are. If false, [`check`]
/// returns the reason or accepts the request.
#[inline(always)]
pub(crate) fn is_plain(info: &DiskInfo, request: &Request<'_>) -> bool {
    let allowed = match request.op {
        Op::Read => true,
        Op::Write { .. } => !info.read_only,
        _ => false,
    };
    matches!(request.bufs, [buf] if buf.len() as u64 == request.len)
        && allowed
        && check_range(info, request.offset, request.len).is_ok()
}

/// Validate a request.
#[inline]
pub(crate) fn check(info: &DiskInfo, request: &Request<'_>) -> Result<(), IoError> {
    let writes = match request.op {
        Op::Flush => return Ok(()),
        Op::Read => false,
        Op::Write { .. } | Op::WriteZeroes { .. } => true,
        Op::Discard if info.discard.is_none() => return Err(IoError::Unsupported),
        Op::Discard => true,
    };
    if writes && info.read_only {
        return Err(IoError::ReadOnly);
    }
    let has_payload = matches!(request.op, Op::Read | Op::Write { .. });
    if has_payload && total_len(request.bufs) != Some(request.len) {
        return Err(IoError::Misaligned);
    }
    check_range(info, request.offset, request.len)
}

/// The range must be whole sectors inside the disk.
#[inline]
pub(crate) fn check_range(info: &DiskInfo, offset: u64, len: u64) -> Result<(), IoError> {
    let within = u64::from(info.logical_sector.bytes()) - 1;
    if (offset | len) & within != 0 {
        return Err(IoError::Misaligned);
    }
    match offset.checked_add(len) {
        Some(end) if end <= info.capacity => Ok(()),
        _ => Err(IoError::OutOfRange),
    }
}
