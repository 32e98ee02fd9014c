//! The thread that serves: it sleeps on the socket, doorbells and the device's completions together.

use std::error::Error;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::time::Duration;

use paradisk_devices::event_loop::{Event, EventLoop, Interest, Next, Polling, Ready};
use paradisk_devices::{Coalescing, InterruptSink, ModerationState, PciDevice, Sleep, Stats, Time};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use vm_memory::GuestMemoryAtomic;

use super::channel::{Channel, Ended, Message};
use super::function::Function;
use super::interrupts::{Interrupts, Signals, Sink};
use super::memory::ClientMemory;
use super::session::{DoorbellEvent, Reply, Session};
use super::spec;
use crate::client_region::read_limit;
use crate::client_socket::{ClientSocket, start_closer};
use crate::memory_sources::MemorySources;

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const STOP: Event = Event::Own(0);
const LISTENER: Event = Event::Own(1);
const CLIENT: Event = Event::Own(2);
const UNMASK: Event = Event::Own(3);
const MESSAGES: Event = Event::Own(4);

/// An event of a server, for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A client connected.
    Connected,
    /// The client has disconnected.
    Left(Ended),
    /// A client could not be accepted, or was disconnected before its first message: the host has no descriptors or memory left.
    NotAccepted(Errno),
    /// A descriptor that the client passed as its memory was refused: it is none of the [`MemorySources`].
    MemoryRefused,
}

/// Changes and queries a server, from any thread while it runs.
#[derive(Clone, Debug)]
pub struct Handle {
    messages: Sender<Request>,
    wake: Arc<OwnedFd>,
}

/// A message to the server.
#[derive(Debug)]
enum Request {
    Refresh,
    SetCoalescing(Coalescing),
    Report(SyncSender<Report>),
}

impl Handle {
    /// Have the server check the capacities of its disks soon ([`Disk::rescan`](paradisk_disk_formats::Disk::rescan),
    /// [`Disk::grow`](paradisk_disk_formats::Disk::grow)), and report a change to the guest.
    pub fn refresh(&self) {
        self.send(Request::Refresh);
    }

    /// Have the server change the interrupt moderation of its device soon.
    pub fn set_coalescing(&self, coalescing: Coalescing) {
        self.send(Request::SetCoalescing(coalescing));
    }

    /// What the device has done so far; `None` if the server does not answer within `timeout`: it does not run, or waits for a disk.
    #[must_use]
    pub fn report(&self, timeout: Duration) -> Option<Report> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.send(Request::Report(answer));
        answered.recv_timeout(timeout).ok()
    }

    fn send(&self, request: Request) {
        // Fails only where the server has ended.
        if self.messages.send(request).is_ok() {
            // Fails only after 2^64 writes: nobody reads the counter.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// What the device has done so far.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Its counters.
    pub stats: Stats,
    /// The moderation of each interrupt vector.
    pub moderation: Vec<ModerationState>,
}

/// The client's memory, for `build`.
pub type Memory = GuestMemoryAtomic<ClientMemory>;

/// A PCI function behind a socket.
pub struct Server {
    listener: UnixListener,
    channel: Option<Channel>,
    session: Session,
    message: Message,
    reply: Reply,
    handle: Handle,
    messages: Receiver<Request>,
    events: EventLoop,
    polling: Polling,
    /// The descriptors in `events` beside those of the device.
    watched: Watched,
}

/// The descriptors to wait for beside those of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watched {
    stop: RawFd,
    client: Option<RawFd>,
    blocked: bool,
    /// The client's messages are not read until memory is unmapped.
    unmapping: bool,
    unmask: Option<RawFd>,
}

impl Server {
    /// A server for the device that `build` makes.
    ///
    /// # Errors
    /// Errors of `build`, or the host has no descriptors left.
    pub fn new<F>(listener: UnixListener, build: F) -> Result<Self, Box<dyn Error + Send + Sync>>
    where
        F: FnOnce(Memory, Box<dyn InterruptSink>) -> Result<Box<dyn PciDevice>, Box<dyn Error + Send + Sync>>,
    {
        listener.set_nonblocking(true)?;
        start_closer()?;
        read_limit();
        let signals = Signals::new();
        let memory = GuestMemoryAtomic::new(ClientMemory::default());
        let function = Function::new(build(memory.clone(), Box::new(Sink(Arc::clone(&signals))))?);
        let msix = function.msix.map_or(0, |msix| msix.vectors);
        let interrupts = Interrupts::new(signals, function.intx, function.msi_vectors, msix);
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Arc::new);
        let doorbell = |index| match function.device.doorbell_event(index) {
            Some(event) => {
                Ok(DoorbellEvent { event: Arc::new(event.try_clone_to_owned()?), of_device: true })
            }
            None => Ok(DoorbellEvent { event: event()?, of_device: false }),
        };
        let doorbells = 0..function.device.doorbells().len();
        let doorbells = doorbells.map(doorbell).collect::<io::Result<Vec<_>>>()?;
        let (sender, messages) = mpsc::channel();
        Ok(Self {
            listener,
            channel: None,
            session: Session::new(function, interrupts, doorbells, memory),
            message: Message::default(),
            reply: Reply::default(),
            handle: Handle { messages: sender, wake: event()? },
            messages,
            events: EventLoop::new()?,
            polling: Polling::new(Duration::ZERO),
            watched: Watched { stop: -1, ..Watched::default() },
        })
    }

    /// Set which files are mapped as the client's memory; by default those of [`MemorySources::default`].
    pub fn set_memory_sources(&mut self, sources: MemorySources) {
        self.session.sources = sources;
    }

    /// [Poll](Polling) the device for up to this long before each sleep; by default the server does not poll. A device with threads of its own
    /// is not polled.
    pub fn set_poll(&mut self, poll: Duration) {
        let own_threads = self.session.doorbells.iter().any(|doorbell| doorbell.of_device);
        self.polling = Polling::new(if own_threads { Duration::ZERO } else { poll });
    }

    /// A handle to change and query the server while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The device's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.session.function.device.stats()
    }

    /// Serve one client after another until `stop` is readable. Then wait for the requests in flight, disconnect the client and reset the
    /// device. Afterwards the disks may be flushed and closed.
    ///
    /// # Errors
    /// The host cannot wait for events.
    pub fn run(&mut self, stop: BorrowedFd<'_>, mut note: impl FnMut(Note)) -> io::Result<()> {
        let served = self.serve(stop, &mut note);
        self.channel = None;
        self.session.client_left();
        served
    }

    fn serve(&mut self, stop: BorrowedFd<'_>, note: &mut impl FnMut(Note)) -> io::Result<()> {
        let mut ready = Ready::new();
        loop {
            if let Err(error) = self.watch(stop) {
                let errno = Errno::from_io_error(&error).ok_or(error)?;
                self.cannot_watch(errno, note);
                if is_readable(stop) {
                    return Ok(());
                }
                continue;
            }
            let now = self.session.now();
            let device = &mut self.session.function.device;
            let polls = self.polling.goes_on(|| device.stats(), now);
            let sleep = if polls { Sleep::No } else { device.before_sleep(now) };
            self.session.deliver_interrupts();
            match self.events.next(sleep, now) {
                Next::Again => self.session.function.device.on_completions(now),
                Next::Wait(wait) => {
                    self.events.wait(wait, &mut ready)?;
                    if ready.iter().any(|event| event == STOP) {
                        return Ok(());
                    }
                    let now = self.session.now();
                    if wait.sleeps() {
                        self.polling.has_slept(now);
                    }
                    self.deliver(&ready, now, note);
                }
            }
            self.session.deliver_interrupts();
            if self.session.is_unmapping()
                && let Err(ended) = self.finish_unmap()
            {
                self.hang_up(ended, note);
            }
        }
    }

    /// The host has no descriptors or memory left: disconnect the client, or wait.
    fn cannot_watch(&mut self, errno: Errno, note: &mut impl FnMut(Note)) {
        if self.channel.is_none() {
            note(Note::NotAccepted(errno));
            std::thread::sleep(ACCEPT_PAUSE);
        } else if self.session.is_agreed() {
            self.hang_up(Ended::Host(errno), note);
        } else {
            self.channel = None;
            note(Note::NotAccepted(errno));
        }
    }

    fn deliver(&mut self, ready: &Ready, now: Time, note: &mut impl FnMut(Note)) {
        if ready.completions(now) {
            self.session.function.device.on_completions(now);
        }
        for event in ready.iter() {
            match event {
                Event::Doorbell(index) => self.session.function.device.on_doorbell(index as usize, now),
                LISTENER => self.accept(note),
                CLIENT if self.session.is_unmapping() => self.hang_up(Ended::Closed, note),
                CLIENT => {
                    let listened = self.listen();
                    if std::mem::take(&mut self.session.refused_memory) {
                        note(Note::MemoryRefused);
                    }
                    if let Err(ended) = listened {
                        self.hang_up(ended, note);
                    }
                }
                UNMASK => self.session.interrupts.unmask_line(),
                MESSAGES => self.take_messages(now),
                Event::Completions | Event::Own(_) => {}
            }
        }
    }

    fn take_messages(&mut self, now: Time) {
        let device = &mut self.session.function.device;
        let mut refresh = false;
        for message in self.messages.try_iter() {
            match message {
                Request::Refresh => refresh = true,
                Request::SetCoalescing(coalescing) => device.set_coalescing(coalescing),
                Request::Report(answer) => {
                    // Fails where nobody waits any more.
                    let _ =
                        answer.try_send(Report { stats: device.stats(), moderation: device.moderation() });
                }
            }
        }
        if refresh {
            device.refresh(now);
        }
    }

    fn hang_up(&mut self, ended: Ended, note: &mut impl FnMut(Note)) {
        self.channel = None;
        self.message.fds.clear();
        self.session.client_left();
        tracing::info!(%ended, "vfio-user client disconnected");
        note(Note::Left(ended));
    }

    /// Answer an unmap if the requests in flight that it waited for have completed, and continue with the client's messages.
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
        match ClientSocket::accept(&self.listener, SocketFlags::NONBLOCK) {
            Ok(client) => {
                self.channel = Some(Channel::new(client));
                tracing::info!("vfio-user client connected");
                note(Note::Connected);
            }
            Err(Errno::AGAIN) => {}
            Err(errno) => {
                note(Note::NotAccepted(errno));
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    /// Receive the client's messages, and answer them.
    fn listen(&mut self) -> Result<(), Ended> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        channel.flush()?;
        if channel.blocked() {
            return Ok(());
        }
        channel.receive()?;
        // At most one buffer of messages, so the loop is bounded.
        while !channel.blocked() && channel.next(&mut self.message)? {
            let flags = self.message.header.flags.get();
            if flags & spec::TYPE_MASK != spec::TYPE_COMMAND {
                // A reply, although the server has sent no command.
                self.message.fds.clear();
                continue;
            }
            let result = self.session.execute(&mut self.message, &mut self.reply)?;
            // Close descriptors that the command does not use.
            self.message.fds.clear();
            if self.session.is_unmapping() {
                // The reply and later messages follow when the requests in flight have completed.
                break;
            }
            // Deliver interrupts before the reply, so that a client that reads a register has already got the interrupt for the reported
            // state.
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

    /// Update `events`.
    fn watch(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let watched = Watched {
            stop: stop.as_raw_fd(),
            client: self.channel.as_ref().map(|channel| channel.fd().as_raw_fd()),
            blocked: self.channel.as_ref().is_some_and(Channel::blocked),
            unmapping: self.session.is_unmapping(),
            unmask: self.session.interrupts.unmask_event().map(|fd| fd.as_raw_fd()),
        };
        if watched == self.watched && !self.session.function.stale {
            return Ok(());
        }
        let fds = self.session.function.device.completion_events();
        if watched != self.watched || !self.events.completions_are(&fds)? {
            let mut events = EventLoop::new()?;
            events.add(stop, STOP, Interest::Readable)?;
            match &self.channel {
                Some(channel) => {
                    let interest = match (watched.unmapping, watched.blocked) {
                        (true, _) => Interest::HangUp,
                        (false, true) => Interest::Writable,
                        (false, false) => Interest::Readable,
                    };
                    events.add(channel.fd(), CLIENT, interest)?;
                }
                None => events.add(&self.listener, LISTENER, Interest::Readable)?,
            }
            if let Some(fd) = self.session.interrupts.unmask_event() {
                events.add(fd, UNMASK, Interest::Edge)?;
            }
            events.add(&self.handle.wake, MESSAGES, Interest::Edge)?;
            for (doorbell, index) in self.session.doorbells.iter().zip(0..) {
                if !doorbell.of_device {
                    events.add(&doorbell.event, Event::Doorbell(index), Interest::Edge)?;
                }
            }
            events.add_completions(&fds)?;
            self.events = events;
            self.watched = watched;
        }
        self.session.function.stale = false;
        Ok(())
    }
}

fn is_readable(stop: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(stop, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Reset first, so that the device has nothing in flight when it is dropped.
impl Drop for Server {
    fn drop(&mut self) {
        let now = self.session.now();
        self.session.function.reset(now);
    }
}
