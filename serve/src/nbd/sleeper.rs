//! What a connection's thread sleeps on: the socket, the disk's completions, the write gate, the memory pool and the server's stop, in one
//! epoll set.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::requests::Requests;
use super::stop::Stop;
use super::stream::Stream;

const SOCKET: u64 = 0;
const DISK: u64 = 1;
const STOP: u64 = 2;
const MEMORY: u64 = 3;
const GATE: u64 = 4;

/// The epoll set.
pub(super) struct Sleeper {
    epoll: OwnedFd,
    /// Events that are enabled for the socket; `None`: it is not in the set.
    interest: Option<EventFlags>,
}

/// What ended a sleep.
pub(super) struct Woken {
    pub(super) socket: EventFlags,
    pub(super) stop: bool,
    /// The pool has granted the memory that the connection waits for.
    pub(super) memory: bool,
    /// The gate has granted requests.
    pub(super) gate: bool,
    /// The time was up.
    pub(super) timed_out: bool,
}

impl Sleeper {
    /// `memory`: readable when the pool has granted the memory that the connection waits for.
    pub(super) fn new(
        stream: &Stream,
        requests: &Requests<'_>,
        stop: &Stop,
        memory: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interest = EventFlags::IN;
        epoll::add(&epoll, stream, EventData::new_u64(SOCKET), interest)?;
        epoll::add(&epoll, requests.disk_event(), EventData::new_u64(DISK), EventFlags::IN)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, memory, EventData::new_u64(MEMORY), EventFlags::IN)?;
        epoll::add(&epoll, requests.gate_event(), EventData::new_u64(GATE), EventFlags::IN)?;
        Ok(Self { epoll, interest: Some(interest) })
    }

    /// `interest`: events of the socket. `None`: not even that it is closed ends the sleep.
    pub(super) fn sleep(
        &mut self,
        stream: &Stream,
        interest: Option<EventFlags>,
        left: Option<&Timespec>,
    ) -> Result<Woken, Errno> {
        if interest != self.interest {
            let socket = EventData::new_u64(SOCKET);
            match (self.interest, interest) {
                (None, Some(interest)) => epoll::add(&self.epoll, stream, socket, interest)?,
                (Some(_), Some(interest)) => epoll::modify(&self.epoll, stream, socket, interest)?,
                (_, None) => epoll::delete(&self.epoll, stream)?,
            }
            self.interest = interest;
        }
        let mut woken =
            Woken { socket: EventFlags::empty(), stop: false, memory: false, gate: false, timed_out: false };
        let mut events = [MaybeUninit::uninit(); 5];
        let events = match epoll::wait(&self.epoll, &mut events, left) {
            Ok((events, _)) => events,
            // A completion of io_uring may interrupt the wait.
            Err(Errno::INTR) => return Ok(woken),
            Err(errno) => return Err(errno),
        };
        woken.timed_out = events.is_empty();
        for event in events {
            match event.data.u64() {
                SOCKET => woken.socket = event.flags,
                STOP => woken.stop = true,
                MEMORY => woken.memory = true,
                GATE => woken.gate = true,
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
