//! A vfio-user client: sends a message and receives its reply, one at a time.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use paradisk_serve::vfio_user::spec::{self, Header, command};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const CAPABILITIES: &str =
    r#"{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,"write_multiple":true}}"#;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    next_id: u16,
    /// Messages sent and replies received.
    pub(crate) messages: u64,
}

impl Client {
    /// Connect, and send nothing.
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, next_id: 0, messages: 0 }
    }

    /// Connect and agree on a version.
    pub(crate) fn new(socket: &Path) -> Self {
        let mut client = Self::connect(socket);
        let (reply, _) = client.version(CAPABILITIES).unwrap();
        let (version, text) = spec::Version::ref_from_prefix(&reply).unwrap();
        assert_eq!(version.major.get(), 0);
        let text = text.strip_suffix(&[0]).unwrap();
        let all: serde_json::Value = serde_json::from_slice(text).unwrap();
        assert_eq!(all["capabilities"]["write_multiple"], true);
        client
    }

    pub(crate) fn version(&mut self, capabilities: &str) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
        let mut payload = spec::Version::default().as_bytes().to_vec();
        payload.extend_from_slice(capabilities.as_bytes());
        payload.push(0);
        self.request(command::VERSION, &payload, &[])
    }

    /// Send a command.
    pub(crate) fn send(&mut self, number: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        self.next_id = self.next_id.wrapping_add(1);
        let header = Header {
            message_id: self.next_id.into(),
            command: number.into(),
            size: ((size_of::<Header>() + payload.len()) as u32).into(),
            flags: flags.into(),
            error: 0.into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        self.send_bytes(&bytes, fds).unwrap();
        self.messages += 1;
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    }

    /// Receive the reply to the last command.
    pub(crate) fn receive(&mut self, number: u16) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
        let mut header = [0; size_of::<Header>()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut header)];
        // Work of an io_uring instance that this thread has used may interrupt the call.
        let mut receive = || recvmsg(&self.stream, &mut iov, &mut ancillary, RecvFlags::WAITALL);
        let read = rustix::io::retry_on_intr(&mut receive).unwrap();
        assert_eq!(read.bytes, size_of::<Header>(), "the server hung up");
        let mut fds = VecDeque::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        let header = Header::read_from_bytes(&header).unwrap();
        let mut payload = vec![0; header.size.get() as usize - size_of::<Header>()];
        self.stream.read_exact(&mut payload).unwrap();
        self.messages += 1;
        assert_eq!(header.message_id.get(), self.next_id);
        assert_eq!(header.command.get(), number);
        assert_eq!(header.flags.get() & spec::TYPE_MASK, spec::TYPE_REPLY);
        if header.flags.get() & spec::ERROR != 0 {
            assert!(payload.is_empty());
            assert_ne!(header.error.get(), 0);
            return Err(Errno::from_raw_os_error(header.error.get() as i32));
        }
        Ok((payload, fds.into()))
    }

    pub(crate) fn request(
        &mut self,
        number: u16,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
        self.send(number, 0, payload, fds);
        self.receive(number)
    }

    /// A command whose reply starts with a structure.
    pub(crate) fn ask<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
        number: u16,
        request: &impl AsBytes,
    ) -> Result<T, Errno> {
        let (reply, _) = self.request(number, request.bytes(), &[])?;
        Ok(T::read_from_prefix(&reply).unwrap().0)
    }

    pub(crate) fn region_info(&mut self, index: u32) -> Result<spec::RegionInfo, Errno> {
        let info = spec::RegionInfo { argsz: 32.into(), index: index.into(), ..spec::RegionInfo::default() };
        self.ask(command::GET_REGION_INFO, &info)
    }

    pub(crate) fn irq_info(&mut self, index: u32) -> Result<spec::IrqInfo, Errno> {
        let info = spec::IrqInfo { argsz: 16.into(), index: index.into(), ..spec::IrqInfo::default() };
        self.ask(command::GET_IRQ_INFO, &info)
    }

    /// The doorbells of a region as ioeventfds.
    pub(crate) fn io_fds(&mut self, index: u32) -> Vec<(spec::IoEventFd, OwnedFd)> {
        let mut ask =
            spec::RegionIoFds { argsz: 16.into(), index: index.into(), ..spec::RegionIoFds::default() };
        let answer: spec::RegionIoFds = self.ask(command::GET_REGION_IO_FDS, &ask).unwrap();
        ask.argsz = answer.argsz;
        let (reply, fds) = self.request(command::GET_REGION_IO_FDS, ask.as_bytes(), &[]).unwrap();
        let (_, rest) = spec::RegionIoFds::read_from_prefix(&reply).unwrap();
        let regions = <[spec::IoEventFd]>::ref_from_bytes(rest).unwrap();
        assert_eq!((regions.len(), fds.len()), (answer.count.get() as usize, answer.count.get() as usize));
        regions.iter().copied().zip(fds).collect()
    }

    pub(crate) fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        flags: u32,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let map = spec::DmaMap {
            argsz: 32.into(),
            flags: flags.into(),
            offset: offset.into(),
            address: address.into(),
            size: size.into(),
        };
        self.request(command::DMA_MAP, map.as_bytes(), fd.as_slice()).map(drop)
    }

    pub(crate) fn unmap(&mut self, address: u64, size: u64, flags: u32) -> Result<(), Errno> {
        let unmap = spec::DmaUnmap {
            argsz: 24.into(),
            flags: flags.into(),
            address: address.into(),
            size: size.into(),
        };
        let echo: spec::DmaUnmap = self.ask(command::DMA_UNMAP, &unmap)?;
        assert_eq!(echo, unmap);
        Ok(())
    }

    pub(crate) fn set_irqs(
        &mut self,
        flags: spec::IrqSet,
        index: u32,
        vectors: std::ops::Range<u32>,
        bytes: &[u8],
        fds: &[&OwnedFd],
    ) -> Result<(), Errno> {
        let set = spec::SetIrqs {
            argsz: ((size_of::<spec::SetIrqs>() + bytes.len()) as u32).into(),
            flags: flags.bits().into(),
            index: index.into(),
            start: vectors.start.into(),
            count: (vectors.end - vectors.start).into(),
        };
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.request(command::SET_IRQS, &[set.as_bytes(), bytes].concat(), &fds).map(drop)
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let access = spec::RegionAccess { offset: offset.into(), region: region.into(), count: count.into() };
        let (mut reply, _) = self.request(command::REGION_READ, access.as_bytes(), &[])?;
        assert_eq!(reply.len(), size_of::<spec::RegionAccess>() + count as usize);
        Ok(reply.split_off(size_of::<spec::RegionAccess>()))
    }

    /// Write and wait for the reply, or post.
    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8], posted: bool) -> Result<(), Errno> {
        let access = spec::RegionAccess {
            offset: offset.into(),
            region: region.into(),
            count: (data.len() as u32).into(),
        };
        let payload = [access.as_bytes(), data].concat();
        if posted {
            self.send(command::REGION_WRITE, spec::NO_REPLY, &payload, &[]);
            return Ok(());
        }
        self.request(command::REGION_WRITE, &payload, &[]).map(drop)
    }
}

/// A structure as bytes.
pub(crate) trait AsBytes {
    fn bytes(&self) -> &[u8];
}

impl<T: IntoBytes + Immutable> AsBytes for T {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}
