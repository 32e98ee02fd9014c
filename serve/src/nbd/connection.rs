//! The transmission phase of a connection.
//!
//! One thread. Each round takes the requests that have arrived, submits them to the disk as one batch, and sends the replies to
//! those that have completed as one batch. Then the thread sleeps until the socket or the disk has more.

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{IoError, Op, OpenError, QueueConfig};
use rustix::event::Timespec;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::buffer_queue::{Buffer, BufferQueue, Completed};
use super::buffers::Buffers;
use super::export::{Export, Exports};
use super::handshake::{Agreed, negotiate};
use super::minimum_rate::MinimumRate;
use super::parse::{self, BadCommand, Command, Request};
use super::reply::ReplyQueue;
use super::sleeper::Sleeper;
use super::slots::Slot;
use super::spec::*;
use super::status::status;
use super::stop::Stop;
use super::stream::Stream;
use crate::refusals::client_refused;

/// Maximum number of requests that were taken and are not answered yet.
const DEPTH: u32 = 128;
/// Bytes received ahead of what is being parsed.
const STAGING: usize = 64 << 10;
/// Maximum number of requests of a round. A limit, so that the client can process some replies while the disk processes other requests.
const ROUND: u32 = 16;
/// Time between two tries to take memory, after the client has disconnected and nothing can wake the thread.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Idle memory of the pool is freed after so long without an event.
const IDLE: Duration = Duration::from_secs(1);

/// Serve a client until it disconnects. `slot`: its slot, if the server limits connections.
pub(super) fn serve(mut stream: Stream, exports: &Exports, stop: &Stop, slot: Option<&Slot>) {
    let agreed = match negotiate(&mut stream, exports, stop) {
        Ok(agreed) => agreed,
        Err(ended) => return tracing::info!(%ended, "NBD negotiation failed"),
    };
    let Some(export) = exports.as_slice().get(agreed.export) else { return };
    // An error closes the connection. Requests that have no reply then may or may not have been executed.
    tracing::info!(export = export.name, "NBD client connected");
    match Connection::new(stream, exports, export, agreed, stop) {
        Ok(mut connection) => {
            // From now on it counts as a client that is served.
            if !slot.is_none_or(Slot::promote) {
                return;
            }
            connection.slot = slot;
            let ended = connection.run();
            tracing::info!(export = export.name, ?ended, "NBD client disconnected");
        }
        Err(error) => client_refused(&error),
    }
}

/// Why the server closes a connection.
#[derive(Debug)]
enum Failed {
    /// A system call failed, or the client did not receive the last replies in time when the server stopped.
    Host,
    /// The client violates the protocol.
    Protocol,
    /// The client holds memory that others wait for, and misses the minimum rate.
    Stalled,
}

impl From<Errno> for Failed {
    fn from(_: Errno) -> Self {
        Self::Host
    }
}

/// The state of the request parser.
enum Input {
    /// Before a header.
    Header,
    /// A request that waits for a buffer.
    Memory(Request),
    /// Inside a payload, of which `got` bytes are there.
    Payload { request: Request, buffer: Buffer, got: usize },
    /// No more requests are taken.
    Ended,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Pending {
    cookie: u64,
    offset: u64,
    len: u32,
    kind: Kind,
}

/// What follows when the disk has completed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reply with the data.
    Read,
    /// Reply without data.
    NoData,
    /// Push a flush, and reply when that has completed: FUA for operations other than writes, for which the disk's queue has no FUA.
    ThenFlush,
}

struct Connection<'a> {
    /// Before `buffers`, so dropped first: the buffers of requests in flight are freed before `buffers` returns their bytes to the pool.
    disk: BufferQueue,
    buffers: Buffers<'a>,
    export: &'a Export,
    agreed: Agreed,
    stop: &'a Stop,
    stream: Stream,
    replies: ReplyQueue,
    input: Input,
    staging: Box<[u8]>,
    /// The bytes of `staging` that are not parsed yet.
    staged: std::ops::Range<usize>,
    /// By the number of the request.
    pending: Box<[Option<Pending>]>,
    free: Vec<u32>,
    /// Empty between rounds; kept for its allocation.
    ended: Vec<Completed>,
    /// The socket may have more.
    readable: bool,
    /// The socket may take more.
    writable: bool,
    /// The client has disconnected: replies are dropped.
    disconnected: bool,
    /// The server stops, and the disk has completed the requests: the deadline for the last replies.
    stopping: Option<Instant>,
    /// The time for the last replies.
    final_replies_timeout: Duration,
    /// Whether the client transfers enough to hold memory that others wait for.
    minimum_rate: MinimumRate,
    sleeper: Sleeper,
    slot: Option<&'a Slot>,
}

impl<'a> Connection<'a> {
    fn new(
        stream: Stream,
        exports: &'a Exports,
        export: &'a Export,
        agreed: Agreed,
        stop: &'a Stop,
    ) -> Result<Self, OpenError> {
        let pool = exports.pool();
        let config = QueueConfig { depth: DEPTH, engine: export.engine };
        let os = |errno: Errno| OpenError::Os {
            path: export.name.clone().into(),
            action: "cannot make what a connection needs",
            source: errno.into(),
        };
        let mut queue = export.disk.queue(&config)?;
        queue.allow_blocking();
        let disk = BufferQueue::new(queue, DEPTH as usize);
        let buffers = Buffers::new(pool).map_err(os)?;
        let sleeper = Sleeper::new(&stream, &disk, stop, buffers.event()).map_err(os)?;
        Ok(Self {
            disk,
            buffers,
            export,
            agreed,
            stop,
            stream,
            replies: ReplyQueue::new(agreed.structured, DEPTH as usize),
            input: Input::Header,
            staging: vec![0; STAGING].into(),
            staged: 0..0,
            pending: vec![None; DEPTH as usize].into(),
            free: (0..DEPTH).rev().collect(),
            ended: Vec::with_capacity(DEPTH as usize),
            readable: true,
            writable: true,
            disconnected: false,
            stopping: None,
            final_replies_timeout: exports.final_replies_timeout(),
            minimum_rate: MinimumRate::new(pool.stall_timeout()),
            sleeper,
            slot: None,
        })
    }

    fn run(&mut self) -> Result<(), Failed> {
        loop {
            // Checked in every round: while a client keeps the socket full, this thread never sleeps.
            let stops = self.stopping.is_none() && self.stop.is_raised();
            if stops {
                self.input = Input::Ended;
            }
            let moved = self.stream.moved();
            let took = self.take_requests()?;
            self.disk.submit();
            let ended = self.reap();
            self.disk.submit();
            let sent = self.send();
            if self.buffers.uses_pool() {
                self.minimum_rate.transferred(self.stream.moved() - moved);
            } else {
                self.minimum_rate.reset();
            }
            if stops && self.disk.in_flight() == 0 {
                self.stopping = Some(Instant::now() + self.final_replies_timeout);
            }
            let idle = self.disk.in_flight() == 0 && !self.has_output();
            if idle && matches!(self.input, Input::Ended) {
                self.stream.close();
                return Ok(());
            }
            // Any progress may have freed buffers or request numbers.
            if !(took || ended || sent) {
                self.sleep()?;
            }
        }
    }

    /// Take up to [`ROUND`] requests. False: there were none, or there is no capacity for them.
    fn take_requests(&mut self) -> Result<bool, Failed> {
        for taken in 0..ROUND {
            while !self.take_one()? {
                if !self.fill()? {
                    return Ok(taken > 0);
                }
            }
        }
        Ok(true)
    }

    /// Whether another request may be taken: fewer than [`DEPTH`] are in flight or have a reply in the queue, and the replies do not
    /// take too much memory.
    fn has_capacity(&self) -> bool {
        self.free.len() > self.replies.len() && self.replies.has_capacity()
    }

    /// Whether the socket is to be read.
    fn wants_input(&self) -> bool {
        match self.input {
            Input::Header | Input::Payload { .. } => self.has_capacity(),
            Input::Memory(_) | Input::Ended => false,
        }
    }

    /// Take the next request. False: it has not arrived completely, or there is no capacity for it.
    fn take_one(&mut self) -> Result<bool, Failed> {
        if !self.has_capacity() {
            return Ok(false);
        }
        match std::mem::replace(&mut self.input, Input::Header) {
            Input::Header => {
                let staged = self.staging.get(self.staged.clone()).unwrap_or_default();
                let Ok((header, _)) = RequestHeader::read_from_prefix(staged) else { return Ok(false) };
                self.staged.start += size_of_val(&header);
                self.begin(parse::request(&header).ok_or(Failed::Protocol)?)
            }
            Input::Memory(request) => self.begin(request),
            Input::Payload { request, buffer, got } => Ok(self.take_payload(request, buffer, got)),
            Input::Ended => {
                self.input = Input::Ended;
                Ok(false)
            }
        }
    }

    /// A request's header has arrived.
    fn begin(&mut self, request: Request) -> Result<bool, Failed> {
        let reads = request.command == Ok(Command::Read);
        let len = request.len as usize;
        if len == 0 || !reads && !request.payload {
            self.perform(&request, None);
            return Ok(true);
        }
        if len > LARGEST && request.payload {
            return Err(Failed::Protocol);
        }
        if len > LARGEST {
            self.replies.failed(request.cookie, NBD_EOVERFLOW, "the request is too large");
            return Ok(true);
        }
        match self.buffers.take(len) {
            Ok(None) => {
                self.input = Input::Memory(request);
                Ok(false)
            }
            Ok(Some(buffer)) if reads => {
                self.perform(&request, Some(buffer));
                Ok(true)
            }
            Ok(Some(buffer)) => Ok(self.take_payload(request, buffer, 0)),
            Err(_) => Err(Failed::Host),
        }
    }

    /// Copy staged bytes of a payload. True: the payload is complete.
    fn take_payload(&mut self, request: Request, mut buffer: Buffer, got: usize) -> bool {
        let staged = self.staging.get(self.staged.clone()).unwrap_or_default();
        let rest = buffer.bytes_mut().get_mut(got..request.len as usize).unwrap_or_default();
        let (rest_len, len) = (rest.len(), rest.len().min(staged.len()));
        for (to, from) in rest.get_mut(..len).into_iter().zip(staged.get(..len)) {
            to.copy_from_slice(from);
        }
        self.staged.start += len;
        if len == rest_len {
            self.perform(&request, Some(buffer));
            true
        } else {
            self.input = Input::Payload { request, buffer, got: got + len };
            false
        }
    }

    /// Receive: the remaining payload into its buffer, and what follows into `staging`. False: nothing has arrived.
    fn fill(&mut self) -> Result<bool, Failed> {
        if !self.readable || !self.wants_input() {
            return Ok(false);
        }
        // What is left is less than a header.
        self.staging.copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let spare = self.staging.get_mut(self.staged.end..).unwrap_or_default();
        let (rest, got) = match &mut self.input {
            Input::Payload { request, buffer, got } => {
                let rest = buffer.bytes_mut().get_mut(*got..request.len as usize).unwrap_or_default();
                (rest, Some(got))
            }
            _ => (&mut [][..], None),
        };
        let (rest_len, capacity) = (rest.len(), rest.len() + spare.len());
        let received = if rest.is_empty() {
            self.stream.receive(&mut [IoSliceMut::new(spare)])
        } else {
            self.stream.receive(&mut [IoSliceMut::new(rest), IoSliceMut::new(spare)])
        };
        match received {
            Ok(0) => {
                self.input = Input::Ended;
                Ok(false)
            }
            Ok(len) => {
                // A short read: the socket is empty, and another system call would return EAGAIN.
                self.readable = len == capacity || self.stream.has_ended();
                if let Some(got) = got {
                    *got += len.min(rest_len);
                }
                self.staged.end += len.saturating_sub(rest_len);
                Ok(true)
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(false)
            }
            Err(_) => {
                // Requests that the client sent before are still executed.
                (self.input, self.disconnected) = (Input::Ended, true);
                Ok(false)
            }
        }
    }

    /// Start a request that has its payload and its buffer.
    fn perform(&mut self, request: &Request, buffer: Option<Buffer>) {
        let Request { cookie, offset, len, .. } = *request;
        if let Some((error, why)) = self.refusal(request) {
            buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
            return self.replies.failed(cookie, error, why);
        }
        let (op, kind) = match request.command {
            Err(_) => return,
            Ok(Command::Disconnect) => {
                self.input = Input::Ended;
                return;
            }
            Ok(Command::BlockStatus { one }) => return self.status(request, one),
            Ok(Command::Read) if len == 0 => return self.replies.nothing_read(cookie),
            Ok(Command::Read) => (Op::Read, Kind::Read),
            Ok(Command::Write { fua }) => (Op::Write { fua }, Kind::NoData),
            Ok(Command::Flush) => (Op::Flush, Kind::NoData),
            Ok(Command::Trim { fua }) => (Op::Discard, if fua { Kind::ThenFlush } else { Kind::NoData }),
            Ok(Command::WriteZeroes { fua, may_unmap }) => {
                (Op::WriteZeroes { may_unmap }, if fua { Kind::ThenFlush } else { Kind::NoData })
            }
        };
        let Some(number) = self.free.pop() else {
            buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
            return self.replies.failed(cookie, NBD_EIO, "more requests are in flight than were counted");
        };
        if let Some(pending) = self.pending.get_mut(number as usize) {
            *pending = Some(Pending { cookie, offset, len, kind });
        }
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len.into()) };
        if self.disk.push(number, op, offset, len, buffer).is_err() {
            self.end(number, Err(IoError::Os(Errno::AGAIN)), None);
        }
    }

    /// Why a request is refused without the disk, with the protocol's code.
    fn refusal(&self, request: &Request) -> Option<(u32, &'static str)> {
        let read_only = self.export.disk.info().read_only;
        match request.command {
            Err(BadCommand::Unknown) => Some((NBD_EINVAL, "the command is not known")),
            Err(BadCommand::Flags) => Some((NBD_EINVAL, "the command does not take these flags")),
            Ok(Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }) if read_only => {
                Some((NBD_EPERM, "the disk is read-only"))
            }
            Ok(_) => None,
        }
    }

    fn status(&mut self, request: &Request, one: bool) {
        let Request { cookie, offset, len, .. } = *request;
        let capacity = self.export.disk.info().capacity;
        let inside = offset.checked_add(len.into()).is_some_and(|end| end <= capacity);
        if !self.agreed.allocation || !inside || len == 0 {
            return self.replies.failed(cookie, NBD_EINVAL, "no context was agreed on, or not such a range");
        }
        match status(&*self.export.disk, offset, len, one) {
            Ok(descriptors) => self.replies.status(cookie, &descriptors),
            Err(error) => self.replies.failed(cookie, code(error, false), &error.to_string()),
        }
    }

    /// Answer the requests that the disk has completed. False: there were none.
    fn reap(&mut self) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        self.disk.reap(&mut ended);
        let any = !ended.is_empty();
        for Completed { number, result, buffer } in ended.drain(..) {
            self.end(number, result, buffer);
        }
        self.ended = ended;
        any
    }

    /// A request has completed, or its first part before a flush.
    fn end(&mut self, number: u32, result: Result<(), IoError>, buffer: Option<Buffer>) {
        let place = self.pending.get_mut(number as usize);
        let Some(Pending { cookie, offset, len, kind }) = place.and_then(Option::take) else {
            // The disk queue is broken, and some request will never be answered: close the connection.
            self.input = Input::Ended;
            return;
        };
        let mut result = result;
        if kind == Kind::ThenFlush && result.is_ok() {
            if self.disk.push(number, Op::Flush, 0, 0, None).is_ok() {
                if let Some(place) = self.pending.get_mut(number as usize) {
                    *place = Some(Pending { cookie, offset, len, kind: Kind::NoData });
                }
                return;
            }
            // The operation succeeded, but is not flushed.
            result = Err(IoError::Os(Errno::AGAIN));
        }
        self.free.push(number);
        match (result, buffer) {
            (Ok(()), None) if kind == Kind::Read => {
                self.replies.failed(cookie, NBD_EIO, "the data of a read were lost");
            }
            (Ok(()), Some(buffer)) if kind == Kind::Read => {
                self.replies.read(cookie, offset, buffer, len as usize);
            }
            (Ok(()), buffer) => {
                self.replies.done(cookie);
                buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
            }
            (Err(error), buffer) => {
                self.replies.failed(cookie, code(error, kind != Kind::Read), &error.to_string());
                buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
            }
        }
    }

    /// Whether there is something to be sent.
    fn has_output(&self) -> bool {
        !self.disconnected && (!self.replies.is_empty() || self.stream.has_unsent())
    }

    /// Send replies. False: there was nothing to send, or the socket is full.
    fn send(&mut self) -> bool {
        if self.disconnected {
            let any = !self.replies.is_empty();
            self.replies.discard(&mut self.buffers);
            return any;
        }
        if !self.has_output() || !self.writable {
            return false;
        }
        let flushed = match self.stream.flush() {
            Ok(()) => self.replies.send(&mut self.stream, &mut self.buffers),
            Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        };
        match flushed {
            Ok(()) => self.writable = !self.has_output(),
            // Requests that the client sent before are still executed.
            Err(_) => self.disconnected = true,
        }
        true
    }

    /// Sleep until there is something to do.
    fn sleep(&mut self) -> Result<(), Failed> {
        // The connection stays in the pool's queue only if memory is all that its request waits for.
        if !matches!(self.input, Input::Memory(_)) || !self.has_capacity() {
            self.buffers.withdraw();
        }
        self.buffers.release_idle_if_wanted();
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, self.wants_input());
        interest.set(EventFlags::OUT, self.has_output());
        if self.disconnected && interest.is_empty() {
            // A closed socket is always ready: it cannot be slept on.
            match self.disk.in_flight() {
                0 => std::thread::sleep(RETRY_INTERVAL),
                _ => self.disk.wait(),
            }
            return Ok(());
        }
        let left = self.sleep_at_most()?.and_then(|left| Timespec::try_from(left).ok());
        self.slot.into_iter().for_each(Slot::note_asleep);
        // The server waits for nothing but the client only while no request is in flight.
        let begin = (self.buffers.uses_pool() && self.disk.in_flight() == 0).then(Instant::now);
        let woken = self.sleeper.sleep(&self.stream, interest, left.as_ref())?;
        self.slot.into_iter().for_each(Slot::note_awake);
        if let Some(begin) = begin {
            self.minimum_rate.waited(begin.elapsed());
            // The bytes that have arrived meanwhile are counted only in the next round, after this check.
            if self.minimum_rate.is_missed() && self.buffers.others_wait() {
                return Err(Failed::Stalled);
            }
        }
        if woken.timed_out {
            self.buffers.shrink();
        }
        if woken.memory {
            self.buffers.acknowledge();
        }
        let hangup = woken.socket.intersects(EventFlags::HUP | EventFlags::ERR);
        self.disconnected |= hangup;
        self.readable |= hangup || woken.socket.contains(EventFlags::IN);
        self.writable |= woken.socket.contains(EventFlags::OUT);
        if woken.stop {
            self.sleeper.ignore_stop(self.stop)?;
        }
        Ok(())
    }

    /// The longest time to sleep; `None`: until an event.
    fn sleep_at_most(&mut self) -> Result<Option<Duration>, Failed> {
        let mut most = None;
        if let Some(deadline) = self.stopping {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failed::Host);
            }
            most = Some(left);
        }
        if self.buffers.uses_pool() {
            most = Some(most.unwrap_or(IDLE).min(IDLE));
        }
        Ok(most)
    }
}

/// The protocol's code of a disk's error.
fn code(error: IoError, writes: bool) -> u32 {
    match error {
        IoError::OutOfRange if writes => NBD_ENOSPC,
        IoError::OutOfRange | IoError::Misaligned | IoError::Unsupported => NBD_EINVAL,
        IoError::ReadOnly => NBD_EPERM,
        IoError::NoSpace => NBD_ENOSPC,
        _ => NBD_EIO,
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests;
