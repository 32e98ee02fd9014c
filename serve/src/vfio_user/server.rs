//! The thread that serves: it sleeps on the socket, doorbells and the device's completions together.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use devices::{InterruptSink, PciDevice, Sleep, Stats, Time};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use vm_memory::GuestMemoryAtomic;

use super::channel::{Channel, Ended, Message};
use super::function::Function;
use super::interrupts::{Interrupts, Signals, Sink};
use super::memory::ClientMemory;
use super::session::{Reply, Session};
use super::spec;

/// Events taken from the kernel at once.
const EVENTS: usize = 64;
/// A device that never sleeps is asked for completions so often before other events are looked for.
const BUSY_ROUNDS: u32 = 16;
/// Before the next try after a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const STOP: u64 = 0;
const LISTENER: u64 = 1;
const CLIENT: u64 = 2;
const UNMASK: u64 = 3;
const COMPLETIONS: u64 = 4;
const REFRESH: u64 = 5;
const FIRST_DOORBELL: u64 = 6;

/// What happened to a server that its owner may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A client connected.
    Connected,
    /// The client is gone.
    Left(Ended),
    /// A client could not be taken.
    NotAccepted(Errno),
}

/// Tells a server, from any thread, that a disk may have another capacity ([`Disk::rescan`](disk_formats::Disk::rescan),
/// [`Disk::grow`](disk_formats::Disk::grow)).
#[derive(Clone, Debug)]
pub struct Refresh(Arc<OwnedFd>);

impl Refresh {
    /// Have the server check the capacities of its disks soon, and report a change to the guest.
    pub fn refresh(&self) {
        // Fails only where the counter is full: the server has not handled earlier calls yet.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Memory of the client as the device's maker gets it.
pub type Memory = GuestMemoryAtomic<ClientMemory>;

/// A PCI function behind a socket.
pub struct Server {
    listener: UnixListener,
    channel: Option<Channel>,
    session: Session,
    message: Message,
    reply: Reply,
    refresh: Arc<OwnedFd>,
    events: OwnedFd,
    /// The device's descriptors in `events`.
    registered: Vec<RawFd>,
    /// What `events` was made for.
    interest: Interest,
}

/// What else than the device is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Interest {
    stop: RawFd,
    client: Option<RawFd>,
    blocked: bool,
    /// The client's messages wait until memory is unmapped.
    unmapping: bool,
    unmask: Option<RawFd>,
}

impl Server {
    /// A server for the device that `build` makes.
    ///
    /// # Errors
    /// What `build` says, or the host has no descriptors left.
    pub fn new<F>(listener: UnixListener, build: F) -> Result<Self, Box<dyn Error + Send + Sync>>
    where
        F: FnOnce(Memory, Box<dyn InterruptSink>) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        listener.set_nonblocking(true)?;
        let signals = Signals::new();
        let memory = GuestMemoryAtomic::new(ClientMemory::default());
        let function = Function::new(build(memory.clone(), Box::new(Sink(Arc::clone(&signals))))?);
        let msix = function.msix.map_or(0, |msix| msix.vectors);
        let interrupts = Interrupts::new(signals, function.intx, function.msi_vectors, msix);
        let event = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Arc::new);
        let doorbells = function.device.doorbells().iter().map(event).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            listener,
            channel: None,
            session: Session::new(function, interrupts, doorbells, memory),
            message: Message::default(),
            reply: Reply::default(),
            refresh: Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?),
            events: new_epoll()?,
            registered: Vec::new(),
            interest: Interest { stop: -1, ..Interest::default() },
        })
    }

    /// A handle to report to the server that a disk has grown.
    #[must_use]
    pub fn refresher(&self) -> Refresh {
        Refresh(Arc::clone(&self.refresh))
    }

    /// What the device has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.session.function.device.stats()
    }

    /// Serve one client after another until `stop` is readable. Then requests in flight are waited for, the client is let go
    /// and the device is reset: the disks may be flushed and closed.
    ///
    /// # Errors
    /// The host refuses to wait for events.
    pub fn run(&mut self, stop: BorrowedFd<'_>, mut note: impl FnMut(Note)) -> io::Result<()> {
        let served = self.serve(stop, &mut note);
        self.channel = None;
        self.session.client_left();
        Ok(served?)
    }

    fn serve(&mut self, stop: BorrowedFd<'_>, note: &mut impl FnMut(Note)) -> rustix::io::Result<()> {
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [empty; EVENTS];
        let mut busy = 0;
        loop {
            self.watch(stop)?;
            let now = self.session.now();
            let sleep = self.session.function.device.before_sleep(now);
            self.session.deliver_interrupts();
            let due = if let Sleep::Until(time) = sleep { Some(time) } else { None };
            let timeout = match sleep {
                Sleep::No => {
                    self.session.function.device.on_completions(now);
                    self.session.deliver_interrupts();
                    busy += 1;
                    if busy % BUSY_ROUNDS != 0 && !self.session.is_unmapping() {
                        continue;
                    }
                    Some(Duration::ZERO)
                }
                Sleep::Until(time) => Some(time.since(now)),
                Sleep::Forever => None,
            };
            let count = wait(&self.events, &mut events, timeout)?;
            let events = events.get(..count).unwrap_or_default();
            if events.iter().any(|event| event.data.u64() == STOP) {
                return Ok(());
            }
            self.deliver(events, timeout.is_some(), due, note);
            self.session.deliver_interrupts();
            if self.session.is_unmapping()
                && let Err(ended) = self.finish_unmap()
            {
                self.hang_up(ended, note);
            }
        }
    }

    /// `due`: what the device wants to be woken for, however many other events there are.
    fn deliver(
        &mut self,
        events: &[epoll::Event],
        timed: bool,
        due: Option<Time>,
        note: &mut impl FnMut(Note),
    ) {
        let now = self.session.now();
        let completions = events.iter().any(|event| event.data.u64() == COMPLETIONS);
        if completions || timed && (events.is_empty() || due.is_some_and(|due| now >= due)) {
            self.session.function.device.on_completions(now);
        }
        for event in events {
            match event.data.u64() {
                STOP | COMPLETIONS => {}
                LISTENER => self.accept(note),
                CLIENT if self.session.is_unmapping() => self.hang_up(Ended::Closed, note),
                CLIENT => {
                    if let Err(ended) = self.listen() {
                        self.hang_up(ended, note);
                    }
                }
                UNMASK => self.session.interrupts.unmask_line(),
                REFRESH => self.session.function.device.refresh(now),
                token => {
                    let index = (token - FIRST_DOORBELL) as usize;
                    self.session.function.device.on_doorbell(index, now);
                }
            }
        }
    }

    fn hang_up(&mut self, ended: Ended, note: &mut impl FnMut(Note)) {
        self.channel = None;
        self.message.fds.clear();
        self.session.client_left();
        tracing::info!(%ended, "vfio-user client disconnected");
        note(Note::Left(ended));
    }

    /// Answer an unmap that has waited for requests in flight, if it has waited long enough, and go on with what the client has said.
    fn finish_unmap(&mut self) -> Result<(), Ended> {
        if !self.session.finish_unmap(&mut self.reply) {
            return Ok(());
        }
        self.session.deliver_interrupts();
        if let Some(channel) = &mut self.channel
            && self.message.header.flags.get() & spec::NO_REPLY == 0
        {
            channel.reply(&self.message.header, Ok(self.reply.payload.as_slice()), Vec::new())?;
        }
        self.listen()
    }

    fn accept(&mut self, note: &mut impl FnMut(Note)) {
        let accepted = self.listener.accept().and_then(|(stream, _)| Channel::new(stream));
        match accepted {
            Ok(channel) => {
                self.channel = Some(channel);
                tracing::info!("vfio-user client connected");
                note(Note::Connected);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                note(Note::NotAccepted(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Take what the client says, and answer.
    fn listen(&mut self) -> Result<(), Ended> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        channel.flush()?;
        if channel.blocked() {
            return Ok(());
        }
        channel.receive()?;
        // A buffer's worth of messages: their number is bounded.
        while !channel.blocked() && channel.next(&mut self.message)? {
            let flags = self.message.header.flags.get();
            if flags & spec::TYPE_MASK != spec::TYPE_COMMAND {
                // A reply, though the server sent no command.
                self.message.fds.clear();
                continue;
            }
            let result = self.session.execute(&mut self.message, &mut self.reply)?;
            // Descriptors that the command does not take are closed.
            self.message.fds.clear();
            if self.session.is_unmapping() {
                // The reply, and what follows, comes when requests in flight have ended.
                break;
            }
            // Interrupts first: when a client has read a register, what the register reports was signalled before.
            self.session.deliver_interrupts();
            if flags & spec::NO_REPLY == 0 {
                let payload = result.map(|()| self.reply.payload.as_slice());
                let fds = if payload.is_ok() { std::mem::take(&mut self.reply.fds) } else { Vec::new() };
                channel.reply(&self.message.header, payload, fds)?;
            }
        }
        let now = self.session.now();
        self.session.function.deliver_writes(now);
        Ok(())
    }

    /// Have `events` wait for what there is to wait for.
    fn watch(&mut self, stop: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let interest = Interest {
            stop: stop.as_raw_fd(),
            client: self.channel.as_ref().map(|channel| channel.fd().as_raw_fd()),
            blocked: self.channel.as_ref().is_some_and(Channel::blocked),
            unmapping: self.session.is_unmapping(),
            unmask: self.session.interrupts.unmask_event().map(|fd| fd.as_raw_fd()),
        };
        if interest == self.interest && !self.session.function.stale {
            return Ok(());
        }
        let fds = self.session.function.device.completion_events();
        if interest == self.interest && fds.iter().map(AsRawFd::as_raw_fd).eq(self.registered.iter().copied())
        {
            for fd in fds {
                // The same number may be another file: then the old one was removed when it was closed.
                match epoll::add(&self.events, fd, EventData::new_u64(COMPLETIONS), EventFlags::IN) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
            }
            self.session.function.stale = false;
            return Ok(());
        }
        // Descriptors that were closed cannot be named here: start afresh.
        let events = new_epoll()?;
        let add =
            |fd: BorrowedFd<'_>, token, flags| epoll::add(&events, fd, EventData::new_u64(token), flags);
        add(stop, STOP, EventFlags::IN)?;
        match &self.channel {
            Some(channel) => {
                let flags = match (interest.unmapping, interest.blocked) {
                    // A hang-up is reported without any flag.
                    (true, _) => EventFlags::empty(),
                    (false, true) => EventFlags::OUT,
                    (false, false) => EventFlags::IN,
                };
                add(channel.fd(), CLIENT, flags)?;
            }
            None => add(self.listener.as_fd(), LISTENER, EventFlags::IN)?,
        }
        // Each write to an eventfd is an edge, so these need no read. What was written before shows once more.
        let edge = EventFlags::IN | EventFlags::ET;
        if let Some(fd) = self.session.interrupts.unmask_event() {
            add(fd, UNMASK, edge)?;
        }
        add(self.refresh.as_fd(), REFRESH, edge)?;
        for (doorbell, token) in self.session.doorbells.iter().zip(FIRST_DOORBELL..) {
            add(doorbell.as_fd(), token, edge)?;
        }
        self.registered = fds.iter().map(AsRawFd::as_raw_fd).collect();
        for fd in fds {
            add(fd, COMPLETIONS, EventFlags::IN)?;
        }
        self.events = events;
        self.interest = interest;
        self.session.function.stale = false;
        Ok(())
    }
}

/// A device that is dropped has nothing in flight.
impl Drop for Server {
    fn drop(&mut self) {
        let now = self.session.now();
        self.session.function.reset(now);
    }
}

fn new_epoll() -> rustix::io::Result<OwnedFd> {
    epoll::create(epoll::CreateFlags::CLOEXEC)
}

fn wait(
    epoll: &OwnedFd,
    events: &mut [epoll::Event; EVENTS],
    timeout: Option<Duration>,
) -> rustix::io::Result<usize> {
    let timeout = timeout
        .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() });
    match epoll::wait(epoll, events.as_mut_slice(), timeout.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        result => result,
    }
}
