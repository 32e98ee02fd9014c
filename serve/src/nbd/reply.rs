//! The queue of replies to the client.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::buffer_queue::Buffer;
use super::buffers::Buffers;
use super::spec::*;
use super::stream::Stream;

/// Maximum number of slices of one system call.
const SLICES: usize = 128;
/// No request is taken while the bodies outside of buffers have this many bytes or more.
const BODIES: usize = 256 << 10;
/// Bytes of the longest header.
const HEAD: usize = size_of::<DataChunk>();

/// A reply.
#[derive(Debug)]
struct Reply {
    head: [u8; HEAD],
    head_len: usize,
    body: Body,
}

/// What follows the header.
#[derive(Debug)]
enum Body {
    None,
    /// These bytes of a buffer.
    Buffer(Buffer, Range<usize>),
    Bytes(Vec<u8>),
}

impl Reply {
    fn new(head: &(impl IntoBytes + zerocopy::Immutable), body: Body) -> Self {
        let mut reply = Self { head: [0; HEAD], head_len: size_of_val(head), body };
        let _ = head.write_to_prefix(&mut reply.head);
        reply
    }

    fn head(&self) -> &[u8] {
        self.head.get(..self.head_len).unwrap_or_default()
    }

    fn body(&self) -> &[u8] {
        match &self.body {
            Body::None => &[],
            Body::Buffer(buffer, place) => buffer.bytes().get(place.clone()).unwrap_or_default(),
            Body::Bytes(bytes) => bytes,
        }
    }

    fn len(&self) -> usize {
        self.head().len() + self.body().len()
    }
}

/// Replies in the order in which they are sent.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that have been sent.
    sent: usize,
    /// Bytes of bodies outside of buffers.
    bodies: usize,
    /// Structured replies were negotiated.
    structured: bool,
}

impl ReplyQueue {
    /// With capacity for so many replies.
    pub(super) fn new(structured: bool, replies: usize) -> Self {
        Self { replies: VecDeque::with_capacity(replies), sent: 0, bodies: 0, structured }
    }

    /// Replies that have not been sent.
    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Whether another reply may be added, of any length.
    pub(super) fn has_capacity(&self) -> bool {
        self.bodies < BODIES
    }

    /// Success, without data.
    pub(super) fn done(&mut self, cookie: u64) {
        self.simple(cookie, 0, Body::None);
    }

    /// A read of 0 bytes.
    pub(super) fn nothing_read(&mut self, cookie: u64) {
        if self.structured {
            let head = chunk(NBD_REPLY_TYPE_NONE, cookie, 0);
            self.replies.push_back(Reply::new(&head, Body::None));
        } else {
            self.done(cookie);
        }
    }

    /// A read succeeded; the data are at `place` in the buffer.
    pub(super) fn read(&mut self, cookie: u64, offset: u64, buffer: Buffer, place: Range<usize>) {
        let len = place.len();
        let body = Body::Buffer(buffer, place);
        if !self.structured {
            return self.simple(cookie, 0, body);
        }
        let header = chunk(NBD_REPLY_TYPE_OFFSET_DATA, cookie, 8 + len);
        self.replies.push_back(Reply::new(&DataChunk { header, offset: offset.into() }, body));
    }

    /// The allocation status of a range. Only where structured replies were negotiated.
    pub(super) fn status(&mut self, cookie: u64, descriptors: &[Descriptor]) {
        let body = [&BASE_ALLOCATION_ID.to_be_bytes()[..], descriptors.as_bytes()].concat();
        let head = chunk(NBD_REPLY_TYPE_BLOCK_STATUS, cookie, body.len());
        self.bodies += body.len();
        self.replies.push_back(Reply::new(&head, Body::Bytes(body)));
    }

    /// Failure: an `NBD_E*` code, and a text for structured replies.
    pub(super) fn failed(&mut self, cookie: u64, error: u32, why: &str) {
        if !self.structured {
            return self.simple(cookie, error, Body::None);
        }
        let end = (0..=why.len().min(NBD_MAX_STRING)).rfind(|end| why.is_char_boundary(*end));
        let why = why.get(..end.unwrap_or_default()).unwrap_or_default();
        let len = u16::try_from(why.len()).unwrap_or_default();
        let why = if len == 0 { "" } else { why };
        let body = [&error.to_be_bytes()[..], &len.to_be_bytes(), why.as_bytes()].concat();
        let head = chunk(NBD_REPLY_TYPE_ERROR, cookie, body.len());
        self.bodies += body.len();
        self.replies.push_back(Reply::new(&head, Body::Bytes(body)));
    }

    fn simple(&mut self, cookie: u64, error: u32, body: Body) {
        let head =
            SimpleReply { magic: NBD_SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: cookie.into() };
        self.replies.push_back(Reply::new(&head, body));
    }

    /// Send as much as the host accepts; buffers that have been sent are released to `buffers`.
    ///
    /// # Errors
    /// An error of the host. `EAGAIN` is none.
    pub(super) fn send(&mut self, stream: &mut Stream, buffers: &mut Buffers<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            match self.send_once(stream) {
                Ok(sent) => self.advance(sent, buffers),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn send_once(&self, stream: &mut Stream) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let parts = self.replies.iter().flat_map(|reply| [reply.head(), reply.body()]);
        let mut skip = self.sent;
        let mut count = 0;
        let parts = parts.filter_map(|part| {
            let left = part.get(skip..).unwrap_or_default();
            skip -= part.len() - left.len();
            (!left.is_empty()).then_some(left)
        });
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        stream.send(slices.get(..count).unwrap_or_default())
    }

    fn advance(&mut self, sent: usize, buffers: &mut Buffers<'_>) {
        self.sent += sent;
        while let Some(first) = self.replies.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.discard_first(buffers);
        }
    }

    /// Drop all replies: the client has disconnected.
    pub(super) fn discard(&mut self, buffers: &mut Buffers<'_>) {
        self.sent = 0;
        while !self.is_empty() {
            self.discard_first(buffers);
        }
    }

    fn discard_first(&mut self, buffers: &mut Buffers<'_>) {
        match self.replies.pop_front().map(|reply| reply.body) {
            Some(Body::Buffer(buffer, _)) => buffers.release(buffer),
            Some(Body::Bytes(bytes)) => self.bodies -= bytes.len(),
            Some(Body::None) | None => {}
        }
    }
}

/// The header of the last chunk of a reply, with `len` bytes of payload.
fn chunk(kind: u16, cookie: u64, len: usize) -> ChunkHeader {
    ChunkHeader {
        magic: NBD_STRUCTURED_REPLY_MAGIC.into(),
        flags: NBD_REPLY_FLAG_DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        // A payload has at most 32 MiB and 8 bytes.
        len: u32::try_from(len).unwrap_or(u32::MAX).into(),
    }
}
