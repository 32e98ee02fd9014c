//! I/O engines transfer bytes between buffers and files. Each queue has its own engine.
#![allow(unsafe_code, reason = "declares `Engine::stage`, whose caller keeps buffers in place")]

pub(crate) mod rings;
mod signal;
mod threads;
#[cfg(feature = "io-uring")]
mod uring;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::contract::iobuf::IoBuf;

pub(crate) use signal::Signal;
pub(crate) use threads::Threads;
#[cfg(feature = "io-uring")]
pub(crate) use uring::Uring;

/// Maximum number of buffers of one transfer (IOV_MAX).
pub(crate) const MAX_BUFS: usize = 1024;
/// Maximum length of one transfer in bytes; below the kernel's MAX_RW_COUNT.
pub(crate) const MAX_LEN: u64 = 1 << 30;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file to the buffers.
    Read,
    /// From the buffers to the file. With `dsync`, the data are on stable storage when the transfer ends (RWF_DSYNC).
    Write { dsync: bool },
}

/// A transfer: at most [`MAX_BUFS`] buffers and [`MAX_LEN`] bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    /// Identifies the transfer in [`Ended`]; below [`RESERVED`].
    pub(crate) token: u64,
    /// Index of the file.
    pub(crate) file: u32,
    /// Byte offset in the file.
    pub(crate) offset: u64,
    pub(crate) direction: Direction,
    pub(crate) bufs: &'a [IoBuf],
}

/// Tokens from here on are reserved for the engines.
pub(crate) const RESERVED: u64 = u64::MAX;

/// A transfer that has ended: its token, and the number of bytes moved.
pub(crate) type Ended = (u64, Result<u32, Errno>);

/// System calls on the queue's own thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineStats {
    pub(crate) submits: u64,
    pub(crate) ticks: u64,
}

/// Transfers bytes asynchronously. The thread that creates an engine may hand it to another thread. An engine flushes only by writes with
/// `dsync`. All other flushes go through [`BackingFile::sync`](crate::BackingFile::sync), which records the result of each flush before
/// another flush can end.
pub(crate) trait Engine: Send {
    /// `io_uring` or `threads`.
    fn name(&self) -> &'static str;

    /// Whether [`stage`](Self::stage) may be called.
    fn has_capacity(&self) -> bool;

    /// Add a transfer. The engine must [have capacity](Self::has_capacity).
    ///
    /// # Safety
    /// The slice `bufs` must stay in place and unchanged until [`next`](Self::next) has returned the token or the
    /// engine has been [dropped](Drop) (the drop waits). The memory that the buffers point to is covered by the promise
    /// of [`IoBuf::new`].
    unsafe fn stage(&mut self, transfer: &Transfer<'_>);

    /// Start all added transfers.
    fn submit(&mut self);

    /// The next transfer that has ended.
    fn next(&mut self) -> Option<Ended>;

    /// The error that made the engine fail. All operations in flight have ended, and [`next`](Self::next) will not
    /// return them. Returned once.
    fn lost(&mut self) -> Option<Errno>;

    /// Submit, then sleep until an operation has ended or the signal is raised. Does not sleep if neither can happen.
    fn wait(&mut self);

    /// Transfers added whose end [`next`](Self::next) has not returned.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable while operations may have ended or the signal is raised.
    fn event(&self) -> BorrowedFd<'_>;

    /// An eventfd that is signalled when operations may have ended or the signal is raised.
    fn eventfd(&mut self) -> Result<OwnedFd, Errno>;

    /// Other threads raise the signal to wake the queue's thread.
    fn signal(&self) -> &std::sync::Arc<Signal>;

    /// Let the signal wake [`wait`](Self::wait) and [`event`](Self::event) the next time that it is raised. Takes
    /// effect at the next submit.
    fn watch(&mut self);

    fn stats(&self) -> EngineStats;
}
