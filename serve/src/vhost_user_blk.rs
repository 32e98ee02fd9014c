//! A disk as a vhost-user block device: the back-end of a virtio-blk in QEMU, Cloud Hypervisor, crosvm and others
//! (the vhost-user protocol of QEMU's documentation, `docs/interop/vhost-user.rst`).
//!
//! The client shares guest memory and the rings in it; requests and completions never pass the socket. A thread for
//! each queue sleeps on the client's kick and on the disk, and does what the virtio block device does
//! ([`devices::virtio::blk::Ring`]).
//!
//! - `session`: the client's messages,
//! - `backchannel`: what the server says by itself,
//! - `memory`: guest memory as the client has described it,
//! - `worker`: the thread of a queue,
//! - `inflight`: requests in flight, remembered by the client for the next server.
//!
//! # What a client may do
//! One client is served at a time; the next one waits. A client that says something wrong is hung up on, one that leaves
//! is forgotten, and in both cases what it had in flight is waited for. With `INFLIGHT_SHMFD` a server that was killed can
//! be started again, and does the requests once more that it had not completed. Memory whose file shrinks ends nobody but
//! its client: the first mapping installs a handler of SIGBUS for the process, which passes on what is not its own.
//!
//! Messages are parsed by the `vhost` crate. The daemon of `vhost-user-backend` is not used: it refuses the messages of
//! in-flight tracking, and its rings are behind locks.

mod backchannel;
mod inflight;
mod memory;
mod session;
mod worker;

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;

use devices::Coalescing;
use devices::virtio::blk::{MAX_QUEUE_SIZE, MAX_QUEUES, Ring, RingConfig, serial};
use disk_formats::{Disk, EngineKind, OpenError, QueueConfig};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use self::backchannel::Backchannel;
use self::memory::Memory;
use self::session::{Outcome, Session};
use self::worker::Worker;

/// How a disk is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Queues, and a thread for each; 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// Serial number shown to the guest, cut after 20 characters.
    pub serial: String,
    /// Who moves the bytes.
    pub engine: EngineKind,
    /// When completions signal, beside what the guest asks for; each queue by itself.
    pub coalescing: Coalescing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1,
            serial: String::new(),
            engine: EngineKind::default(),
            coalescing: Coalescing::default(),
        }
    }
}

/// A server could not be made, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The number of queues is not possible.
    #[error("{0} queues: expected 1 to {MAX_QUEUES}")]
    Queues(u16),
    /// The disk gives no queue.
    #[error(transparent)]
    Disk(#[from] OpenError),
    /// The host refuses something.
    #[error("{what}: {source}")]
    Host {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    fn host<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Host { what, source: source.into() }
    }
}

/// Something that the operator of a server may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client has come.
    Connected,
    /// The client has left, or was hung up on for this reason.
    Gone(Option<String>),
}

/// A disk that is served to one client after the other.
pub struct Server {
    disk: Arc<dyn Disk>,
    workers: Arc<[Worker]>,
    backchannel: Arc<Backchannel>,
    options: Options,
}

impl Server {
    /// Queues and threads for a disk.
    ///
    /// # Errors
    /// The number of queues, or what the disk or the host refuse.
    pub fn new(disk: Arc<dyn Disk>, options: Options) -> Result<Self, Error> {
        if !(1..=MAX_QUEUES).contains(&options.queues) {
            return Err(Error::Queues(options.queues));
        }
        let queue = QueueConfig { depth: MAX_QUEUE_SIZE.into(), engine: options.engine };
        let ring = RingConfig {
            max_size: MAX_QUEUE_SIZE,
            serial: serial(&options.serial),
            coalescing: options.coalescing,
        };
        let worker = |index| {
            let ring = Ring::new(Memory::default(), disk.queue(&queue)?, disk.info().clone(), ring);
            Worker::start(index, ring).map_err(Error::host("thread of a queue"))
        };
        let workers = (0..options.queues).map(worker).collect::<Result<_, Error>>()?;
        Ok(Self { disk, workers, backchannel: Arc::default(), options })
    }

    /// Serve those who connect to `listener`, one after the other, until `stop` is readable. Then what is in flight has been
    /// waited for; to make it durable is left to the disk's owner.
    ///
    /// # Errors
    /// The host refuses to wait or to accept.
    pub fn run(
        &self,
        listener: &UnixListener,
        stop: BorrowedFd<'_>,
        report: &(dyn Fn(Event) + Sync),
    ) -> Result<(), Error> {
        while let Some(stream) = accept(listener, stop)? {
            report(Event::Connected);
            let outcome = self.serve(stream, stop)?;
            let stopped = outcome == Outcome::Stopped;
            report(Event::Gone(if let Outcome::Wrong(reason) = outcome { Some(reason) } else { None }));
            if stopped {
                break;
            }
        }
        Ok(())
    }

    /// The disk may have another capacity ([`Disk::rescan`], [`Disk::grow`]): the queues are told, and the client, which has the
    /// guest look at its configuration. For any thread, while [`run`](Self::run) serves or does not.
    pub fn refresh(&self) {
        let capacity = self.disk.info().capacity;
        for worker in self.workers.iter() {
            // A thread that has ended serves nobody.
            let _ = worker.ask(move |queue| queue.set_capacity(capacity));
        }
        self.backchannel.config_changed();
    }

    /// Serve one client. Its messages are waited for on a thread of their own, so that even one that stops in the middle
    /// of a message does not keep the server from ending.
    fn serve(&self, stream: UnixStream, stop: BorrowedFd<'_>) -> Result<Outcome, Error> {
        let connection = stream.try_clone().map_err(Error::host("socket"))?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::host("eventfd"))?;
        let (disk, workers) = (Arc::clone(&self.disk), Arc::clone(&self.workers));
        let session = Session::new(disk, &self.options, workers, Arc::clone(&self.backchannel));
        thread::scope(|scope| {
            let talk = thread::Builder::new().name("vhost-user".to_owned()).spawn_scoped(scope, || {
                let outcome = session.talk(stream);
                let _ = rustix::io::write(&ended, &1u64.to_ne_bytes());
                outcome
            });
            let talk = talk.map_err(Error::host("thread of a client"))?;
            let stopped =
                wait([&PollFd::from_borrowed_fd(stop, PollFlags::IN), &PollFd::new(&ended, PollFlags::IN)]);
            // Also where waiting failed: the thread is waited for next.
            let _ = connection.shutdown(std::net::Shutdown::Both);
            let outcome = talk.join().unwrap_or_else(|_| Outcome::Wrong("internal error".to_owned()));
            Ok(if stopped? { Outcome::Stopped } else { outcome })
        })
    }
}

/// The next client; `None`: `stop` is readable.
fn accept(listener: &UnixListener, stop: BorrowedFd<'_>) -> Result<Option<UnixStream>, Error> {
    loop {
        if wait([&PollFd::from_borrowed_fd(stop, PollFlags::IN), &PollFd::new(listener, PollFlags::IN)])? {
            return Ok(None);
        }
        match listener.accept() {
            Ok((stream, _)) => return Ok(Some(stream)),
            Err(error) if is_passing(error.kind()) => {}
            Err(error) => return Err(Error::Host { what: "accept", source: error }),
        }
    }
}

/// Who wanted to connect may have thought better of it.
const fn is_passing(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted | io::ErrorKind::WouldBlock)
}

/// Wait until one of both is readable; whether the first is.
fn wait(fds: [&PollFd<'_>; 2]) -> Result<bool, Error> {
    let mut fds = fds.map(Clone::clone);
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Host { what: "poll", source: errno.into() }),
        }
    }
}
