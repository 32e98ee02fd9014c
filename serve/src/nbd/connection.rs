//! The transmission phase of a connection.
//!
//! One thread. A round takes the requests that have come, submits them to the disk together, and sends the replies of those
//! that have ended together; then the thread sleeps until the socket or the disk has more.

use std::io::IoSliceMut;
use std::time::{Duration, Instant};

use disk_formats::{IoError, Op, QueueConfig};
use rustix::event::Timespec;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::allowance::Allowance;
use super::blocks::{Blocks, LARGEST};
use super::export::{Export, Exports};
use super::handshake::{Agreed, negotiate};
use super::lending::{Block, Lender, Returned};
use super::parse::{self, BadCommand, Command, Request};
use super::pool::Pool;
use super::reply::Outbox;
use super::sleeper::Sleeper;
use super::slots::Slot;
use super::spec::*;
use super::status::status;
use super::stop::Stop;
use super::stream::Stream;

/// Requests taken and not yet answered, at the most.
const DEPTH: u32 = 128;
/// Bytes received ahead of what is being parsed.
const STAGING: usize = 64 << 10;
/// Requests of a round: the client works on the replies to some while the disk works on others.
const ROUND: u32 = 16;
/// How long a client may take to receive the last replies when the server stops.
const LAST_REPLIES: Duration = Duration::from_secs(5);
/// Where the client has left and the socket is not waited for, the pool's memory is asked for again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// Memory that others could use is given back when nothing has happened for so long.
const IDLE: Duration = Duration::from_secs(1);

/// Serve a client to its end; `slot`: its place among others, if there are any.
pub(super) fn serve(mut stream: Stream, exports: &Exports, stop: &Stop, slot: Option<&Slot>) {
    let Ok(agreed) = negotiate(&mut stream, exports, stop) else { return };
    if !slot.is_none_or(Slot::is_served) {
        return;
    }
    let Some(export) = exports.as_slice().get(agreed.export) else { return };
    // A connection that fails ends. What its client was not told has not happened for it.
    if let Ok(mut connection) = Connection::new(stream, export, agreed, exports.pool(), stop) {
        connection.slot = slot;
        let _ = connection.run();
    }
}

/// Why a connection ends before its client wants it to.
#[derive(Debug)]
enum Failed {
    /// The host refuses.
    Host,
    /// The client does not keep to the protocol.
    Nonsense,
    /// The client holds memory that others wait for, and sends and receives too little.
    Stalled,
}

impl From<Errno> for Failed {
    fn from(_: Errno) -> Self {
        Self::Host
    }
}

/// Where the parser of requests is.
enum Input {
    /// Before a header.
    Header,
    /// A request that waits for memory.
    Memory(Request),
    /// Inside a payload, of which `got` bytes are there.
    Payload { request: Request, block: Block, got: usize },
    /// Nothing more is taken.
    Ended,
}

/// What is kept of a request in flight.
#[derive(Clone, Copy, Debug)]
struct Pending {
    cookie: u64,
    offset: u64,
    len: u32,
    kind: Kind,
}

/// How a request goes on when the disk has done it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// As a write, and a flush follows.
    Durably,
}

struct Connection<'a> {
    /// Before the blocks that it may be using.
    disk: Lender,
    blocks: Blocks<'a>,
    export: &'a Export,
    agreed: Agreed,
    stop: &'a Stop,
    stream: Stream,
    outbox: Outbox,
    input: Input,
    staging: Box<[u8]>,
    /// The bytes of `staging` that are to be parsed.
    staged: std::ops::Range<usize>,
    /// By number.
    pending: Box<[Option<Pending>]>,
    free: Vec<u32>,
    /// Kept for its memory.
    ended: Vec<Returned>,
    /// The socket may have more.
    readable: bool,
    /// The socket may take more.
    writable: bool,
    /// The client receives no more replies.
    gone: bool,
    /// The server stops; the last replies are waited for until then.
    stopping: Option<Instant>,
    /// How long the client may hold memory that others wait for.
    allowance: Allowance,
    sleeper: Sleeper,
    slot: Option<&'a Slot>,
}

impl<'a> Connection<'a> {
    fn new(
        stream: Stream,
        export: &'a Export,
        agreed: Agreed,
        pool: &'a Pool,
        stop: &'a Stop,
    ) -> Result<Self, Failed> {
        let config = QueueConfig { depth: DEPTH, engine: export.engine };
        let mut queue = export.disk.queue(&config).map_err(|_| Failed::Host)?;
        queue.allow_blocking();
        let disk = Lender::new(queue, DEPTH as usize);
        let blocks = Blocks::new(pool)?;
        let sleeper = Sleeper::new(&stream, &disk, stop, blocks.event())?;
        Ok(Self {
            disk,
            blocks,
            export,
            agreed,
            stop,
            stream,
            outbox: Outbox::new(agreed.structured, DEPTH as usize),
            input: Input::Header,
            staging: vec![0; STAGING].into(),
            staged: 0..0,
            pending: vec![None; DEPTH as usize].into(),
            free: (0..DEPTH).rev().collect(),
            ended: Vec::with_capacity(DEPTH as usize),
            readable: true,
            writable: true,
            gone: false,
            stopping: None,
            allowance: Allowance::new(pool.patience()),
            sleeper,
            slot: None,
        })
    }

    fn run(&mut self) -> Result<(), Failed> {
        loop {
            // Asked every round: a client that keeps the socket full lets nobody sleep.
            if self.stopping.is_none() && self.stop.is_raised() {
                self.stopping = Some(Instant::now() + LAST_REPLIES);
                self.input = Input::Ended;
            }
            let moved = self.stream.moved();
            let took = self.take_requests()?;
            self.disk.submit();
            let ended = self.reap();
            self.disk.submit();
            let sent = self.send();
            if self.blocks.borrows() {
                self.allowance.earn(self.stream.moved() - moved);
            } else {
                self.allowance.restore();
            }
            let idle = self.disk.in_flight() == 0 && !self.has_output();
            if idle && matches!(self.input, Input::Ended) {
                self.stream.close();
                return Ok(());
            }
            // What has moved may have made room for more.
            if !(took || ended || sent) {
                self.sleep()?;
            }
        }
    }

    /// Take requests, at most a round's. False: there were none, or there is no room for them.
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

    /// Whether another request may be taken: as many as there are numbers are in flight or being answered, and replies do not
    /// take much memory of their own.
    fn has_room(&self) -> bool {
        self.free.len() > self.outbox.len() && self.outbox.has_room()
    }

    /// Whether bytes of the client are of use now.
    fn wants_input(&self) -> bool {
        match self.input {
            Input::Header | Input::Payload { .. } => self.has_room(),
            Input::Memory(_) | Input::Ended => false,
        }
    }

    /// Take the next request. False: it is not all there, or there is no room for it.
    fn take_one(&mut self) -> Result<bool, Failed> {
        if !self.has_room() {
            return Ok(false);
        }
        match std::mem::replace(&mut self.input, Input::Header) {
            Input::Header => {
                let staged = self.staging.get(self.staged.clone()).unwrap_or_default();
                let Ok((header, _)) = RequestHeader::read_from_prefix(staged) else { return Ok(false) };
                self.staged.start += size_of_val(&header);
                self.begin(parse::request(&header).ok_or(Failed::Nonsense)?)
            }
            Input::Memory(request) => self.begin(request),
            Input::Payload { request, block, got } => Ok(self.take_payload(request, block, got)),
            Input::Ended => {
                self.input = Input::Ended;
                Ok(false)
            }
        }
    }

    /// A request's header is there.
    fn begin(&mut self, request: Request) -> Result<bool, Failed> {
        let reads = request.command == Ok(Command::Read);
        let len = request.len as usize;
        if len == 0 || !reads && !request.payload {
            self.perform(&request, None);
            return Ok(true);
        }
        if len > LARGEST && request.payload {
            return Err(Failed::Nonsense);
        }
        if len > LARGEST {
            self.outbox.failed(request.cookie, NBD_EOVERFLOW, "the request is too large");
            return Ok(true);
        }
        match self.blocks.take(len) {
            Ok(None) => {
                self.input = Input::Memory(request);
                Ok(false)
            }
            Ok(Some(block)) if reads => {
                self.perform(&request, Some(block));
                Ok(true)
            }
            Ok(Some(block)) => Ok(self.take_payload(request, block, 0)),
            Err(_) => Err(Failed::Host),
        }
    }

    /// Take what is staged of a payload. True: that was the last of it.
    fn take_payload(&mut self, request: Request, mut block: Block, got: usize) -> bool {
        let staged = self.staging.get(self.staged.clone()).unwrap_or_default();
        let rest = block.bytes_mut().get_mut(got..request.len as usize).unwrap_or_default();
        let (rest_len, len) = (rest.len(), rest.len().min(staged.len()));
        for (to, from) in rest.get_mut(..len).into_iter().zip(staged.get(..len)) {
            to.copy_from_slice(from);
        }
        self.staged.start += len;
        if len == rest_len {
            self.perform(&request, Some(block));
            true
        } else {
            self.input = Input::Payload { request, block, got: got + len };
            false
        }
    }

    /// Receive: the rest of a payload to where it belongs, and what follows it to the staging. False: nothing came.
    fn fill(&mut self) -> Result<bool, Failed> {
        if !self.readable || !self.wants_input() {
            return Ok(false);
        }
        // What is left is less than a header.
        self.staging.copy_within(self.staged.clone(), 0);
        self.staged = 0..self.staged.len();
        let spare = self.staging.get_mut(self.staged.end..).unwrap_or_default();
        let (rest, got) = match &mut self.input {
            Input::Payload { request, block, got } => {
                let rest = block.bytes_mut().get_mut(*got..request.len as usize).unwrap_or_default();
                (rest, Some(got))
            }
            _ => (&mut [][..], None),
        };
        let (rest_len, room) = (rest.len(), rest.len() + spare.len());
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
                // With less than there is room for, that was all: no need to ask.
                self.readable = len == room;
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
            Err(errno) => Err(errno.into()),
        }
    }

    /// Start a request that is there with all it needs.
    fn perform(&mut self, request: &Request, block: Option<Block>) {
        let Request { cookie, offset, len, .. } = *request;
        if let Some((error, why)) = self.refusal(request) {
            block.into_iter().for_each(|block| self.blocks.give(block));
            return self.outbox.failed(cookie, error, why);
        }
        let (op, kind) = match request.command {
            Err(_) => return,
            Ok(Command::Disconnect) => {
                self.input = Input::Ended;
                return;
            }
            Ok(Command::BlockStatus { one }) => return self.status(request, one),
            Ok(Command::Read) if len == 0 => return self.outbox.nothing_read(cookie),
            Ok(Command::Read) => (Op::Read, Kind::Read),
            Ok(Command::Write { fua }) => (Op::Write { fua }, Kind::Write),
            Ok(Command::Flush) => (Op::Flush, Kind::Write),
            Ok(Command::Trim { fua }) => (Op::Discard, if fua { Kind::Durably } else { Kind::Write }),
            Ok(Command::WriteZeroes { fua, may_unmap }) => {
                (Op::WriteZeroes { may_unmap }, if fua { Kind::Durably } else { Kind::Write })
            }
        };
        let Some(number) = self.free.pop() else {
            block.into_iter().for_each(|block| self.blocks.give(block));
            return self.outbox.failed(cookie, NBD_EIO, "more requests are in flight than were counted");
        };
        if let Some(pending) = self.pending.get_mut(number as usize) {
            *pending = Some(Pending { cookie, offset, len, kind });
        }
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len.into()) };
        if self.disk.push(number, op, offset, len, block).is_err() {
            self.end(number, Err(IoError::Os(Errno::AGAIN)), None);
        }
    }

    /// Why a request is not for the disk, with the protocol's code.
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
            return self.outbox.failed(cookie, NBD_EINVAL, "no context was agreed on, or not such a range");
        }
        match status(&*self.export.disk, offset, len, one) {
            Ok(descriptors) => self.outbox.status(cookie, &descriptors),
            Err(error) => self.outbox.failed(cookie, code(error, false), &error.to_string()),
        }
    }

    /// Answer what the disk has ended. False: nothing.
    fn reap(&mut self) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        self.disk.reap(&mut ended);
        let any = !ended.is_empty();
        for Returned { number, result, block } in ended.drain(..) {
            self.end(number, result, block);
        }
        self.ended = ended;
        any
    }

    /// A request, or the first half of one, ended.
    fn end(&mut self, number: u32, result: Result<(), IoError>, block: Option<Block>) {
        let place = self.pending.get_mut(number as usize);
        let Some(Pending { cookie, offset, len, kind }) = place.and_then(Option::take) else {
            // Some request will have no answer: the client is told by the end of the connection.
            self.input = Input::Ended;
            return;
        };
        let mut result = result;
        if kind == Kind::Durably && result.is_ok() {
            if self.disk.push(number, Op::Flush, 0, 0, None).is_ok() {
                if let Some(place) = self.pending.get_mut(number as usize) {
                    *place = Some(Pending { cookie, offset, len, kind: Kind::Write });
                }
                return;
            }
            // Done, and not durable.
            result = Err(IoError::Os(Errno::AGAIN));
        }
        self.free.push(number);
        match (result, block) {
            (Ok(()), None) if kind == Kind::Read => {
                self.outbox.failed(cookie, NBD_EIO, "the data of a read were lost");
            }
            (Ok(()), Some(block)) if kind == Kind::Read => {
                self.outbox.read(cookie, offset, block, len as usize);
            }
            (Ok(()), block) => {
                self.outbox.done(cookie);
                block.into_iter().for_each(|block| self.blocks.give(block));
            }
            (Err(error), block) => {
                self.outbox.failed(cookie, code(error, kind != Kind::Read), &error.to_string());
                block.into_iter().for_each(|block| self.blocks.give(block));
            }
        }
    }

    /// Whether there is something to be sent.
    fn has_output(&self) -> bool {
        !self.gone && (!self.outbox.is_empty() || self.stream.keeps())
    }

    /// Send what the client takes. False: nothing.
    fn send(&mut self) -> bool {
        if self.gone {
            let any = !self.outbox.is_empty();
            self.outbox.forget(&mut self.blocks);
            return any;
        }
        if !self.has_output() || !self.writable {
            return false;
        }
        let flushed = match self.stream.flush() {
            Ok(()) => self.outbox.send(&mut self.stream, &mut self.blocks),
            Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        };
        match flushed {
            Ok(()) => self.writable = !self.has_output(),
            // Requests that it sent before it left are still done.
            Err(_) => self.gone = true,
        }
        true
    }

    /// Sleep until there is something to do.
    fn sleep(&mut self) -> Result<(), Failed> {
        // Others do not wait behind a request that could not be taken if there was memory.
        if !matches!(self.input, Input::Memory(_)) || !self.has_room() {
            self.blocks.withdraw();
        }
        self.blocks.yield_idle();
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, self.wants_input());
        interest.set(EventFlags::OUT, self.has_output());
        if self.gone && interest.is_empty() {
            // The socket would wake us for nothing.
            match self.disk.in_flight() {
                0 => std::thread::sleep(ASK_AGAIN),
                _ => self.disk.wait(),
            }
            return Ok(());
        }
        let left = self.sleep_at_most()?.and_then(|left| Timespec::try_from(left).ok());
        self.slot.into_iter().for_each(Slot::sleeps);
        // Where requests are in flight, the disk is waited for, too.
        let begin = (self.blocks.borrows() && self.disk.in_flight() == 0).then(Instant::now);
        let woken = self.sleeper.sleep(&self.stream, interest, left.as_ref())?;
        self.slot.into_iter().for_each(Slot::wakes);
        if let Some(begin) = begin {
            self.allowance.spend(begin.elapsed());
            // Asked here, before what has come meanwhile wins some back.
            if self.allowance.is_used_up() && self.blocks.others_wait() {
                return Err(Failed::Stalled);
            }
        }
        if woken.nothing {
            self.blocks.shrink();
        }
        if woken.memory {
            self.blocks.acknowledge();
        }
        let hangup = woken.socket.intersects(EventFlags::HUP | EventFlags::ERR);
        self.gone |= hangup;
        self.readable |= hangup || woken.socket.contains(EventFlags::IN);
        self.writable |= woken.socket.contains(EventFlags::OUT);
        if woken.stop {
            self.sleeper.forget(self.stop)?;
        }
        Ok(())
    }

    /// How long to sleep where nothing happens; `None`: for ever.
    fn sleep_at_most(&mut self) -> Result<Option<Duration>, Failed> {
        let mut most = None;
        if let Some(deadline) = self.stopping {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failed::Host);
            }
            most = Some(left);
        }
        if self.blocks.borrows() {
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
