//! An NBD client that can also violate the protocol.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED: u32 = 8;
pub(crate) const LIST_CONTEXT: u32 = 9;
pub(crate) const SET_CONTEXT: u32 = 10;

pub(crate) const ACK: u32 = 1;

/// An answer to an option.
pub(crate) type Answer = (u32, Vec<u8>);

/// A reply: the request's cookie, the error (0: none), the data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) structured: bool,
    pub(crate) size: u64,
    pub(crate) flags: u16,
}

impl Client {
    /// Connect, check the server's greeting, and send the client's flags.
    pub(crate) fn greeted(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Self { stream, structured: false, size: 0, flags: 0 };
        assert_eq!(client.take::<18>(), *b"NBDMAGICIHAVEOPT\0\x03");
        client.stream.write_all(&3u32.to_be_bytes()).unwrap();
        client
    }

    /// Connect and negotiate, up to the first request to an export.
    pub(crate) fn of(path: &Path, name: &str, structured: bool) -> Self {
        let mut client = Self::greeted(path);
        if structured {
            client.structured = true;
            assert_eq!(client.option(STRUCTURED, &[]), [(ACK, vec![])]);
            let mut query = string(name);
            query.extend([0, 0, 0, 1]);
            query.extend(string("base:allocation"));
            assert_eq!(client.option(SET_CONTEXT, &query).len(), 2);
        }
        let answers = client.option(GO, &[&string(name)[..], &[0, 0]].concat());
        assert_eq!(answers.last(), Some(&(ACK, vec![])), "{answers:?}");
        let export = answers.iter().find(|(kind, data)| *kind == 3 && data[..2] == [0, 0]).unwrap();
        client.size = u64::from_be_bytes(export.1[2..10].try_into().unwrap());
        client.flags = u16::from_be_bytes(export.1[10..12].try_into().unwrap());
        client
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        self.try_take().unwrap()
    }

    fn try_take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    /// Whether the server closes the connection. Waits for that or for data.
    pub(crate) fn hung_up(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        let len = data.len() as u32;
        let message = [b"IHAVEOPT", &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat();
        self.stream.write_all(&message).unwrap();
    }

    /// Send an option; all replies to it.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<Answer> {
        self.send_option(option, data);
        let mut answers = Vec::new();
        loop {
            assert_eq!(u64::from_be_bytes(self.take()), 0x3_E889_0455_65A9);
            assert_eq!(self.u32(), option);
            let kind = self.u32();
            let mut data = vec![0; self.u32() as usize];
            self.stream.read_exact(&mut data).unwrap();
            answers.push((kind, data));
            if kind == ACK || kind >> 31 == 1 {
                return answers;
            }
        }
    }

    pub(crate) fn send(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        self.stream.write_all(&request(kind, flags, cookie, offset, len)).unwrap();
    }

    /// The next reply. `len`: bytes of data if it is a simple reply, which does not state them.
    pub(crate) fn reply(&mut self, len: usize) -> Reply {
        let magic = self.u32();
        if magic == 0x6744_6698 {
            let error = self.u32();
            let cookie = u64::from_be_bytes(self.take());
            let len = if error == 0 && !self.structured { len } else { 0 };
            let mut data = vec![0; len];
            self.stream.read_exact(&mut data).unwrap();
            return Reply { cookie, error, data };
        }
        assert!(self.structured && magic == 0x668E_33EF, "{magic:#x}");
        let [_, flags, kind_high, kind_low] = self.take();
        assert_eq!(flags, 1, "the last chunk");
        let cookie = u64::from_be_bytes(self.take());
        let mut data = vec![0; self.u32() as usize];
        self.stream.read_exact(&mut data).unwrap();
        match u16::from_be_bytes([kind_high, kind_low]) {
            0 => assert!(data.is_empty()),
            // Remove the offset before the data, or the context before the descriptors.
            1 => drop(data.drain(..8)),
            5 => assert_eq!(data.drain(..4).as_slice(), [0, 0, 0, 1]),
            0x8001 => {
                let error = u32::from_be_bytes(data[..4].try_into().unwrap());
                assert_eq!(usize::from(u16::from_be_bytes([data[4], data[5]])), data.len() - 6);
                return Reply { cookie, error, data: vec![] };
            }
            kind => panic!("chunk {kind:#x}"),
        }
        Reply { cookie, error: 0, data }
    }

    /// A request and its reply: the error, or the data.
    pub(crate) fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.send(kind, flags, 77, offset, len);
        let reply = self.reply(if kind == READ { len as usize } else { 0 });
        assert_eq!(reply.cookie, 77);
        if reply.error == 0 { Ok(reply.data) } else { Err(reply.error) }
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.ask(READ, 0, offset, len)
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Result<Vec<u8>, u32> {
        let head = request(WRITE, flags, 77, offset, data.len() as u32);
        self.stream.write_all(&[&head[..], data].concat()).unwrap();
        let reply = self.reply(0);
        assert_eq!(reply.cookie, 77);
        if reply.error == 0 { Ok(reply.data) } else { Err(reply.error) }
    }

    /// Lengths and flags of the pieces of a range.
    pub(crate) fn status(&mut self, flags: u16, offset: u64, len: u32) -> Result<Vec<(u32, u32)>, u32> {
        let data = self.ask(BLOCK_STATUS, flags, offset, len)?;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        Ok(data.chunks(8).map(|piece| (number(&piece[..4]), number(&piece[4..]))).collect())
    }
}

/// A request's bytes.
pub(crate) fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let numbers = [&flags.to_be_bytes()[..], &kind.to_be_bytes()].concat();
    let place = [&cookie.to_be_bytes()[..], &offset.to_be_bytes(), &len.to_be_bytes()].concat();
    [&0x2560_9513u32.to_be_bytes()[..], &numbers, &place].concat()
}

/// A string after its length.
pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}
