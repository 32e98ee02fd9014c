//! The sleep of a connection: on the socket, the disk, the shared memory and the server's end together.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::lending::Lender;
use super::stop::Stop;
use super::stream::Stream;

const SOCKET: u64 = 0;
const DISK: u64 = 1;
const STOP: u64 = 2;
const MEMORY: u64 = 3;

/// Sleeps on all of them together.
pub(super) struct Sleeper {
    epoll: OwnedFd,
    /// What the socket is watched for.
    interest: EventFlags,
}

/// What ended a sleep.
pub(super) struct Woken {
    pub(super) socket: EventFlags,
    pub(super) stop: bool,
    /// The pool has lent what was waited for.
    pub(super) memory: bool,
    /// The time was up.
    pub(super) nothing: bool,
}

impl Sleeper {
    /// `memory`: readable when the pool has lent what was waited for.
    pub(super) fn new(
        stream: &Stream,
        disk: &Lender,
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
        let mut woken = Woken { socket: EventFlags::empty(), stop: false, memory: false, nothing: false };
        let mut events = [MaybeUninit::uninit(); 4];
        let events = match epoll::wait(&self.epoll, &mut events, left) {
            Ok((events, _)) => events,
            // Perhaps by a completion.
            Err(Errno::INTR) => return Ok(woken),
            Err(errno) => return Err(errno),
        };
        woken.nothing = events.is_empty();
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

    /// It has been seen.
    pub(super) fn forget(&self, stop: &Stop) -> Result<(), Errno> {
        epoll::delete(&self.epoll, stop)
    }
}
