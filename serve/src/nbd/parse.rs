//! Parses what clients send into typed values. All of it is untrusted.

use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32};

use super::spec::*;

/// A request, with its command or why that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) command: Result<Command, BadCommand>,
    /// Bytes of payload follow, `len` of them.
    pub(super) payload: bool,
}

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write { fua: bool },
    Disconnect,
    Flush,
    Trim { fua: bool },
    WriteZeroes { fua: bool, may_unmap: bool },
    BlockStatus { one: bool },
}

/// Why a command is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadCommand {
    Unknown,
    Flags,
}

/// Parse a header; `None` for a wrong magic, after which the start of the next request is unknown.
pub(super) fn request(header: &RequestHeader) -> Option<Request> {
    if header.magic.get() != NBD_REQUEST_MAGIC {
        return None;
    }
    let kind = header.kind.get();
    Some(Request {
        cookie: header.cookie.get(),
        offset: header.offset.get(),
        len: header.len.get(),
        command: command(kind, header.flags.get()),
        payload: kind == NBD_CMD_WRITE,
    })
}

fn command(kind: u16, flags: u16) -> Result<Command, BadCommand> {
    let flags = CommandFlags::from_bits(flags).ok_or(BadCommand::Flags)?;
    let fua = flags.contains(CommandFlags::FUA);
    let (command, known) = match kind {
        NBD_CMD_READ => (Command::Read, CommandFlags::DF),
        NBD_CMD_WRITE => (Command::Write { fua }, CommandFlags::empty()),
        NBD_CMD_DISC => (Command::Disconnect, CommandFlags::empty()),
        NBD_CMD_FLUSH => (Command::Flush, CommandFlags::empty()),
        NBD_CMD_TRIM => (Command::Trim { fua }, CommandFlags::empty()),
        NBD_CMD_WRITE_ZEROES => {
            let may_unmap = !flags.contains(CommandFlags::NO_HOLE);
            (Command::WriteZeroes { fua, may_unmap }, CommandFlags::NO_HOLE)
        }
        NBD_CMD_BLOCK_STATUS => {
            (Command::BlockStatus { one: flags.contains(CommandFlags::REQ_ONE) }, CommandFlags::REQ_ONE)
        }
        _ => return Err(BadCommand::Unknown),
    };
    // FUA is allowed with every command.
    if (known | CommandFlags::FUA).contains(flags) { Ok(command) } else { Err(BadCommand::Flags) }
}

/// The data of [`NBD_OPT_INFO`] and [`NBD_OPT_GO`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoQuery<'a> {
    /// The export's name.
    pub(super) name: &'a [u8],
    /// The information requested, `NBD_INFO_*`.
    pub(super) requested: &'a [U16],
}

/// Parse an [`InfoQuery`]; `None` for malformed data.
pub(super) fn info_query(data: &[u8]) -> Option<InfoQuery<'_>> {
    let (name, rest) = string(data)?;
    let (count, rest) = U16::read_from_prefix(rest).ok()?;
    let requested = <[U16]>::ref_from_bytes(rest).ok()?;
    (requested.len() == usize::from(count.get())).then_some(InfoQuery { name, requested })
}

/// The data of [`NBD_OPT_LIST_META_CONTEXT`] and [`NBD_OPT_SET_META_CONTEXT`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextQuery<'a> {
    /// The export's name.
    pub(super) name: &'a [u8],
    /// No query at all.
    pub(super) empty: bool,
    /// One of the queries is [`BASE_ALLOCATION`].
    pub(super) allocation: bool,
    /// One of the queries is its whole namespace.
    pub(super) namespace: bool,
}

/// Parse a [`ContextQuery`]; `None` for malformed data.
pub(super) fn context_query(data: &[u8]) -> Option<ContextQuery<'_>> {
    let (name, rest) = string(data)?;
    let (count, mut rest) = U32::read_from_prefix(rest).ok()?;
    let mut found = ContextQuery { name, empty: count.get() == 0, allocation: false, namespace: false };
    // Each query takes four bytes at least, so the data bound the loop.
    for _ in 0..count.get() {
        let (query, after) = string(rest)?;
        rest = after;
        found.allocation |= query == BASE_ALLOCATION;
        found.namespace |= query == b"base:";
    }
    rest.is_empty().then_some(found)
}

/// A string after its length, and what follows it.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = U32::read_from_prefix(data).ok()?;
    let len = usize::try_from(len.get()).ok().filter(|len| *len <= NBD_MAX_STRING)?;
    rest.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u16, flags: u16) -> RequestHeader {
        RequestHeader {
            magic: NBD_REQUEST_MAGIC.into(),
            flags: flags.into(),
            kind: kind.into(),
            cookie: 7.into(),
            offset: 512.into(),
            len: 1024.into(),
        }
    }

    #[test]
    fn each_command_takes_its_flags_and_no_others() {
        for (kind, flags, expected) in [
            (0, 0, Ok(Command::Read)),
            (0, 5, Ok(Command::Read)),
            (0, 2, Err(BadCommand::Flags)),
            (1, 0, Ok(Command::Write { fua: false })),
            (1, 1, Ok(Command::Write { fua: true })),
            (1, 4, Err(BadCommand::Flags)),
            (2, 0, Ok(Command::Disconnect)),
            (3, 1, Ok(Command::Flush)),
            (4, 1, Ok(Command::Trim { fua: true })),
            (4, 2, Err(BadCommand::Flags)),
            (5, 0, Err(BadCommand::Unknown)),
            (6, 0, Ok(Command::WriteZeroes { fua: false, may_unmap: true })),
            (6, 3, Ok(Command::WriteZeroes { fua: true, may_unmap: false })),
            (6, 16, Err(BadCommand::Flags)),
            (7, 0, Ok(Command::BlockStatus { one: false })),
            (7, 8, Ok(Command::BlockStatus { one: true })),
            (8, 0, Err(BadCommand::Unknown)),
            (0xFFFF, 0, Err(BadCommand::Unknown)),
            (0, 0x8000, Err(BadCommand::Flags)),
        ] {
            let parsed = request(&header(kind, flags)).unwrap();
            assert_eq!(parsed.command, expected, "{kind} {flags}");
            assert_eq!((parsed.cookie, parsed.offset, parsed.len), (7, 512, 1024));
            assert_eq!(parsed.payload, kind == 1);
        }
        assert_eq!(request(&RequestHeader { magic: 1.into(), ..header(0, 0) }), None);
    }

    #[test]
    fn info_queries_are_whole() {
        let good = b"\0\0\0\x03abc\0\x02\0\x01\0\x03";
        let query = info_query(good).unwrap();
        assert_eq!((query.name, query.requested), (&b"abc"[..], &[U16::new(1), U16::new(3)][..]));
        for len in 0..good.len() {
            assert_eq!(info_query(&good[..len]), None, "{len}");
        }
        assert_eq!(info_query(&[good, &[0][..]].concat()), None);
        assert_eq!(info_query(b"\xff\xff\xff\xff\0\0"), None);
    }

    #[test]
    fn context_queries_are_whole_and_bounded() {
        let good = b"\0\0\0\x01x\0\0\0\x02\0\0\0\x05base:\0\0\0\x0fbase:allocation";
        let query = context_query(good).unwrap();
        assert_eq!(query, ContextQuery { name: b"x", empty: false, allocation: true, namespace: true });
        for len in 0..good.len() {
            assert_eq!(context_query(&good[..len]), None, "{len}");
        }
        assert!(context_query(b"\0\0\0\0\0\0\0\0").unwrap().empty);
        // Four thousand million queries, none of them there.
        assert_eq!(context_query(b"\0\0\0\0\xff\xff\xff\xff"), None);
        let long = [&(NBD_MAX_STRING as u32 + 1).to_be_bytes()[..], &[b'a'; NBD_MAX_STRING + 9]].concat();
        assert_eq!(context_query(&long), None);
    }
}
