//! Requests in progress: from a request that is complete, with its buffer, to what the disk has made of it.
//!
//! ```text
//! start -> next part: a read ------------------------------------------------> disk -> next part, else flush, else finished
//!                     a write -> gate -> each edge: disk, merge -> permit held -> disk -> permit dropped -^
//! ```
//!
//! A permit of the gate is held only while requests are with the disk: whatever the client does or does not do, it ends.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use paradisk_disk_formats::{DiskQueue, IoError, Op};
use rustix::io::Errno;

use super::buffer_queue::{Buffer, BufferQueue, Completed};
use super::gate::{Permit, Waker, WriteGate};
use super::parts::{Part, Parts};

/// Writes of parts of sectors that a connection has in the gate at a time. The others wait in the connection: at a sector that many write,
/// nobody waits for all requests of a connection that is ahead.
const PARTS_IN_GATE: u32 = 4;

/// The error of requests that wait for others of their connection when the server stops: their number must not delay the stop.
pub(super) const SERVER_STOPS: IoError = IoError::Os(Errno::SHUTDOWN);

/// A request to be started.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) cookie: u64,
    /// The client's range.
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Its data are the reply.
    pub(super) reads: bool,
    pub(super) parts: Parts,
    /// Flush after the parts.
    pub(super) flushes: bool,
    /// Of the length that the parts need, if any; with the payload of a write.
    pub(super) buffer: Option<Buffer>,
}

/// A request that has been completed, or has failed. The buffer of a failed one may be lost.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) task: Task,
    pub(super) result: Result<(), IoError>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Others of this connection in the gate.
    Connection,
    /// Its turn in the gate.
    Gate,
    /// The disk reads the sector of this edge.
    Edge(usize),
    /// The disk does the part.
    Transfer,
    /// The disk flushes.
    Flush,
}

#[derive(Debug)]
struct InProgress<'a> {
    task: Task,
    step: Step,
    /// The part that is being done.
    part: Option<Part>,
    permit: Option<Permit<'a>>,
}

/// The requests in progress of a connection.
pub(super) struct Requests<'a> {
    /// Before `all`, so dropped first: no permit is dropped while its request is with the disk.
    disk: BufferQueue,
    /// By number.
    all: Box<[Option<InProgress<'a>>]>,
    free: Vec<u32>,
    gate: &'a WriteGate,
    waker: Arc<Waker>,
    /// Bytes of a sector.
    sector: u32,
    /// Those that wait for [`Step::Connection`].
    waiting: VecDeque<u32>,
    /// None may wait for [`Step::Connection`] any more.
    stops: bool,
    /// Those that wait for [`Step::Gate`].
    at_gate: u32,
    /// Writes of parts of sectors in the gate.
    parts_in_gate: u32,
    /// The queue has completed a request that was not with the disk.
    broken: bool,
    finished: Vec<Finished>,
    /// Empty between calls; kept for their allocations.
    completed: Vec<Completed>,
    granted: Vec<u32>,
}

impl<'a> Requests<'a> {
    /// With an unused queue of this depth, to a disk with sectors of so many bytes.
    ///
    /// # Errors
    /// The host has no eventfd left.
    pub(super) fn new(
        queue: Box<dyn DiskQueue>,
        depth: u32,
        sector: u32,
        gate: &'a WriteGate,
    ) -> Result<Self, Errno> {
        Ok(Self {
            disk: BufferQueue::new(queue, depth as usize),
            all: std::iter::repeat_with(|| None).take(depth as usize).collect(),
            free: (0..depth).rev().collect(),
            gate,
            waker: Waker::new(depth)?,
            sector,
            waiting: VecDeque::new(),
            stops: false,
            at_gate: 0,
            parts_in_gate: 0,
            broken: false,
            finished: Vec::with_capacity(depth as usize),
            completed: Vec::with_capacity(depth as usize),
            granted: Vec::new(),
        })
    }

    /// The parts of an operation on this range; `None` if it ends beyond 2^64 bytes.
    pub(super) fn parts(&self, op: Op, offset: u64, len: u32) -> Option<Parts> {
        Parts::new(op, offset, len.into(), self.sector)
    }

    /// How many can be started.
    pub(super) fn capacity(&self) -> usize {
        self.free.len()
    }

    /// Start a request, within the [capacity](Self::capacity).
    pub(super) fn start(&mut self, task: Task) {
        let Some(number) = self.free.pop() else {
            // More were started than were counted.
            return self.finished.push(Finished { task, result: Err(IoError::Os(Errno::AGAIN)) });
        };
        if let Some(place) = self.all.get_mut(number as usize) {
            *place = Some(InProgress { task, step: Step::Transfer, part: None, permit: None });
        }
        self.next_part(number);
    }

    /// Submit what has been passed to the disk.
    pub(super) fn submit(&mut self) {
        self.disk.submit();
    }

    /// Continue the requests for which the gate or the disk has done something, and append those that have finished. False: there are
    /// none. [Submit](Self::submit) after it.
    pub(super) fn advance(&mut self, finished: &mut Vec<Finished>) -> bool {
        let mut granted = std::mem::take(&mut self.granted);
        if self.at_gate > 0 {
            self.waker.take(&mut granted);
        }
        let mut completed = std::mem::take(&mut self.completed);
        self.disk.reap(&mut completed);
        let any = !(granted.is_empty() && completed.is_empty() && self.finished.is_empty());
        for number in granted.drain(..) {
            self.at_gate -= 1;
            self.edges(number, 0);
        }
        for completed in completed.drain(..) {
            self.completed(completed);
        }
        while self.parts_in_gate < PARTS_IN_GATE
            && let Some(number) = self.waiting.pop_front()
        {
            self.enter(number);
        }
        (self.granted, self.completed) = (granted, completed);
        finished.append(&mut self.finished);
        any
    }

    /// The server stops: finish the requests that wait for others of the connection, and all that would wait from now on, with
    /// [`SERVER_STOPS`].
    pub(super) fn refuse_waiting(&mut self) {
        self.stops = true;
        while let Some(number) = self.waiting.pop_front() {
            self.finish(number, Err(SERVER_STOPS));
        }
    }

    /// Whether requests are in progress that will finish.
    pub(super) fn is_busy(&self) -> bool {
        self.disk.in_flight() > 0 || self.at_gate > 0 || !self.waiting.is_empty() || !self.finished.is_empty()
    }

    /// Whether the disk's queue has broken its contract: some request will never be answered.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Readable while the disk may have completed requests.
    pub(super) fn disk_event(&self) -> BorrowedFd<'_> {
        self.disk.event()
    }

    /// Readable when the gate has granted requests, until it is [acknowledged](Self::acknowledge).
    pub(super) fn gate_event(&self) -> BorrowedFd<'_> {
        self.waker.event()
    }

    /// Make [`gate_event`](Self::gate_event) unreadable. [`advance`](Self::advance) after it.
    pub(super) fn acknowledge(&self) {
        self.waker.acknowledge();
    }

    fn get(&mut self, number: u32) -> Option<&mut InProgress<'a>> {
        self.all.get_mut(number as usize)?.as_mut()
    }

    /// Begin with the next part; after the last, flush or finish.
    fn next_part(&mut self, number: u32) {
        let Some(request) = self.get(number) else { return };
        request.part = request.task.parts.next();
        match request.part {
            Some(Part { op: Op::Read, .. }) => self.transfer(number),
            Some(_) => self.enter(number),
            None if request.task.flushes => {
                request.task.flushes = false;
                self.push(number, Step::Flush, Op::Flush, 0, 0, 0);
            }
            None => self.finish(number, Ok(())),
        }
    }

    /// Enter the gate with the part.
    fn enter(&mut self, number: u32) {
        let (gate, waker) = (self.gate, Arc::clone(&self.waker));
        let (full, stops) = (self.parts_in_gate >= PARTS_IN_GATE, self.stops);
        let Some(request) = self.get(number) else { return };
        let Some(claim) = request.part.and_then(|part| part.claim()) else { return self.edges(number, 0) };
        let has_parts = claim.has_parts();
        if has_parts && full && stops {
            return self.finish(number, Err(SERVER_STOPS));
        }
        if has_parts && full {
            request.step = Step::Connection;
            return self.waiting.push_back(number);
        }
        let (permit, granted) = gate.enter(claim, &waker, number);
        request.permit = Some(permit);
        request.step = Step::Gate;
        self.parts_in_gate += u32::from(has_parts);
        if granted {
            self.edges(number, 0);
        } else {
            self.at_gate += 1;
        }
    }

    /// The part has its permit: read the first edge at `from` or behind, or transfer.
    fn edges(&mut self, number: u32, from: usize) {
        let Some(InProgress { part: Some(part), task, .. }) = self.get(number) else { return };
        let part = *part;
        if from == 0
            && let Some(buffer) = &mut task.buffer
        {
            part.prepare(buffer.bytes_mut());
        }
        let Some(edge) = part.edge_from(from) else { return self.transfer(number) };
        let place = part.edge_buffer();
        self.push(
            number,
            Step::Edge(edge),
            Op::Read,
            part.offset + edge as u64,
            place.len() as u64,
            place.start,
        );
    }

    fn transfer(&mut self, number: u32) {
        let Some(InProgress { part: Some(part), .. }) = self.get(number) else { return };
        let Part { op, offset, len, .. } = *part;
        self.push(number, Step::Transfer, op, offset, len, 0);
    }

    /// Pass a request to the disk, with the buffer from `at` for a transfer.
    fn push(&mut self, number: u32, step: Step, op: Op, offset: u64, len: u64, at: usize) {
        let Some(request) = self.all.get_mut(number as usize).and_then(Option::as_mut) else { return };
        request.step = step;
        let buffer = request.task.buffer.take_if(|_| matches!(op, Op::Read | Op::Write { .. }));
        if let Err(buffer) = self.disk.push(number, op, offset, len, buffer, at) {
            request.task.buffer = request.task.buffer.take().or(buffer);
            self.finish(number, Err(IoError::Os(Errno::AGAIN)));
        }
    }

    fn completed(&mut self, Completed { number, result, buffer }: Completed) {
        let request = self.all.get_mut(number as usize).and_then(Option::as_mut);
        let Some(request) = request.filter(|request| !matches!(request.step, Step::Connection | Step::Gate))
        else {
            self.broken = true;
            return;
        };
        request.task.buffer = request.task.buffer.take().or(buffer);
        if let Err(error) = result {
            return self.finish(number, Err(error));
        }
        match request.step {
            Step::Edge(edge) => {
                if let (Some(part), Some(buffer)) = (&request.part, &mut request.task.buffer) {
                    part.merge(buffer.bytes_mut(), edge);
                }
                self.edges(number, edge + 1);
            }
            Step::Transfer => {
                self.leave(number);
                self.next_part(number);
            }
            Step::Flush | Step::Connection | Step::Gate => self.finish(number, Ok(())),
        }
    }

    /// Leave the gate.
    fn leave(&mut self, number: u32) {
        let Some(InProgress { part, permit, .. }) = self.get(number) else { return };
        let has_parts = part.and_then(|part| part.claim()).is_some_and(|claim| claim.has_parts());
        if permit.take().is_some() && has_parts {
            self.parts_in_gate -= 1;
        }
    }

    fn finish(&mut self, number: u32, result: Result<(), IoError>) {
        self.leave(number);
        let Some(request) = self.all.get_mut(number as usize).and_then(Option::take) else { return };
        self.free.push(number);
        self.finished.push(Finished { task: request.task, result });
    }
}

#[cfg(test)]
mod tests;
