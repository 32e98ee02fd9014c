//! The handshake phase: from the greeting to the choice of an export.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::export::{Export, Exports};
use super::parse::{context_query, info_query};
use super::spec::*;
use super::stop::Stop;
use super::stream::Stream;
use super::tls::Tls;

/// Time for the whole negotiation.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Options of a negotiation at the most.
const OPTIONS: u32 = 1024;
/// Maximum length of an option's data that are parsed, in bytes.
const OPTION_DATA: u32 = 32 << 10;
/// Maximum length of an option's data that are skipped, in bytes; with more, the client is disconnected.
const SKIPPED: u32 = 1 << 20;
/// Preferred size of a request in bytes, where the physical sector is not larger.
const PREFERRED: u32 = 4096;

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Number of the export.
    pub(super) export: usize,
    /// Structured replies.
    pub(super) structured: bool,
    /// Block status with [`BASE_ALLOCATION`].
    pub(super) allocation: bool,
}

/// Why the negotiation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ended {
    #[error("the client left")]
    Left,
    #[error("the client does not speak the protocol: {0}")]
    Protocol(&'static str),
    #[error("{0}")]
    Host(#[from] Errno),
}

/// Negotiate with a client that has just connected.
///
/// # Errors
/// [`Ended`]: the connection has to be closed.
pub(super) fn negotiate(stream: &mut Stream, exports: &Exports, stop: &Stop) -> Result<Agreed, Ended> {
    negotiate_until(Instant::now() + TIMEOUT, stream, exports, stop)
}

fn negotiate_until(
    deadline: Instant,
    stream: &mut Stream,
    exports: &Exports,
    stop: &Stop,
) -> Result<Agreed, Ended> {
    let wire = Wire { stream, stop, deadline };
    let mut negotiation = Negotiation {
        wire,
        exports,
        structured: false,
        contexts_of: None,
        zeroes: true,
        option: 0,
        data: Vec::new(),
    };
    negotiation.greet()?;
    for _ in 0..OPTIONS {
        if let Some(export) = negotiation.option()? {
            let allocation = negotiation.contexts_of == Some(export);
            return Ok(Agreed { export, structured: negotiation.structured, allocation });
        }
    }
    Err(Ended::Protocol("too many options"))
}

struct Negotiation<'a> {
    wire: Wire<'a>,
    exports: &'a Exports,
    structured: bool,
    /// The export that the context is selected for.
    contexts_of: Option<usize>,
    /// The reply to [`NBD_OPT_EXPORT_NAME`] is padded with zeros.
    zeroes: bool,
    /// The option that is being answered.
    option: u32,
    data: Vec<u8>,
}

impl Negotiation<'_> {
    fn greet(&mut self) -> Result<(), Ended> {
        let flags = NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES;
        self.wire.send(&Greeting {
            magic: NBD_MAGIC.into(),
            version: NBD_OPTS_MAGIC.into(),
            flags: flags.into(),
        })?;
        let answer: zerocopy::big_endian::U32 = self.wire.receive()?;
        if answer.get() & !u32::from(flags) != 0 {
            return Err(Ended::Protocol("unknown client flags"));
        }
        self.zeroes = answer.get() & u32::from(NBD_FLAG_NO_ZEROES) == 0;
        Ok(())
    }

    /// Receive and answer an option. `Some`: the number of the export that ends the negotiation.
    fn option(&mut self) -> Result<Option<usize>, Ended> {
        let header: OptionHeader = self.wire.receive()?;
        if header.magic.get() != NBD_OPTS_MAGIC {
            return Err(Ended::Protocol("wrong magic of an option"));
        }
        self.option = header.option.get();
        let len = header.len.get();
        if len > OPTION_DATA {
            return self.skip(len).map(|()| None);
        }
        let mut data = std::mem::take(&mut self.data);
        data.resize(len as usize, 0);
        let answered = self.wire.receive_into(&mut data).and_then(|()| self.answer(&data));
        self.data = data;
        answered
    }

    fn skip(&mut self, len: u32) -> Result<(), Ended> {
        if len > SKIPPED || self.option == NBD_OPT_EXPORT_NAME {
            return Err(Ended::Protocol("an option is too long"));
        }
        let mut chunk = [0; 4096];
        let mut left = len as usize;
        while left > 0 {
            let part = left.min(chunk.len());
            self.wire.receive_into(chunk.get_mut(..part).unwrap_or_default())?;
            left -= part;
        }
        self.refuse(NBD_REP_ERR_TOO_BIG, "the option is too long")
    }

    fn answer(&mut self, data: &[u8]) -> Result<Option<usize>, Ended> {
        let open = matches!(self.option, NBD_OPT_ABORT | NBD_OPT_STARTTLS);
        if self.exports.tls().is_some() && !self.wire.stream.is_secure() && !open {
            if self.option == NBD_OPT_EXPORT_NAME {
                return Err(Ended::Protocol("no TLS"));
            }
            return self.refuse(NBD_REP_ERR_TLS_REQD, "this server wants TLS").map(|()| None);
        }
        match self.option {
            NBD_OPT_EXPORT_NAME => return self.export_name(data).map(Some),
            NBD_OPT_INFO | NBD_OPT_GO => return self.info(data),
            NBD_OPT_ABORT => {
                // The client may have disconnected without waiting for the reply.
                let _ = self.reply(NBD_REP_ACK, &[]);
                return Err(Ended::Left);
            }
            NBD_OPT_LIST if data.is_empty() => self.list()?,
            NBD_OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(NBD_REP_ACK, &[])?;
            }
            NBD_OPT_LIST | NBD_OPT_STRUCTURED_REPLY => {
                self.refuse(NBD_REP_ERR_INVALID, "the option takes no data")?;
            }
            NBD_OPT_LIST_META_CONTEXT | NBD_OPT_SET_META_CONTEXT => self.contexts(data)?,
            NBD_OPT_STARTTLS => self.start_tls(data)?,
            _ => self.refuse(NBD_REP_ERR_UNSUP, "the option is not known")?,
        }
        Ok(None)
    }

    fn start_tls(&mut self, data: &[u8]) -> Result<(), Ended> {
        let tls = match self.exports.tls() {
            None => return self.refuse(NBD_REP_ERR_UNSUP, "this server has no TLS"),
            Some(_) if !data.is_empty() || self.wire.stream.is_secure() => {
                return self.refuse(NBD_REP_ERR_INVALID, "the option takes no data, and is for once");
            }
            Some(tls) => tls,
        };
        self.reply(NBD_REP_ACK, &[])?;
        self.wire.start_tls(tls)?;
        // Options in plain text may come from a man in the middle: they do not count under TLS.
        (self.structured, self.contexts_of) = (false, None);
        Ok(())
    }

    fn list(&mut self) -> Result<(), Ended> {
        for export in self.exports.as_slice() {
            let len = (export.name.len() as u32).to_be_bytes();
            self.reply(NBD_REP_SERVER, &[&len, export.name.as_bytes(), export.description.as_bytes()])?;
        }
        self.reply(NBD_REP_ACK, &[])
    }

    /// This option has no error reply: an unknown name ends the connection.
    fn export_name(&mut self, name: &[u8]) -> Result<usize, Ended> {
        let (number, export) = self.exports.find(name).ok_or(Ended::Protocol("no such export"))?;
        let size = export.disk.info().capacity.to_be_bytes();
        let flags = export.flags(self.structured).bits().to_be_bytes();
        let padding = if self.zeroes { &[0; PADDING][..] } else { &[] };
        self.wire.send_all(&[&size[..], &flags, padding].concat())?;
        Ok(number)
    }

    fn info(&mut self, data: &[u8]) -> Result<Option<usize>, Ended> {
        let Some(query) = info_query(data) else {
            return self
                .refuse(NBD_REP_ERR_INVALID, "the option's data are not what they should be")
                .map(|()| None);
        };
        let Some((number, export)) = self.exports.find(query.name) else {
            return self.refuse(NBD_REP_ERR_UNKNOWN, "there is no such export").map(|()| None);
        };
        let info = export.disk.info();
        let flags = export.flags(self.structured).bits().to_be_bytes();
        self.reply_info(NBD_INFO_EXPORT, &[&info.capacity.to_be_bytes(), &flags])?;
        for (kind, text) in [(NBD_INFO_NAME, &export.name), (NBD_INFO_DESCRIPTION, &export.description)] {
            if query.requested.iter().any(|requested| requested.get() == kind) {
                self.reply_info(kind, &[text.as_bytes()])?;
            }
        }
        let sizes = block_sizes(export).map(u32::to_be_bytes);
        self.reply_info(NBD_INFO_BLOCK_SIZE, &[sizes.as_flattened()])?;
        self.reply(NBD_REP_ACK, &[])?;
        Ok((self.option == NBD_OPT_GO).then_some(number))
    }

    fn contexts(&mut self, data: &[u8]) -> Result<(), Ended> {
        let set = self.option == NBD_OPT_SET_META_CONTEXT;
        if set {
            self.contexts_of = None;
        }
        if !self.structured {
            return self.refuse(NBD_REP_ERR_INVALID, "structured replies come first");
        }
        let Some(query) = context_query(data) else {
            return self.refuse(NBD_REP_ERR_INVALID, "the option's data are not what they should be");
        };
        let Some((number, _)) = self.exports.find(query.name) else {
            return self.refuse(NBD_REP_ERR_UNKNOWN, "there is no such export");
        };
        if query.allocation || !set && (query.empty || query.namespace) {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            self.reply(NBD_REP_META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION])?;
            self.contexts_of = if set { Some(number) } else { self.contexts_of };
        }
        self.reply(NBD_REP_ACK, &[])
    }

    fn refuse(&mut self, error: u32, why: &str) -> Result<(), Ended> {
        self.reply(error, &[why.as_bytes()])
    }

    fn reply_info(&mut self, kind: u16, parts: &[&[u8]]) -> Result<(), Ended> {
        self.reply(NBD_REP_INFO, &[&kind.to_be_bytes(), &parts.concat()])
    }

    fn reply(&mut self, kind: u32, parts: &[&[u8]]) -> Result<(), Ended> {
        let data = parts.concat();
        let header = OptionReplyHeader {
            magic: NBD_REP_MAGIC.into(),
            option: self.option.into(),
            kind: kind.into(),
            len: (data.len() as u32).into(),
        };
        self.wire.send_all(&[header.as_bytes(), &data].concat())
    }
}

/// Minimum, preferred and maximum size of a request in bytes. Any size is served, but parts of sectors cost more.
fn block_sizes(export: &Export) -> [u32; 3] {
    let info = export.disk.info();
    let best = PREFERRED.max(info.physical_sector).min(LARGEST as u32);
    [1, best, LARGEST as u32]
}

/// The stream with blocking transfers, which end at the deadline and when the server stops.
struct Wire<'a> {
    stream: &'a mut Stream,
    stop: &'a Stop,
    deadline: Instant,
}

impl Wire<'_> {
    fn receive<T: FromZeros + zerocopy::FromBytes + IntoBytes>(&mut self) -> Result<T, Ended> {
        let mut value = T::new_zeroed();
        self.receive_into(value.as_mut_bytes())?;
        Ok(value)
    }

    fn receive_into(&mut self, mut into: &mut [u8]) -> Result<(), Ended> {
        while !into.is_empty() {
            self.check()?;
            match self.stream.receive(&mut [IoSliceMut::new(into)]) {
                Ok(0) => return Err(Ended::Left),
                Ok(got) => into = into.get_mut(got..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn send(&mut self, value: &(impl IntoBytes + Immutable)) -> Result<(), Ended> {
        self.send_all(value.as_bytes())
    }

    fn send_all(&mut self, mut from: &[u8]) -> Result<(), Ended> {
        while !from.is_empty() {
            match self.stream.send(&[IoSlice::new(from)]) {
                Ok(sent) => from = from.get(sent..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Ended> {
        loop {
            match self.stream.flush() {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Continue under TLS.
    fn start_tls(&mut self, tls: &Tls) -> Result<(), Ended> {
        self.stream.start_tls(tls.session().map_err(|_| Ended::Protocol("no TLS"))?);
        while self.stream.is_handshaking() {
            self.check()?;
            self.flush()?;
            match self.stream.handshake() {
                Ok(()) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.flush()
    }

    /// Called in every round: with a client that keeps the socket full, [`wait`](Self::wait) is never reached.
    fn check(&self) -> Result<(), Ended> {
        if self.stop.is_raised() {
            return Err(Errno::CANCELED.into());
        }
        if Instant::now() >= self.deadline { Err(Errno::TIMEDOUT.into()) } else { Ok(()) }
    }

    fn wait(&self, flags: PollFlags) -> Result<(), Ended> {
        Ok(self.stop.wait(self.stream.as_fd(), flags, Some(self.deadline))?)
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use paradisk_disk_formats::{NullDisk, SectorSize};

    use super::super::tls::testing;
    use super::*;

    /// A handshake under TLS fits, on a busy host, too.
    const SHORT: Duration = Duration::from_secs(10);
    /// An option that may be repeated.
    const OPTIONS: &[u8] = b"IHAVEOPT\0\0\0\x03\0\0\0\0";

    /// Negotiate with this client, which has so much time.
    fn ended(tls: bool, time: Duration, client: impl FnOnce(UnixStream) + Send) -> (Ended, Duration) {
        let export = Export {
            name: String::new(),
            description: "x".repeat(4000),
            disk: Arc::new(NullDisk::new(1 << 20, SectorSize::B512).unwrap()),
            engine: Default::default(),
        };
        let exports = Exports::new(vec![export]).unwrap();
        let exports = if tls { exports.with_tls(testing::server()) } else { exports };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(ours.into()).unwrap();
        let stop = Stop::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| client(theirs));
            let begin = Instant::now();
            let ended = negotiate_until(begin + time, &mut stream, &exports, &stop).unwrap_err();
            drop(stream);
            (ended, begin.elapsed())
        })
    }

    /// Send a byte every 5 ms, until there are no more or the server disconnects.
    fn trickle<'a>(to: &mut impl Write, bytes: impl IntoIterator<Item = &'a u8>) {
        for byte in bytes {
            if to.write_all(&[*byte]).and_then(|()| to.flush()).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn nobody_takes_for_ever() {
        let silent = |mut client: UnixStream| drop(client.read_to_end(&mut Vec::new()));
        // Valid options, a byte at a time.
        let slow = |mut client: UnixStream| {
            let _ = client.write_all(&[0, 0, 0, 3]);
            trickle(&mut client, OPTIONS.iter().cycle());
        };
        // Options without end, whose replies are not read.
        let deaf = |mut client: UnixStream| {
            let talk = [&[0, 0, 0, 3][..], &b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(1000)].concat();
            while client.write_all(&talk).is_ok() {}
        };
        // The TLS handshake, a byte at a time.
        let hello = |socket: UnixStream| {
            let mut client = testing::start(socket);
            let mut hello = Vec::new();
            client.conn.write_tls(&mut hello).unwrap();
            // Its end never comes: the server would answer.
            hello.pop();
            trickle(&mut client.sock, &hello);
            drop(client.sock.read_to_end(&mut Vec::new()));
        };
        // Valid options under TLS, each byte in a record of its own.
        let secure = |socket: UnixStream| trickle(&mut testing::start(socket), OPTIONS.iter().cycle());
        // A record under TLS, a byte at a time.
        let record = |socket: UnixStream| {
            let mut client = testing::start(socket);
            client.write_all(b"I").unwrap();
            let mut client = testing::Records::of(client);
            let record = client.record(&[b'H'; 4096]);
            trickle(&mut client.socket, record.iter().cycle());
        };
        let check = |name: &str, (ended, took): (Ended, Duration)| {
            assert_eq!(ended, Ended::Host(Errno::TIMEDOUT), "{name}");
            assert!(took >= SHORT, "{name}: {took:?}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| check("silent", ended(false, SHORT, silent)));
            scope.spawn(|| check("slow", ended(false, SHORT, slow)));
            scope.spawn(|| check("deaf", ended(false, SHORT, deaf)));
            scope.spawn(|| check("hello", ended(true, SHORT, hello)));
            scope.spawn(|| check("secure", ended(true, SHORT, secure)));
            scope.spawn(|| check("part of a record", ended(true, SHORT, record)));
        });
    }

    /// The server never sleeps while the socket has data: the deadline and the stop count all the same.
    #[test]
    fn what_has_come_is_not_taken_after_the_end() {
        let export = Export {
            name: String::new(),
            description: String::new(),
            disk: Arc::new(NullDisk::new(1 << 20, SectorSize::B512).unwrap()),
            engine: Default::default(),
        };
        let exports = Exports::new(vec![export]).unwrap();
        for (late, stopped, expected) in [
            (false, false, Ok(0)),
            (true, false, Err(Ended::Host(Errno::TIMEDOUT))),
            (false, true, Err(Ended::Host(Errno::CANCELED))),
        ] {
            let (ours, mut client) = UnixStream::pair().unwrap();
            client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
            let stop = Stop::new().unwrap();
            if stopped {
                stop.raise();
            }
            let deadline = Instant::now() + if late { Duration::ZERO } else { TIMEOUT };
            let agreed = negotiate_until(deadline, &mut Stream::new(ours.into()).unwrap(), &exports, &stop);
            assert_eq!(agreed.map(|agreed| agreed.export), expected);
        }
    }

    /// Records without content, as fast as the socket accepts them, would keep the server from checking the deadline. rustls ends such a
    /// session.
    #[test]
    fn empty_records_end_the_negotiation() {
        let (ended, _) = ended(true, TIMEOUT, |socket: UnixStream| {
            let mut client = testing::start(socket);
            client.write_all(b"I").unwrap();
            let mut client = testing::Records::of(client);
            loop {
                let records: Vec<u8> = (0..100).flat_map(|_| client.record(&[])).collect();
                if client.socket.write_all(&records).is_err() {
                    return;
                }
            }
        });
        assert_eq!(ended, Ended::Host(Errno::PROTO));
    }
}
