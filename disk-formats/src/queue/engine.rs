//! I/O engines: they transfer bytes between buffers and files. Each queue has an engine of its own.
#![allow(unsafe_code, reason = "declares `Engine::start`, whose caller keeps buffers in place")]

mod signal;
mod threads;
#[cfg(feature = "io-uring")]
mod uring;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::host::iobuf::IoBuf;

pub(crate) use signal::Signal;
pub(crate) use threads::{Threads, transfer};
#[cfg(feature = "io-uring")]
pub(crate) use uring::Uring;

/// Buffers of one transfer at the most (IOV_MAX).
pub(crate) const MAX_BUFS: usize = 1024;
/// Bytes of one transfer at the most; below the kernel's MAX_RW_COUNT.
pub(crate) const MAX_LEN: u64 = 1 << 30;

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// File to buffers.
    Read,
    /// Buffers to file; `dsync`: on stable storage when it ends (RWF_DSYNC).
    Write { dsync: bool },
}

/// Bytes to move: at most [`MAX_BUFS`] buffers and [`MAX_LEN`] bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    /// Comes back when it ends; below [`RESERVED`].
    pub(crate) token: u64,
    /// Index of the file.
    pub(crate) file: u32,
    /// Byte offset in the file.
    pub(crate) offset: u64,
    pub(crate) direction: Direction,
    pub(crate) bufs: &'a [IoBuf],
}

/// Tokens from here on belong to the engines.
pub(crate) const RESERVED: u64 = u64::MAX;

/// A transfer that ended: its token, and the bytes moved.
pub(crate) type Ended = (u64, Result<u32, Errno>);

/// System calls on the queue's own thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineStats {
    pub(crate) submits: u64,
    pub(crate) ticks: u64,
}

/// Moves bytes asynchronously. May be made on one thread and used on another. It makes no flushes: their results must be noted
/// before another flush can end ([`BackingFile::sync`](crate::BackingFile::sync)).
pub(crate) trait Engine: Send {
    /// `io_uring` or `threads`.
    fn name(&self) -> &'static str;

    /// Whether it takes another operation.
    fn has_capacity(&self) -> bool;

    /// Take a transfer. There must be [`has_capacity`](Self::has_capacity).
    ///
    /// # Safety
    /// The slice `bufs` must stay in place and unchanged until the token has come back from [`next`](Self::next), or the
    /// engine has been [dropped](Drop) (which waits). (What the buffers point to is [`IoBuf`]'s own promise.)
    unsafe fn start(&mut self, transfer: &Transfer<'_>);

    /// Hand everything taken to the host.
    fn submit(&mut self);

    /// The next operation that has ended.
    fn next(&mut self) -> Option<Ended>;

    /// Why the engine failed: operations in flight have ended, and [`next`](Self::next) will not return them. Reported
    /// once.
    fn lost(&mut self) -> Option<Errno>;

    /// Submit, then sleep until an operation has ended or the signal is raised; at once where neither can happen.
    fn wait(&mut self);

    /// Operations taken whose end has not been handed out.
    fn in_flight(&self) -> usize;

    /// Readable while operations may have ended or the signal is raised.
    fn event(&self) -> BorrowedFd<'_>;

    /// An eventfd that is written to when operations may have ended or the signal is raised.
    fn eventfd(&mut self) -> Result<OwnedFd, Errno>;

    /// Wakes the queue's thread from elsewhere.
    fn signal(&self) -> &std::sync::Arc<Signal>;

    /// Watch the signal until it is next raised. Needs a submit.
    fn watch(&mut self);

    fn stats(&self) -> EngineStats;
}
