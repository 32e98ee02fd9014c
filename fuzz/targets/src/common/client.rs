//! A client of a server in this process: bytes and descriptors sent, and memory that both share.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::common::input::Input;

/// Bytes of memory that is shared.
pub(crate) const MEMORY: u64 = 1 << 20;
/// Descriptors with one message at the most.
const MOST_FDS: usize = 8;

/// An abstract address, so that there is no file.
fn address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("paradisk-fuzz-{}-{name}", std::process::id())).expect("a name")
}

pub(crate) fn listen(name: &str) -> UnixListener {
    UnixListener::bind_addr(&address(name)).expect("a socket")
}

pub(crate) struct Client {
    stream: UnixStream,
    /// The following are sent as descriptors: shared memory, an eventfd, a shorter memfd, a socket, a device.
    pub(crate) memory: File,
    pub(crate) event: OwnedFd,
    short: File,
    socket: UnixStream,
    device: File,
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        let memfd = |size| {
            let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"));
            file.set_len(size).expect("memory");
            file
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event");
        let (socket, _) = UnixStream::pair().expect("a socket");
        let device = File::open("/dev/null").expect("a device");
        Self { stream, memory: memfd(MEMORY), event, short: memfd(8192), socket, device }
    }

    fn fd(&self, choice: u8) -> BorrowedFd<'_> {
        match choice % 5 {
            0 => self.memory.as_fd(),
            1 => self.event.as_fd(),
            2 => self.short.as_fd(),
            3 => self.socket.as_fd(),
            _ => self.device.as_fd(),
        }
    }

    /// Send `bytes`, with a descriptor for each byte of `fds`, which selects it. Does nothing if the server has disconnected.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[u8]) {
        let fds: Vec<_> = fds.iter().take(MOST_FDS).map(|choice| self.fd(*choice)).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut sent = 0;
        while sent < bytes.len() {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            }
            match sendmsg(&self.stream, &[IoSlice::new(&bytes[sent..])], &mut ancillary, SendFlags::NOSIGNAL)
            {
                Ok(more) => sent += more,
                Err(_) => return,
            }
        }
    }

    /// Send bytes of the input.
    pub(crate) fn send_from(&self, input: &mut Input<'_>) {
        let len = input.u8();
        self.send(input.bytes(len.into()), &[]);
    }

    /// Write to shared memory.
    pub(crate) fn poke(&self, at: u64, bytes: &[u8]) {
        let len = (bytes.len() as u64).min(MEMORY.saturating_sub(at));
        let _ = self.memory.write_at(&bytes[..len as usize], at);
    }

    /// Write bytes of the input to a place of the input.
    pub(crate) fn poke_from(&self, input: &mut Input<'_>) {
        let (at, len) = (u64::from(input.u16()) << 4, input.u8());
        self.poke(at, input.bytes(len.into()));
    }

    /// Set the size of the shared memory's file.
    pub(crate) fn resize(&self, len: u64) {
        let _ = self.memory.set_len(len.min(MEMORY));
    }
}

/// Connect, call `talk`, and wait until the server disconnects. All replies are received, so that the server never waits for this
/// client.
pub(crate) fn session(name: &str, talk: impl FnOnce(&Client)) {
    let stream = UnixStream::connect_addr(&address(name)).expect("a server");
    let receiver = stream.try_clone().expect("a socket");
    let client = Client::new(stream);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = std::io::copy(&mut &receiver, &mut std::io::sink());
        });
        talk(&client);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
    });
}
