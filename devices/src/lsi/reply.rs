//! The content of reply frames.

use zerocopy::{Immutable, IntoBytes};

use super::personality::REPLY_FRAME;
use super::spec::{DEFAULT_REPLY_LEN, Header};

/// The content of a reply frame.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    bytes: [u8; REPLY_FRAME],
    len: usize,
}

impl Reply {
    /// A reply with this content. Fills in its length in dwords.
    pub(super) fn new(content: &(impl IntoBytes + Immutable)) -> Self {
        let content = content.as_bytes();
        let mut reply = Self { bytes: [0; REPLY_FRAME], len: content.len().min(REPLY_FRAME) };
        reply.bytes[..reply.len].copy_from_slice(&content[..reply.len]);
        reply.bytes[2] = (reply.len / 4) as u8;
        reply
    }

    /// A reply with this content, followed by `data`.
    pub(super) fn with_data(
        content: &(impl IntoBytes + Immutable),
        data: &(impl IntoBytes + Immutable),
    ) -> Self {
        let mut reply = Self::new(content);
        let data = data.as_bytes();
        let end = (reply.len + data.len()).min(REPLY_FRAME);
        reply.bytes[reply.len..end].copy_from_slice(&data[..end - reply.len]);
        reply.bytes[2] = (end / 4) as u8;
        Self { len: end, ..reply }
    }

    /// The default reply to a request: the request's header and an IOCStatus.
    pub(super) fn default_to(header: &Header, status: u16) -> Self {
        Self::with_len(header, status, DEFAULT_REPLY_LEN)
    }

    /// As [`default_to`](Self::default_to), with `len` bytes. The bytes after the IOCStatus are zero.
    pub(super) fn with_len(header: &Header, status: u16, len: usize) -> Self {
        let mut reply = Self { bytes: [0; REPLY_FRAME], len };
        reply.bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        reply.bytes[2] = (len / 4) as u8;
        reply.bytes[0x0e..0x10].copy_from_slice(&status.to_le_bytes());
        reply
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
