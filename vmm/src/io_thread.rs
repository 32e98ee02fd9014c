//! The I/O thread of a device: it sleeps until a doorbell, a completion of a disk, a message or a deadline comes, and calls the
//! device. The threads of virtual CPUs access its registers ([`shared`]).
#![allow(unsafe_code, reason = "an eventfd of vmm-sys-util is only a number to epoll")]

pub(crate) mod shared;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{self, Duration, Instant};

use paradisk_devices::event_loop::{Event, EventLoop, Interest, Next, Polling, Ready};
use paradisk_devices::vmbus::VmbusDevice;
use paradisk_devices::{IoDevice, PciDevice, Sleep, Time};
use paradisk_disk_formats::{ThreadKind, spawn};
use parking_lot::{self as sync, MutexGuard};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use self::shared::{Held, Poisoned, Shared};
use crate::doorbells::{DoorbellWrite, Doorbells};
use crate::error::Error;
use crate::layout;
use crate::mailbox::{Mailbox, Message};
use crate::thread_time::{ThreadClock, ThreadTime};

// `shared` imports its lock and its clock from here, because `interleavings` includes that module with a checker's types in their place.

const MAILBOX: Event = Event::Own(0);
/// Maximum number of messages between two turns of the loop. Virtual CPUs may send them faster than the device executes them.
const MESSAGES: u32 = 16;

/// How an I/O thread waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Poll the device for up to this long after its last work, before sleeping ([`Polling`]); 0 (the default): do not poll. A device with
    /// threads of its own is not polled.
    pub poll: Duration,
}

/// A device of a bus.
pub(crate) trait BusDevice: IoDevice + 'static {
    /// The device without its bus.
    fn as_io_device(&mut self) -> &mut (dyn IoDevice + 'static);

    /// The doorbells, by index, with the device's own events. Constant.
    fn doorbell_writes(&self) -> Vec<(DoorbellWrite, Option<BorrowedFd<'_>>)>;
}

impl BusDevice for dyn PciDevice {
    fn as_io_device(&mut self) -> &mut (dyn IoDevice + 'static) {
        self
    }

    fn doorbell_writes(&self) -> Vec<(DoorbellWrite, Option<BorrowedFd<'_>>)> {
        let writes = self.doorbells().iter().copied().map(DoorbellWrite::Register);
        writes.enumerate().map(|(index, write)| (write, self.doorbell_event(index))).collect()
    }
}

impl BusDevice for dyn VmbusDevice {
    fn as_io_device(&mut self) -> &mut (dyn IoDevice + 'static) {
        self
    }

    fn doorbell_writes(&self) -> Vec<(DoorbellWrite, Option<BorrowedFd<'_>>)> {
        let write =
            |connection: &u32| DoorbellWrite::Value { port: layout::SIGNAL_EVENT, value: *connection };
        self.connections().iter().map(|connection| (write(connection), None)).collect()
    }
}

/// Access to a device from a virtual CPU's thread.
pub(crate) struct DeviceHandle<D: BusDevice + ?Sized> {
    pub(crate) mailbox: Mailbox<D>,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) shared: Arc<Shared<D>>,
}

/// Counters of an I/O thread since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Sleeps that ended.
    pub wakeups: AtomicU64,
    /// Calls through the mailbox: accesses of virtual CPUs that only this thread makes, and commands of the program, such as to attach a disk.
    pub calls: AtomicU64,
}

impl Counters {
    /// Add one.
    fn count(counter: &AtomicU64) {
        // One thread writes a counter, so no read-modify-write is needed.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// A running I/O thread. Dropping it resets the device and ends the thread.
pub(crate) struct IoThread {
    pub(crate) mailbox: Mailbox,
    clock: Option<ThreadClock>,
    pub(crate) counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Start a thread named `name` for `device`. `ended` is called with the reason if the thread ends without having been stopped.
    pub(crate) fn start<D: BusDevice + ?Sized>(
        name: String,
        device: Box<D>,
        options: Options,
        origin: Instant,
        ended: impl FnOnce(String) + Send + 'static,
    ) -> Result<(Self, DeviceHandle<D>), Error> {
        let wake = EventFd::new(EFD_NONBLOCK).map(Arc::new).map_err(Error::os("eventfd"))?;
        let (on_bus, inbox) = Mailbox::<D>::new(Arc::clone(&wake));
        let mailbox = on_bus.view(D::as_io_device);
        let writes = device.doorbell_writes();
        let own_threads = writes.iter().any(|(_, event)| event.is_some());
        let doorbells = Arc::new(Doorbells::new(writes)?);
        let counters = Arc::new(Counters::default());
        let shared = Arc::new(Shared::new(device, origin));
        let mut worker = Worker {
            shared: Arc::clone(&shared),
            polling: Polling::new(if own_threads { Duration::ZERO } else { options.poll }),
            inbox,
            wake,
            doorbells: Arc::clone(&doorbells),
            counters: Arc::clone(&counters),
            events: EventLoop::new().map_err(Error::os("epoll_create"))?,
        };
        worker.set_up().map_err(|Failed { what, source }| Error::Os { what, source })?;
        let (tid_sender, tid) = mpsc::sync_channel(1);
        let run = move || {
            let _ = tid_sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            // Adds the thread's name to the device's log messages.
            let _span = tracing::error_span!("adapter", thread = thread::current().name()).entered();
            let mut watch = EndReport { ended: Some(ended), cause: "panicked".to_owned() };
            match worker.run() {
                Ok(()) => watch.ended = None,
                Err(Failed { what, source }) => watch.cause = format!("{what}: {source}"),
            }
        };
        let thread = spawn(ThreadKind::Adapter, name, run).map_err(Error::os("I/O thread"))?;
        let tid =
            tid.recv().map_err(|_| Error::Os { what: "I/O thread", source: io::ErrorKind::Other.into() })?;
        let clock = ThreadClock::of(tid).ok();
        let thread = Self { mailbox, clock, counters, thread: Some(thread) };
        Ok((thread, DeviceHandle { mailbox: on_bus, doorbells, shared }))
    }
}

impl IoThread {
    /// CPU time so far.
    pub(crate) fn time(&self) -> io::Result<ThreadTime> {
        self.clock.as_ref().map_or_else(|| Err(io::ErrorKind::NotFound.into()), ThreadClock::read)
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        // Both fail only where the thread has ended already, which was reported.
        let _ = self.mailbox.send(Message::Stop);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Reports the end of a thread that was not stopped: it panicked, or [`Worker::run`] failed.
struct EndReport<F: FnOnce(String)> {
    ended: Option<F>,
    cause: String,
}

impl<F: FnOnce(String)> Drop for EndReport<F> {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            ended(std::mem::take(&mut self.cause));
        }
    }
}

fn fd(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: open as long as `event` is borrowed.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

/// Why the thread ends without having been stopped.
struct Failed {
    what: &'static str,
    source: io::Error,
}

impl From<io::Error> for Failed {
    fn from(source: io::Error) -> Self {
        Self { what: "epoll", source }
    }
}

impl From<Poisoned> for Failed {
    fn from(Poisoned: Poisoned) -> Self {
        Self { what: "device", source: io::Error::other("a virtual CPU's thread panicked in it") }
    }
}

/// The mailbox after messages were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inbox {
    Empty,
    /// There may be more messages.
    Filled,
    /// The thread must end.
    Stop,
}

struct Worker<D: BusDevice + ?Sized> {
    shared: Arc<Shared<D>>,
    polling: Polling,
    inbox: Receiver<Message<D>>,
    wake: Arc<EventFd>,
    doorbells: Arc<Doorbells>,
    counters: Arc<Counters>,
    events: EventLoop,
}

impl<D: BusDevice + ?Sized> Worker<D> {
    /// Before the thread runs.
    fn set_up(&mut self) -> Result<(), Failed> {
        let shared = Arc::clone(&self.shared);
        let mut held = shared.lock();
        Ok(self.register_all(held.device()?)?)
    }

    /// Serve until stopped.
    fn run(&mut self) -> Result<(), Failed> {
        let mut ready = Ready::new();
        let shared = Arc::clone(&self.shared);
        let mut held = shared.lock();
        loop {
            let inbox = self.take_messages(&mut held)?;
            let device = held.device()?;
            let now = self.now();
            let sleep = match inbox {
                Inbox::Stop => {
                    device.reset(now);
                    return Ok(());
                }
                Inbox::Filled => Sleep::No,
                Inbox::Empty if self.polling.goes_on(|| device.stats(), now) => Sleep::No,
                Inbox::Empty => device.before_sleep(now),
            };
            let wait = match self.events.next(sleep, now) {
                Next::Again => {
                    device.on_completions(now);
                    MutexGuard::bump(&mut held);
                    continue;
                }
                Next::Wait(wait) => wait,
            };
            held.will_wait();
            drop(held);
            self.events.wait(wait, &mut ready)?;
            held = shared.lock();
            held.has_waited();
            let now = self.now();
            if wait.sleeps() {
                Counters::count(&self.counters.wakeups);
                self.polling.has_slept(now);
            }
            self.deliver(&mut held, &ready, now)?;
        }
    }

    fn deliver(&self, held: &mut MutexGuard<'_, Held<D>>, ready: &Ready, now: Time) -> Result<(), Failed> {
        if ready.completions(now) {
            held.device()?.on_completions(now);
            MutexGuard::bump(held);
        }
        for event in ready.iter() {
            if let Event::Doorbell(index) = event {
                held.device()?.on_doorbell(index as usize, now);
                MutexGuard::bump(held);
            }
        }
        Ok(())
    }

    /// Execute messages of the mailbox, up to [`MESSAGES`].
    fn take_messages(&mut self, held: &mut MutexGuard<'_, Held<D>>) -> Result<Inbox, Failed> {
        let (mut called, mut inbox) = (false, Inbox::Filled);
        for _ in 0..MESSAGES {
            match self.inbox.try_recv() {
                Ok(Message::Call(call)) => {
                    Counters::count(&self.counters.calls);
                    let now = self.now();
                    call(held.device()?, now);
                    MutexGuard::bump(held);
                    called = true;
                }
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => inbox = Inbox::Stop,
                Err(TryRecvError::Empty) => inbox = Inbox::Empty,
            }
            if inbox != Inbox::Filled {
                break;
            }
        }
        if called {
            self.refresh_events(held.device()?)?;
        }
        Ok(inbox)
    }

    fn now(&self) -> Time {
        self.shared.now()
    }

    /// The device's descriptors may have changed.
    fn refresh_events(&mut self, device: &D) -> io::Result<()> {
        if self.events.completions_are(&device.completion_events())? {
            return Ok(());
        }
        self.events = EventLoop::new()?;
        self.register_all(device)
    }

    fn register_all(&mut self, device: &D) -> io::Result<()> {
        self.events.add(fd(&self.wake), MAILBOX, Interest::Edge)?;
        for (index, event) in self.doorbells.events() {
            // A doorbell that was rung before is delivered once more, which is harmless.
            self.events.add(fd(event), Event::Doorbell(index), Interest::Edge)?;
        }
        self.events.add_completions(&device.completion_events())
    }
}

impl<D: BusDevice + ?Sized> Drop for Worker<D> {
    fn drop(&mut self) {
        // Drop the device on this thread, even if another thread has the last reference to `shared`: the drop waits for its requests.
        drop(self.shared.take_device());
    }
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
