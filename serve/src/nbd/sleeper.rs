//! What a connection's thread sleeps on: the socket, the disk's completions, the memory pool and the server's stop, in one epoll set.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::buffer_queue::BufferQueue;
use super::stop::Stop;
use super::stream::Stream;

const SOCKET: u64 = 0;
const DISK: u64 = 1;
const STOP: u64 = 2;
const MEMORY: u64 = 3;

/// The epoll set.
pub(super) struct Sleeper {
    epoll: OwnedFd,
    /// Events that are enabled for the socket.
    interest: EventFlags,
}

/// What ended a sleep.
pub(super) struct Woken {
    pub(super) socket: EventFlags,
    pub(super) stop: bool,
    /// The pool has granted what was waited for.
    pub(super) memory: bool,
    /// The time was up.
    pub(super) timed_out: bool,
}

impl Sleeper {
    /// `memory`: readable when the pool has granted what was waited for.
    pub(super) fn new(
        stream: &Stream,
        disk: &BufferQueue,
        stop: &Stop,
        memory: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interest = EventFlags::IN;
        epoll::add(&epoll, stream, EventData::new_u64(SOCKET), interest)?;
        epoll::add(&epoll, disk.event(), EventData::new_u64(DISK), EventFlags::IN)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, memory, EventData::new_u64(MEMORY), EventFlags::IN)?;
        Ok(Self { epoll, interest })
    }

    pub(super) fn sleep(
        &mut self,
        stream: &Stream,
        interest: EventFlags,
        left: Option<&Timespec>,
    ) -> Result<Woken, Errno> {
        if interest != self.interest {
            epoll::modify(&self.epoll, stream, EventData::new_u64(SOCKET), interest)?;
            self.interest = interest;
        }
        let mut woken = Woken { socket: EventFlags::empty(), stop: false, memory: false, timed_out: false };
        let mut events = [MaybeUninit::uninit(); 4];
        let events = match epoll::wait(&self.epoll, &mut events, left) {
            Ok((events, _)) => events,
            // A completion may interrupt the sleep.
            Err(Errno::INTR) => return Ok(woken),
            Err(errno) => return Err(errno),
        };
        woken.timed_out = events.is_empty();
        for event in events {
            match event.data.u64() {
                SOCKET => woken.socket = event.flags,
                STOP => woken.stop = true,
                MEMORY => woken.memory = true,
                _ => {}
            }
        }
        Ok(woken)
    }

    /// The stop has been seen: it stays readable and would end every sleep.
    pub(super) fn ignore_stop(&self, stop: &Stop) -> Result<(), Errno> {
        epoll::delete(&self.epoll, stop)
    }
}
