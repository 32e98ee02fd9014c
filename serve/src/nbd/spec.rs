//! Constants and structures of the protocol. All numbers are big-endian.

use bitflags::bitflags;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the largest request, 32 MiB: what clients may expect of every server.
pub(super) const LARGEST: usize = 32 << 20;

/// First field of the greeting: `NBDMAGIC`.
pub(super) const NBD_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second field of the greeting, first field of each option.
pub(super) const NBD_OPTS_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// First field of each reply to an option.
pub(super) const NBD_REP_MAGIC: u64 = 0x0003_E889_0455_65A9;
/// First field of each request.
pub(super) const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
/// First field of a simple reply.
pub(super) const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First field of a chunk of a structured reply.
pub(super) const NBD_STRUCTURED_REPLY_MAGIC: u32 = 0x668E_33EF;

/// Handshake flag: options may be refused without disconnecting.
pub(super) const NBD_FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the padding of the old reply may be left out.
pub(super) const NBD_FLAG_NO_ZEROES: u16 = 1 << 1;
/// Zeros at the end of the reply to [`NBD_OPT_EXPORT_NAME`].
pub(super) const PADDING: usize = 124;

pub(super) const NBD_OPT_EXPORT_NAME: u32 = 1;
pub(super) const NBD_OPT_ABORT: u32 = 2;
pub(super) const NBD_OPT_LIST: u32 = 3;
pub(super) const NBD_OPT_STARTTLS: u32 = 5;
pub(super) const NBD_OPT_INFO: u32 = 6;
pub(super) const NBD_OPT_GO: u32 = 7;
pub(super) const NBD_OPT_STRUCTURED_REPLY: u32 = 8;
pub(super) const NBD_OPT_LIST_META_CONTEXT: u32 = 9;
pub(super) const NBD_OPT_SET_META_CONTEXT: u32 = 10;

pub(super) const NBD_REP_ACK: u32 = 1;
pub(super) const NBD_REP_SERVER: u32 = 2;
pub(super) const NBD_REP_INFO: u32 = 3;
pub(super) const NBD_REP_META_CONTEXT: u32 = 4;
const NBD_REP_FLAG_ERROR: u32 = 1 << 31;
pub(super) const NBD_REP_ERR_UNSUP: u32 = NBD_REP_FLAG_ERROR + 1;
pub(super) const NBD_REP_ERR_INVALID: u32 = NBD_REP_FLAG_ERROR + 3;
pub(super) const NBD_REP_ERR_TLS_REQD: u32 = NBD_REP_FLAG_ERROR + 5;
pub(super) const NBD_REP_ERR_UNKNOWN: u32 = NBD_REP_FLAG_ERROR + 6;
pub(super) const NBD_REP_ERR_TOO_BIG: u32 = NBD_REP_FLAG_ERROR + 9;

pub(super) const NBD_INFO_EXPORT: u16 = 0;
pub(super) const NBD_INFO_NAME: u16 = 1;
pub(super) const NBD_INFO_DESCRIPTION: u16 = 2;
pub(super) const NBD_INFO_BLOCK_SIZE: u16 = 3;

/// Longest string of the protocol, in bytes.
pub(super) const NBD_MAX_STRING: usize = 4096;

/// The metadata context of allocation.
pub(super) const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Its number in replies.
pub(super) const BASE_ALLOCATION_ID: u32 = 1;
/// Nothing is stored there: a write may run out of space.
pub(super) const NBD_STATE_HOLE: u32 = 1 << 0;
/// It reads as zeros.
pub(super) const NBD_STATE_ZERO: u32 = 1 << 1;

bitflags! {
    /// What an export can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct TransmissionFlags: u16 {
        const HAS_FLAGS = 1 << 0;
        const READ_ONLY = 1 << 1;
        const SEND_FLUSH = 1 << 2;
        const SEND_FUA = 1 << 3;
        const SEND_TRIM = 1 << 5;
        const SEND_WRITE_ZEROES = 1 << 6;
        const SEND_DF = 1 << 7;
        const CAN_MULTI_CONN = 1 << 8;
    }
}

bitflags! {
    /// How a request is to be done.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct CommandFlags: u16 {
        const FUA = 1 << 0;
        const NO_HOLE = 1 << 1;
        const DF = 1 << 2;
        const REQ_ONE = 1 << 3;
    }
}

pub(super) const NBD_CMD_READ: u16 = 0;
pub(super) const NBD_CMD_WRITE: u16 = 1;
pub(super) const NBD_CMD_DISC: u16 = 2;
pub(super) const NBD_CMD_FLUSH: u16 = 3;
pub(super) const NBD_CMD_TRIM: u16 = 4;
pub(super) const NBD_CMD_WRITE_ZEROES: u16 = 6;
pub(super) const NBD_CMD_BLOCK_STATUS: u16 = 7;

/// The last chunk of a structured reply.
pub(super) const NBD_REPLY_FLAG_DONE: u16 = 1 << 0;
pub(super) const NBD_REPLY_TYPE_NONE: u16 = 0;
pub(super) const NBD_REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub(super) const NBD_REPLY_TYPE_BLOCK_STATUS: u16 = 5;
pub(super) const NBD_REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;

pub(super) const NBD_EPERM: u32 = 1;
pub(super) const NBD_EIO: u32 = 5;
pub(super) const NBD_EINVAL: u32 = 22;
pub(super) const NBD_ENOSPC: u32 = 28;
pub(super) const NBD_EOVERFLOW: u32 = 75;
pub(super) const NBD_ESHUTDOWN: u32 = 108;

/// What the server sends first.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Greeting {
    pub(super) magic: U64,
    pub(super) version: U64,
    pub(super) flags: U16,
}

/// Before the data of an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct OptionHeader {
    pub(super) magic: U64,
    pub(super) option: U32,
    pub(super) len: U32,
}

/// Before the data of a reply to an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct OptionReplyHeader {
    pub(super) magic: U64,
    pub(super) option: U32,
    pub(super) kind: U32,
    pub(super) len: U32,
}

/// A request, before its payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RequestHeader {
    pub(super) magic: U32,
    pub(super) flags: U16,
    pub(super) kind: U16,
    /// Comes back in the reply.
    pub(super) cookie: U64,
    pub(super) offset: U64,
    pub(super) len: U32,
}

/// A simple reply, before its payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SimpleReply {
    pub(super) magic: U32,
    pub(super) error: U32,
    pub(super) cookie: U64,
}

/// A chunk of a structured reply, before its payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ChunkHeader {
    pub(super) magic: U32,
    pub(super) flags: U16,
    pub(super) kind: U16,
    pub(super) cookie: U64,
    pub(super) len: U32,
}

/// A chunk of data read, before the data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DataChunk {
    pub(super) header: ChunkHeader,
    pub(super) offset: U64,
}

/// A piece of the disk with one status (`NBD_REPLY_TYPE_BLOCK_STATUS`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) len: U32,
    pub(super) flags: U32,
}
