//! The transmission phase of a connection.
//!
//! One thread. Each round takes the requests that have arrived, submits them to the disk as one batch, and sends the replies to
//! those that have completed as one batch. Then the thread sleeps until the socket or the disk has more. It does so in `epoll`
//! also where only the client can wake it: in a receive that waits, Linux wakes it a second time when the client has read a reply.

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use paradisk_disk_formats::{IoError, Op, OpenError, QueueConfig};
use rustix::event::Timespec;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::buffer_queue::Buffer;
use super::buffers::Buffers;
use super::export::{Export, Exports};
use super::gate::WriteGate;
use super::handshake::{Agreed, negotiate};
use super::minimum_rate::{MinimumRate, STEP};
use super::parse::{self, BadCommand, Command, Request};
use super::parts::Parts;
use super::reply::ReplyQueue;
use super::requests::{Finished, Requests, SERVER_STOPS, Task};
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
/// Idle memory of the pool is freed after so long without an event.
const IDLE: Duration = STEP;

/// Serve a client until it disconnects. `slot`: its slot, if the server limits connections.
pub(super) fn serve(mut stream: Stream, exports: &Exports, stop: &Stop, slot: Option<&Slot>) {
    let agreed = match negotiate(&mut stream, exports, stop) {
        Ok(agreed) => agreed,
        Err(ended) => return tracing::info!(%ended, "NBD negotiation failed"),
    };
    let Some((export, gate)) = exports.get(agreed.export) else { return };
    // An error closes the connection. Requests that have no reply then may or may not have been executed.
    tracing::info!(export = export.name, "NBD client connected");
    match Connection::new(stream, exports, export, gate, agreed, stop) {
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

/// A request that is not complete yet, and what is to be done then.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    request: Request,
    /// Or why it is refused without the disk.
    plan: Result<Parts, Refusal>,
}

impl Incoming {
    /// Bytes of the buffer that it needs; 0: none.
    fn buffer_len(&self) -> usize {
        match self.plan {
            Ok(parts) => parts.buffer_len(),
            // The payload is received all the same.
            Err(_) if self.request.payload => self.request.len as usize,
            Err(_) => 0,
        }
    }

    /// Where the payload belongs in the buffer.
    fn place(&self) -> std::ops::Range<usize> {
        let len = self.request.len as usize;
        self.plan.map_or(0..len, |parts| parts.place(len))
    }

    /// The payload after its first `got` bytes.
    fn rest<'b>(&self, buffer: &'b mut Buffer, got: usize) -> &'b mut [u8] {
        let place = self.place();
        buffer.bytes_mut().get_mut(place.start + got..place.end).unwrap_or_default()
    }
}

/// An error of a reply: the protocol's code and a text.
#[derive(Clone, Copy, Debug)]
struct Refusal(u32, &'static str);

/// The state of the request parser.
enum Input {
    /// Before a header.
    Header,
    /// A request that waits for a buffer.
    Memory(Request),
    /// Inside a payload, of which `got` bytes are there.
    Payload { incoming: Incoming, buffer: Buffer, got: usize },
    /// No more requests are taken.
    Ended,
}

struct Connection<'a> {
    /// Before `buffers`, so dropped first: the buffers of requests in progress are freed before `buffers` returns their bytes to the pool.
    requests: Requests<'a>,
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
    /// Empty between rounds; kept for its allocation.
    finished: Vec<Finished>,
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
        gate: &'a WriteGate,
        agreed: Agreed,
        stop: &'a Stop,
    ) -> Result<Self, OpenError> {
        let pool = exports.pool();
        let config = QueueConfig { depth: DEPTH, engine: export.engine };
        let name = if export.name.is_empty() { "the default export" } else { &*export.name };
        let os = |errno: Errno| OpenError::Os {
            path: name.into(),
            action: "cannot make what a connection needs",
            source: errno.into(),
        };
        let mut queue = export.disk.queue(&config)?;
        queue.allow_blocking();
        let sector = export.disk.info().logical_sector.bytes();
        let requests = Requests::new(queue, DEPTH, sector, gate).map_err(os)?;
        let buffers = Buffers::new(pool).map_err(os)?;
        let sleeper = Sleeper::new(&stream, &requests, stop, buffers.event()).map_err(os)?;
        Ok(Self {
            requests,
            buffers,
            export,
            agreed,
            stop,
            stream,
            replies: ReplyQueue::new(agreed.structured, DEPTH as usize),
            input: Input::Header,
            staging: vec![0; STAGING].into(),
            staged: 0..0,
            finished: Vec::with_capacity(DEPTH as usize),
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
                self.requests.refuse_waiting();
            }
            let moved = self.stream.moved();
            let took = self.take_requests()?;
            self.requests.submit();
            let advanced = self.advance();
            self.requests.submit();
            let sent = self.send();
            if self.buffers.uses_pool() {
                self.minimum_rate.transferred(self.stream.moved() - moved);
            } else {
                self.minimum_rate.reset();
            }
            if stops && !self.requests.is_busy() {
                self.stopping = Some(Instant::now() + self.final_replies_timeout);
            }
            let idle = !self.requests.is_busy() && !self.has_output();
            if idle && matches!(self.input, Input::Ended) {
                self.stream.close();
                return Ok(());
            }
            // Any progress may have freed buffers or request numbers.
            if !(took || advanced || sent) {
                self.sleep()?;
            }
        }
    }

    /// Take up to [`ROUND`] requests. False: there were none, or there is no capacity for them.
    fn take_requests(&mut self) -> Result<bool, Failed> {
        for taken in 0..ROUND {
            while !self.take_one()? {
                if !self.fill() {
                    return Ok(taken > 0);
                }
            }
        }
        Ok(true)
    }

    /// Whether another request may be taken: fewer than [`DEPTH`] are in flight or have a reply in the queue, and the replies do not
    /// take too much memory.
    fn has_capacity(&self) -> bool {
        self.requests.capacity() > self.replies.len() && self.replies.has_capacity()
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
                self.header_arrived(parse::request(&header).ok_or(Failed::Protocol)?)
            }
            Input::Memory(request) => self.header_arrived(request),
            Input::Payload { incoming, buffer, got } => Ok(self.take_payload(incoming, buffer, got)),
            Input::Ended => {
                self.input = Input::Ended;
                Ok(false)
            }
        }
    }

    /// A request's header has arrived.
    fn header_arrived(&mut self, request: Request) -> Result<bool, Failed> {
        let reads = request.command == Ok(Command::Read);
        let len = request.len as usize;
        if len > LARGEST && request.payload {
            return Err(Failed::Protocol);
        }
        if len > LARGEST && reads {
            self.replies.failed(request.cookie, NBD_EOVERFLOW, "the request is too large");
            return Ok(true);
        }
        let incoming = Incoming { request, plan: self.plan(&request) };
        let buffer = match incoming.buffer_len() {
            0 => None,
            needed => match self.buffers.take(needed) {
                Ok(Some(buffer)) => Some(buffer),
                Ok(None) => {
                    self.input = Input::Memory(request);
                    return Ok(false);
                }
                Err(_) => return Err(Failed::Host),
            },
        };
        match buffer {
            Some(buffer) if request.payload => Ok(self.take_payload(incoming, buffer, 0)),
            buffer => {
                self.perform(incoming, buffer);
                Ok(true)
            }
        }
    }

    /// Copy staged bytes of a payload. True: the payload is complete.
    fn take_payload(&mut self, incoming: Incoming, mut buffer: Buffer, got: usize) -> bool {
        let staged = self.staging.get(self.staged.clone()).unwrap_or_default();
        let rest = incoming.rest(&mut buffer, got);
        let (rest_len, len) = (rest.len(), rest.len().min(staged.len()));
        for (to, from) in rest.get_mut(..len).into_iter().zip(staged.get(..len)) {
            to.copy_from_slice(from);
        }
        self.staged.start += len;
        if len == rest_len {
            self.perform(incoming, Some(buffer));
            true
        } else {
            self.input = Input::Payload { incoming, buffer, got: got + len };
            false
        }
    }

    /// Receive: the remaining payload into its buffer, and what follows into `staging`. False: nothing has arrived.
    fn fill(&mut self) -> bool {
        if !self.readable || !self.wants_input() {
            return false;
        }
        // What is left is less than a header.
        self.staging.copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let spare = self.staging.get_mut(self.staged.end..).unwrap_or_default();
        let (rest, got) = match &mut self.input {
            Input::Payload { incoming, buffer, got } => (incoming.rest(buffer, *got), Some(got)),
            _ => (&mut [][..], None),
        };
        let (rest_len, capacity) = (rest.len(), rest.len() + spare.len());
        match self.stream.receive(&mut [IoSliceMut::new(rest), IoSliceMut::new(spare)]) {
            Ok(0) => {
                self.input = Input::Ended;
                false
            }
            Ok(len) => {
                // A short read: the socket is empty, and another system call would return EAGAIN.
                self.readable = len == capacity || self.stream.has_ended();
                if let Some(got) = got {
                    *got += len.min(rest_len);
                }
                self.staged.end += len.saturating_sub(rest_len);
                true
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                false
            }
            Err(_) => {
                // Requests that the client sent before are still executed.
                (self.input, self.disconnected) = (Input::Ended, true);
                false
            }
        }
    }

    /// The parts of a request.
    fn plan(&self, request: &Request) -> Result<Parts, Refusal> {
        let info = self.export.disk.info();
        let (op, writes) = match request.command {
            Err(BadCommand::Unknown) => return Err(Refusal(NBD_EINVAL, "the command is not known")),
            Err(BadCommand::Flags) => {
                return Err(Refusal(NBD_EINVAL, "the command does not take these flags"));
            }
            Ok(Command::Disconnect | Command::Flush | Command::BlockStatus { .. }) => {
                return Ok(Parts::default());
            }
            Ok(Command::Read) => (Op::Read, false),
            Ok(Command::Write { fua }) => (Op::Write { fua }, true),
            Ok(Command::Trim { .. }) => (Op::Discard, true),
            Ok(Command::WriteZeroes { may_unmap, .. }) => (Op::WriteZeroes { may_unmap }, true),
        };
        if writes && info.read_only {
            return Err(Refusal(NBD_EPERM, "the disk is read-only"));
        }
        let end = request.offset.checked_add(request.len.into());
        end.filter(|end| *end <= info.capacity)
            .and_then(|_| self.requests.parts(op, request.offset, request.len))
            .ok_or(Refusal(code(IoError::OutOfRange, writes), "the range is not inside the disk"))
    }

    /// Start a request that has its payload and its buffer.
    fn perform(&mut self, incoming: Incoming, buffer: Option<Buffer>) {
        let Incoming { request, plan } = incoming;
        let Request { cookie, offset, len, command, .. } = request;
        let parts = match plan {
            Ok(parts) => parts,
            Err(Refusal(error, why)) => {
                buffer.into_iter().for_each(|buffer| self.buffers.release(buffer));
                return self.replies.failed(cookie, error, why);
            }
        };
        let (reads, flushes) = match command {
            Err(_) => return,
            Ok(Command::Disconnect) => {
                self.input = Input::Ended;
                return;
            }
            Ok(Command::BlockStatus { one }) => return self.status(&request, one),
            Ok(Command::Read) if len == 0 => return self.replies.nothing_read(cookie),
            Ok(Command::Read) => (true, false),
            // The disk's queue has FUA for writes only.
            Ok(Command::Write { .. }) => (false, false),
            Ok(Command::Flush) => (false, true),
            Ok(Command::Trim { fua } | Command::WriteZeroes { fua, .. }) => (false, fua),
        };
        self.requests.start(Task { cookie, offset, len, reads, parts, flushes, buffer });
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

    /// Continue the requests in progress, and answer those that have finished. False: there were none.
    fn advance(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        let any = self.requests.advance(&mut finished);
        finished.drain(..).for_each(|finished| self.answer(finished));
        self.finished = finished;
        if self.requests.is_broken() {
            // Some request will never be answered: close the connection.
            self.input = Input::Ended;
        }
        any
    }

    fn answer(&mut self, Finished { task, result }: Finished) {
        let Task { cookie, offset, len, reads, parts, buffer, .. } = task;
        match (result, buffer) {
            (Ok(()), None) if reads => self.replies.failed(cookie, NBD_EIO, "the data of a read were lost"),
            (Ok(()), Some(buffer)) if reads => {
                self.replies.read(cookie, offset, buffer, parts.place(len as usize));
            }
            (result, buffer) => {
                match result {
                    Ok(()) => self.replies.done(cookie),
                    Err(error) => self.replies.failed(cookie, code(error, !reads), &error.to_string()),
                }
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
        // A closed socket is always ready: nothing could be slept on beside it.
        let interest = (!self.disconnected || !interest.is_empty()).then_some(interest);
        let left = self.sleep_at_most()?.and_then(|left| Timespec::try_from(left).ok());
        self.slot.into_iter().for_each(Slot::note_asleep);
        // The server waits for nothing but the client only while no request is in progress.
        let begin = (self.buffers.uses_pool() && !self.requests.is_busy()).then(Instant::now);
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
        if woken.gate {
            self.requests.acknowledge();
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
        SERVER_STOPS => NBD_ESHUTDOWN,
        _ => NBD_EIO,
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests;
