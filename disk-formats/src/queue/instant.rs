//! The queue of disks without files: `push` executes the request.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::contract::check::{check, is_plain};
use crate::contract::error::{IoError, OpenError, PushError};
use crate::contract::info::DiskInfo;
use crate::contract::queue::{Completion, DiskQueue, QueueConfig, QueueStats, Request};
use crate::queue::file_queue::check_depth;

/// The storage behind such a queue.
pub(crate) trait Medium: Send + Sync + 'static {
    fn info(&self) -> &DiskInfo;

    /// Execute a request that has been validated.
    fn perform(&self, request: &Request<'_>) -> Result<(), IoError>;
}

/// A queue for a medium.
pub(crate) fn instant_queue<M: Medium>(
    medium: &Arc<M>,
    config: &QueueConfig,
) -> Result<Box<dyn DiskQueue>, OpenError> {
    let path = medium.info().kind.format;
    let depth = check_depth(config).map_err(|reason| OpenError::unsupported(path, reason))? as usize;
    let never = eventfd(0, EventfdFlags::CLOEXEC).map_err(OpenError::os(path, "cannot make an I/O queue"))?;
    let free = Completion { tag: 0, result: Ok(()) };
    Ok(Box::new(InstantQueue {
        medium: Arc::clone(medium),
        ready: vec![free; depth].into(),
        count: 0,
        never,
    }))
}

struct InstantQueue<M> {
    medium: Arc<M>,
    /// Completions; the first `count` are ready. A slice and not a vector: a possible call to grow it would make `push`
    /// save registers.
    ready: Box<[Completion]>,
    count: usize,
    /// Never readable: every request can be reaped as soon as it is pushed.
    never: OwnedFd,
}

impl<M: Medium> InstantQueue<M> {
    /// Execute a request that is not plain ([`is_plain`]).
    #[inline(never)]
    fn push_other(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        let place = self.ready.get_mut(self.count).ok_or(PushError::Full)?;
        let result = check(self.medium.info(), request).and_then(|()| self.medium.perform(request));
        *place = Completion { tag: request.tag, result };
        self.count += 1;
        Ok(())
    }
}

impl<M: Medium> DiskQueue for InstantQueue<M> {
    fn push(&mut self, request: &Request<'_>) -> Result<(), PushError> {
        if !is_plain(self.medium.info(), request) {
            return self.push_other(request);
        }
        let place = self.ready.get_mut(self.count).ok_or(PushError::Full)?;
        *place = Completion { tag: request.tag, result: self.medium.perform(request) };
        self.count += 1;
        Ok(())
    }

    fn submit(&mut self) {}

    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.extend_from_slice(self.ready.get(..self.count).unwrap_or_default());
        self.count = 0;
    }

    fn in_flight(&self) -> usize {
        self.count
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }

    fn eventfd(&mut self) -> Result<OwnedFd, IoError> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.never, 0)?)
    }

    fn wait(&mut self) {}

    fn engine(&self) -> &'static str {
        self.medium.info().kind.format
    }

    fn stats(&self) -> QueueStats {
        QueueStats::default()
    }
}
