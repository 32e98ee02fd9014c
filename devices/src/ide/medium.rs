//! The disk behind a drive: one request at a time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_disk_formats::{Completion, Disk, DiskInfo, DiskQueue, IoBuf, IoError, Op, QueueStats, Request};

use crate::fault::{self, Fault};

/// The result of every request of a faulted disk ([`fault`]).
const FAULTED: IoError = IoError::Damaged("the disk is faulted");

/// How a request ended.
pub(super) type Ended = Result<(), IoError>;

/// A disk and its queue.
pub(super) struct Medium {
    queue: Box<dyn DiskQueue>,
    disk: Arc<dyn Disk>,
    info: DiskInfo,
    /// Names the disk when a fault is logged.
    serial: String,
    /// Tag of the last request.
    tag: u64,
    /// The last request is in flight.
    in_flight: bool,
    /// The result of the last request, until [`take`](Medium::take) returns it.
    ended: Option<Ended>,
    /// A request was pushed since the last submit.
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

    /// The disk's properties, with the capacity at the last power-on: an ATA drive cannot report a change.
    pub(super) const fn info(&self) -> &DiskInfo {
        &self.info
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.queue.event()
    }

    pub(super) fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// Power-on: read the disk's capacity again.
    pub(super) fn power_on(&mut self) {
        self.info.capacity = self.disk.info().capacity;
    }

    /// Whether a request is in flight, or its result has not been [taken](Self::take).
    pub(super) const fn is_busy(&self) -> bool {
        self.in_flight || self.ended.is_some()
    }

    /// Start a request; `bufs` must stay mapped until its result is [taken](Self::take). Only while not [busy](Self::is_busy).
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

    /// The result of the request, if it has completed. The queue is polled only while a request is in flight: most calls come from register
    /// accesses.
    pub(super) fn take(&mut self) -> Option<Ended> {
        if self.in_flight {
            self.reap();
        }
        self.ended.take()
    }

    /// Whether the request has completed and its result has not been [taken](Self::take).
    pub(super) const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Wait until the request has completed.
    pub(super) fn wait(&mut self) {
        self.reap();
        while self.in_flight && self.queue.in_flight() > 0 {
            self.queue.wait();
            self.reap();
        }
        self.fail_lost();
    }

    /// Submit and reap. A completion without a request in flight faults the disk.
    pub(super) fn reap(&mut self) {
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
            self.fail_stranded();
        }
    }

    /// Fail the request if a faulted queue has lost it.
    fn fail_stranded(&mut self) {
        if self.in_flight && self.queue.in_flight() == 0 {
            self.in_flight = false;
            self.ended = Some(Err(FAULTED));
        }
    }

    /// Fault the disk and fail the request if the queue has lost it. True: the request has ended that way. Call it after
    /// [`take`](Self::take).
    pub(super) fn fail_lost(&mut self) -> bool {
        if !self.in_flight || self.queue.in_flight() > 0 {
            return false;
        }
        self.fault.set(fault::NOTHING_IN_FLIGHT, &self.serial);
        self.fail_stranded();
        true
    }
}
