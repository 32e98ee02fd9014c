//! Replies on their way to the client.

use std::collections::VecDeque;
use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::blocks::Blocks;
use super::lending::Block;
use super::spec::*;
use super::stream::Stream;

/// Slices handed to the host at once.
const SLICES: usize = 128;
/// Bytes of bodies that are no blocks, from which on nothing is added.
const BODIES: usize = 256 << 10;
/// Bytes of the longest head.
const HEAD: usize = size_of::<DataChunk>();

/// A reply.
#[derive(Debug)]
struct Reply {
    head: [u8; HEAD],
    head_len: usize,
    body: Body,
}

/// What follows the head.
#[derive(Debug)]
enum Body {
    None,
    /// The first bytes of a block.
    Block(Block, usize),
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
            Body::Block(block, len) => block.bytes().get(..*len).unwrap_or_default(),
            Body::Bytes(bytes) => bytes,
        }
    }

    fn len(&self) -> usize {
        self.head().len() + self.body().len()
    }
}

/// Replies in the order in which they go out.
#[derive(Debug)]
pub(super) struct Outbox {
    replies: VecDeque<Reply>,
    /// Bytes of the first reply that have gone.
    gone: usize,
    /// Bytes of bodies that are no blocks.
    bodies: usize,
    /// Structured replies were agreed on.
    structured: bool,
}

impl Outbox {
    /// With room for so many replies.
    pub(super) fn new(structured: bool, replies: usize) -> Self {
        Self { replies: VecDeque::with_capacity(replies), gone: 0, bodies: 0, structured }
    }

    /// Replies that have not gone.
    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Whether there is memory for another reply, however long.
    pub(super) fn has_room(&self) -> bool {
        self.bodies < BODIES
    }

    /// It worked; there are no data.
    pub(super) fn done(&mut self, cookie: u64) {
        self.simple(cookie, 0, Body::None);
    }

    /// A read of nothing.
    pub(super) fn nothing_read(&mut self, cookie: u64) {
        if self.structured {
            let head = chunk(NBD_REPLY_TYPE_NONE, cookie, 0);
            self.replies.push_back(Reply::new(&head, Body::None));
        } else {
            self.done(cookie);
        }
    }

    /// A read ended, with `len` bytes at the start of the block.
    pub(super) fn read(&mut self, cookie: u64, offset: u64, block: Block, len: usize) {
        let body = Body::Block(block, len);
        if !self.structured {
            return self.simple(cookie, 0, body);
        }
        let header = chunk(NBD_REPLY_TYPE_OFFSET_DATA, cookie, 8 + len);
        self.replies.push_back(Reply::new(&DataChunk { header, offset: offset.into() }, body));
    }

    /// The status of a range, after its first byte. Only where structured replies were agreed on.
    pub(super) fn status(&mut self, cookie: u64, descriptors: &[Descriptor]) {
        let body = [&BASE_ALLOCATION_ID.to_be_bytes()[..], descriptors.as_bytes()].concat();
        let head = chunk(NBD_REPLY_TYPE_BLOCK_STATUS, cookie, body.len());
        self.bodies += body.len();
        self.replies.push_back(Reply::new(&head, Body::Bytes(body)));
    }

    /// It did not work, `error` being one of the protocol's, and why.
    pub(super) fn failed(&mut self, cookie: u64, error: u32, why: &str) {
        if !self.structured {
            return self.simple(cookie, error, Body::None);
        }
        let why = why.get(..NBD_MAX_STRING).unwrap_or(why);
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

    /// Send what the host takes, with as few system calls as it lets us; blocks that have gone come back to `blocks`.
    ///
    /// # Errors
    /// What the host says; that it takes no more now is no error.
    pub(super) fn send(&mut self, stream: &mut Stream, blocks: &mut Blocks<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            match self.send_once(stream) {
                Ok(sent) => self.advance(sent, blocks),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn send_once(&self, stream: &mut Stream) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let parts = self.replies.iter().flat_map(|reply| [reply.head(), reply.body()]);
        let mut skip = self.gone;
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

    fn advance(&mut self, sent: usize, blocks: &mut Blocks<'_>) {
        self.gone += sent;
        while let Some(first) = self.replies.front()
            && self.gone >= first.len()
        {
            self.gone -= first.len();
            self.forget_first(blocks);
        }
    }

    /// Nobody is there to receive them.
    pub(super) fn forget(&mut self, blocks: &mut Blocks<'_>) {
        self.gone = 0;
        while !self.is_empty() {
            self.forget_first(blocks);
        }
    }

    fn forget_first(&mut self, blocks: &mut Blocks<'_>) {
        match self.replies.pop_front().map(|reply| reply.body) {
            Some(Body::Block(block, _)) => blocks.give(block),
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
        // Payloads are 32 MiB and little more at the most.
        len: u32::try_from(len).unwrap_or(u32::MAX).into(),
    }
}
