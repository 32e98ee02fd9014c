//! A queue for media without files: each request is done while it is pushed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::disk::info::DiskInfo;
use crate::error::{IoError, OpenError, PushError};
use crate::queue::check::{check, is_plain};
use crate::queue::file_queue::check_depth;
use crate::queue::{Completion, DiskQueue, QueueConfig, QueueStats, Request};

/// Where such a queue's bytes are.
pub(crate) trait Medium: Send + Sync + 'static {
    fn info(&self) -> &DiskInfo;

    /// Do a request that has been checked.
    fn perform(&self, request: &Request<'_>) -> Result<(), IoError>;
}

/// A queue for a medium.
pub(crate) fn instant_queue<M: Medium>(
    medium: &Arc<M>,
    config: &QueueConfig,
) -> Result<Box<dyn DiskQueue>, OpenError> {
    let path = medium.info().kind.format;
    let depth =
        check_depth(config).map_err(|reason| OpenError::Unsupported { path: path.into(), reason })? as usize;
    let never = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno: Errno| OpenError::Os {
        path: path.into(),
        action: "cannot make an I/O queue",
        source: errno.into(),
    })?;
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
    /// Of these, `count` are ready. A slice, which `push` cannot extend: a call that it might make would have it save registers.
    ready: Box<[Completion]>,
    count: usize,
    /// Never readable: whatever was pushed can be reaped at once.
    never: OwnedFd,
}

impl<M: Medium> InstantQueue<M> {
    /// Take a request that is not plain.
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

    fn completes_in_push(&self) -> bool {
        true
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
