//! The disk behind a drive: one request at a time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_disk_formats::{Completion, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Op, QueueStats, Request};

use crate::fault::{self, Fault};

/// What a request of a faulted disk ends with ([`fault`]).
const FAULTED: IoError = IoError::Damaged("the disk is faulted");

/// How a request ended.
pub(super) type Ended = Result<(), IoError>;

/// A disk and a queue of it.
pub(super) struct Medium {
    queue: Box<dyn DiskQueue>,
    disk: Arc<dyn Disk>,
    info: DiskInfo,
    /// For reports of a fault.
    serial: String,
    /// Tag of the last request.
    tag: u64,
    /// The last request is in flight.
    in_flight: bool,
    /// How the last request ended, until that is taken.
    ended: Option<Ended>,
    /// A request was pushed since the queue was last submitted to.
    pushed: bool,
    completions: Vec<Completion>,
    fault: Fault,
}

impl Medium {
    pub(super) fn new(disk: Arc<dyn Disk>, queue: Box<dyn DiskQueue>, serial: String) -> Self {
        Self {
            info: disk.info().clone(),
            queue,
            disk,
            serial,
            tag: 0,
            in_flight: false,
            ended: None,
            pushed: false,
            completions: Vec::with_capacity(1),
            fault: Fault::default(),
        }
    }

    /// What the disk is; its capacity as of the last power-on, since an ATA drive cannot report another.
    pub(super) const fn info(&self) -> &DiskInfo {
        &self.info
    }

    pub(super) fn queue(&self) -> &dyn DiskQueue {
        &*self.queue
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }

    pub(super) fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// The machine is switched on.
    pub(super) fn power_on(&mut self) {
        self.info.capacity = self.disk.info().capacity;
    }

    /// A request is in flight, or its end has not been taken.
    pub(super) const fn is_busy(&self) -> bool {
        self.in_flight || self.ended.is_some()
    }

    /// Start a request; `bufs` must stay mapped until its end is [taken](Self::take). Only while none is there.
    pub(super) fn push(&mut self, op: Op, offset: u64, len: u64, bufs: &[IoBuf]) {
        debug_assert!(!self.is_busy(), "one request at a time");
        self.tag += 1;
        let request = Request { tag: self.tag, op, offset, len, bufs };
        // An empty queue is not full.
        if self.fault.is_set() || self.queue.push(&request).is_err() {
            self.ended = Some(Err(FAULTED));
            return;
        }
        (self.in_flight, self.pushed) = (true, true);
    }

    /// How the request ended, if it has. The queue is asked only where a request is in flight: most calls are for accesses to registers.
    pub(super) fn take(&mut self) -> Option<Ended> {
        if self.in_flight {
            self.collect();
        }
        self.ended.take()
    }

    /// The request has ended, and that has not been [taken](Self::take).
    pub(super) const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Wait until the request has ended.
    pub(super) fn wait(&mut self) {
        self.collect();
        while self.in_flight && self.queue.in_flight() > 0 {
            self.queue.wait();
            self.collect();
        }
        self.end_lost();
    }

    /// Ask the queue, also for completions of what is not in flight.
    pub(super) fn collect(&mut self) {
        if std::mem::take(&mut self.pushed) {
            self.queue.submit();
        }
        let mut completions = std::mem::take(&mut self.completions);
        self.queue.reap(&mut completions);
        for Completion { tag, result } in completions.drain(..) {
            if self.in_flight && tag == self.tag {
                self.in_flight = false;
                self.ended = Some(if self.fault.is_set() { Err(FAULTED) } else { result });
            } else {
                self.fault.set(fault::UNKNOWN_COMPLETION, &self.serial);
            }
        }
        self.completions = completions;
        if self.fault.is_set() {
            self.fail_lost();
        }
    }

    /// End what a faulted queue will never complete.
    fn fail_lost(&mut self) {
        if self.in_flight && self.queue.in_flight() == 0 {
            self.in_flight = false;
            self.ended = Some(Err(FAULTED));
        }
    }

    /// Fail the request if the queue does not have it. True: it has ended so. To be called after [`take`](Self::take).
    pub(super) fn end_lost(&mut self) -> bool {
        if !self.in_flight || self.queue.in_flight() > 0 {
            return false;
        }
        self.fault.set(fault::NOTHING_IN_FLIGHT, &self.serial);
        self.fail_lost();
        true
    }
}
