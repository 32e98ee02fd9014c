//! A disk as a vhost-user block device: the back-end of a virtio-blk in QEMU, Cloud Hypervisor, crosvm and others
//! (the vhost-user protocol of QEMU's documentation, `docs/interop/vhost-user.rst`).
//!
//! The client shares guest memory and the rings in it; requests and completions never pass the socket. A thread for
//! each queue sleeps on the client's kick and on the disk, and does what the virtio block device does
//! ([`paradisk_devices::virtio::blk::Rings`]).
//!
//! - `session`: the client's messages,
//! - `relay`: those messages, before the `vhost` crate has them,
//! - `backchannel`: messages from the server to the client,
//! - `memory`: guest memory as the client has described it,
//! - `queue_thread`: the thread of a queue,
//! - `inflight`: requests in flight, recorded in memory of the client for the next server.
//!
//! # What a client may do
//! One client is served at a time; the next one waits. A client that sends an invalid message is disconnected. When a client
//! disconnects or is disconnected, the server waits for its requests in flight. With `INFLIGHT_SHMFD`, a server that is started after
//! one was killed repeats the requests that were not completed. A client that shortens the file of its memory harms only itself: the
//! first mapping installs a handler of SIGBUS for the process, which passes other faults on to the handler before it.
//!
//! A descriptor whose close may sleep is closed by a thread that nobody waits for, and only memory that waits for nobody is mapped
//! ([`MemorySources`]).
//!
//! Messages are parsed by the `vhost` crate. The daemon of `vhost-user-backend` is not used: it refuses the messages of
//! in-flight tracking, and locks its rings.
//!
//! ```text
//! client -> socket -> relay -> session (a thread): memory, rings, eventfds -> queue_thread (one for each queue)
//! guest: ring, kick -> queue_thread -> Rings -> disk queue
//! guest: used ring, call <- queue_thread <- Rings <- completions
//! ```

mod backchannel;
mod inflight;
mod memory;
mod queue_thread;
mod relay;
mod session;

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use paradisk_devices::Coalescing;
use paradisk_devices::virtio::blk::{Config, MAX_QUEUE_SIZE, MAX_QUEUES, RingThread, Rings, serial};
use paradisk_devices::worker::Worker;
use paradisk_disk_formats::{Disk, EngineKind, OpenError, ThreadKind, spawn_scoped};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use self::backchannel::Backchannel;
use self::memory::Memory;
pub use self::queue_thread::QueueReport;
use self::queue_thread::{Client, Queue};
use self::session::{Outcome, Session};
use crate::client_region::read_limit;
use crate::client_socket::{ClientSocket, start_closer};
use crate::memory_sources::MemorySources;
use crate::refusals::client_refused;

/// Pause after the host could not accept a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a disk is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues, and a thread for each; 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Serial number that the guest reads, cut after 20 bytes.
    pub serial: String,
    /// Which I/O engine transfers data.
    pub engine: EngineKind,
    /// Interrupt moderation of each queue, in addition to the guest's own suppression.
    pub coalescing: Coalescing,
    /// The thread of a queue [polls](paradisk_devices::event_loop::Polling) the ring for up to this long before it sleeps; 0: it does not poll.
    pub poll: Duration,
    /// Which files are mapped as the client's memory.
    pub memory: MemorySources,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1,
            serial: String::new(),
            engine: EngineKind::default(),
            coalescing: Coalescing::default(),
            poll: Duration::ZERO,
            memory: MemorySources::default(),
        }
    }
}

/// A server could not be created, or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The number of queues is not possible.
    #[error("{0} queues: expected 1 to {MAX_QUEUES}")]
    Queues(u16),
    /// The disk could not create a queue.
    #[error(transparent)]
    Disk(#[from] OpenError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Host {
        /// The call, or the object for which it was made.
        what: &'static str,
        /// The error of the call.
        source: io::Error,
    },
}

impl Error {
    fn host<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Host { what, source: source.into() }
    }
}

/// An event to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has connected.
    Connected,
    /// The client has disconnected, or was disconnected for this reason.
    Gone(Option<String>),
    /// The client was disconnected before its first message, because the host has no descriptors, memory or threads left
    /// ([`on_client_refused`](crate::on_client_refused) has the reason).
    NotServed,
}

/// A disk that is served to one client after the other.
pub struct Server {
    disk: Arc<dyn Disk>,
    workers: Arc<[Worker<Queue>]>,
    backchannel: Arc<Backchannel>,
    options: Options,
}

impl Server {
    /// Queues and threads for a disk.
    ///
    /// # Errors
    /// The number of queues is not possible, the disk cannot create a queue, or the host cannot start a thread.
    pub fn new(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        if !(1..=MAX_QUEUES).contains(&options.queues) {
            return Err(Error::Queues(options.queues));
        }
        start_closer().map_err(Error::host("thread"))?;
        read_limit();
        let config = Config {
            queue_size: MAX_QUEUE_SIZE,
            tasks: MAX_QUEUE_SIZE.into(),
            engine: options.engine,
            serial: serial(&options.serial),
            coalescing: options.coalescing,
            ..Config::default()
        };
        let worker = |index| {
            let rings = Rings::new(Memory::default(), &*disk, &config, Client::default())?;
            let thread = RingThread::new(rings, options.poll)
                .and_then(|queue| Worker::start(ThreadKind::VhostUserQueue, format!("queue-{index}"), queue));
            thread.map_err(Error::host("thread of a queue"))
        };
        let workers = (0..options.queues).map(worker).collect::<Result<_, Error>>()?;
        Ok(Self { disk, workers, backchannel: Arc::default(), options })
    }

    /// Serve the clients that connect to `listener`, one after the other, until `stop` is readable. No request is in flight when this
    /// returns; the caller flushes the disk.
    ///
    /// # Errors
    /// `poll` or `accept` failed.
    pub fn run(
        &self,
        listener: &UnixListener,
        stop: BorrowedFd<'_>,
        report: &(dyn Fn(Event) + Sync),
    ) -> Result<(), Error> {
        while let Some(client) = accept(listener, stop)? {
            if self.serve_and_report(client, stop, report)? == Outcome::Stopped {
                break;
            }
        }
        Ok(())
    }

    /// As [`run`](Self::run), for a client that is connected already, and for no other.
    ///
    /// # Errors
    /// `poll` failed.
    pub fn run_connected(
        &self,
        client: UnixStream,
        stop: BorrowedFd<'_>,
        report: &(dyn Fn(Event) + Sync),
    ) -> Result<(), Error> {
        self.serve_and_report(client.into(), stop, report).map(drop)
    }

    fn serve_and_report(
        &self,
        client: ClientSocket,
        stop: BorrowedFd<'_>,
        report: &(dyn Fn(Event) + Sync),
    ) -> Result<Outcome, Error> {
        tracing::info!("vhost-user client connected");
        report(Event::Connected);
        let outcome = self.serve(&client, stop)?;
        tracing::info!(?outcome, "vhost-user client disconnected");
        report(match &outcome {
            Outcome::Disconnected(reason) => Event::Gone(Some(reason.clone())),
            Outcome::NotServed(reason) => {
                client_refused(reason);
                Event::NotServed
            }
            Outcome::Closed | Outcome::Stopped => Event::Gone(None),
        });
        Ok(outcome)
    }

    /// Apply a new capacity of the disk ([`Disk::rescan`], [`Disk::grow`]) to the queues, and send the client a configuration change,
    /// for which it interrupts the guest. May be called on any thread at any time.
    pub fn refresh(&self) {
        let capacity = self.disk.info().capacity;
        for worker in self.workers.iter() {
            // Fails for a thread that has ended.
            let _ = worker.ask(move |queue| queue.rings.set_capacity(capacity));
        }
        self.backchannel.config_changed();
    }

    /// Change the interrupt moderation of all queues. May be called on any thread at any time.
    pub fn set_coalescing(&self, coalescing: Coalescing) {
        for worker in self.workers.iter() {
            // Fails for a thread that has ended.
            let _ = worker.ask(move |queue| queue.rings.set_coalescing(coalescing));
        }
    }

    /// What each queue has done so far. May be called on any thread at any time; waits for the threads of the queues.
    #[must_use]
    pub fn reports(&self) -> Vec<QueueReport> {
        // Without the queues whose threads have ended.
        self.workers.iter().filter_map(|worker| worker.ask(queue_thread::report).ok()?).collect()
    }

    /// Serve one client. Messages are received on a thread of their own, so that a client that stops in the middle of a message
    /// does not keep the server from stopping.
    fn serve(&self, client: &ClientSocket, stop: BorrowedFd<'_>) -> Result<Outcome, Error> {
        // A shortage of descriptors or threads ends this connection, and not the server.
        let refused = |error: io::Error| Ok(Outcome::NotServed(error.to_string()));
        let ended = match eventfd(0, EventfdFlags::CLOEXEC) {
            Ok(ended) => ended,
            Err(errno) => return refused(errno.into()),
        };
        let (disk, workers) = (Arc::clone(&self.disk), Arc::clone(&self.workers));
        let session = Session::new(disk, self.options.queues, workers, Arc::clone(&self.backchannel));
        thread::scope(|scope| {
            let messages = spawn_scoped(scope, ThreadKind::VhostUserSession, "vhost-user", || {
                let outcome = session.run(client, &self.options.memory);
                let _ = rustix::io::write(&ended, &1u64.to_ne_bytes());
                outcome
            });
            let messages = match messages {
                Ok(messages) => messages,
                Err(error) => return refused(error),
            };
            let stopped =
                wait([&PollFd::from_borrowed_fd(stop, PollFlags::IN), &PollFd::new(&ended, PollFlags::IN)]);
            // Also after an error of `poll`: the shutdown ends the thread, which is joined next.
            client.shut_down();
            let outcome =
                messages.join().unwrap_or_else(|_| Outcome::Disconnected("internal error".to_owned()));
            Ok(if stopped? { Outcome::Stopped } else { outcome })
        })
    }
}

/// The next client; `None`: `stop` is readable.
fn accept(listener: &UnixListener, stop: BorrowedFd<'_>) -> Result<Option<ClientSocket>, Error> {
    loop {
        if wait([&PollFd::from_borrowed_fd(stop, PollFlags::IN), &PollFd::new(listener, PollFlags::IN)])? {
            return Ok(None);
        }
        match ClientSocket::accept(listener, SocketFlags::empty()) {
            Ok(client) => return Ok(Some(client)),
            // Errors of one connection only: the client may have closed it.
            Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
            // The host lacks descriptors or memory, now.
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                client_refused(&errno);
                thread::sleep(ACCEPT_PAUSE);
            }
            Err(errno) => return Err(Error::host("accept")(errno)),
        }
    }
}

/// Wait until at least one of two descriptors is readable. True: the first is.
fn wait(fds: [&PollFd<'_>; 2]) -> Result<bool, Error> {
    let mut fds = fds.map(Clone::clone);
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::Host { what: "poll", source: errno.into() }),
        }
    }
}
