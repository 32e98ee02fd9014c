//! The thread of a queue: it sleeps on the client's kick, on the disk and on what the session asks for.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use devices::Time;
use devices::virtio::blk::{Broken, Ring, RingRest, RingSetup};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::inflight::InflightQueue;
use super::memory::Memory;
use crate::notifier::Notifier;

const WAKE: u64 = 0;
const DISK: u64 = 1;
const KICK: u64 = 2;

/// Rounds without a sleep before the session is listened to.
const BUSY_ROUNDS: u32 = 16;

/// Something to be done on the thread.
type Job = Box<dyn FnOnce(&mut Queue) + Send>;

/// A thread with its queue. Dropping it waits for what is in flight.
pub(super) struct Worker {
    jobs: Option<Sender<Job>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Worker {
    /// A thread for queue `index`.
    pub(super) fn start(index: u16, ring: Ring<Memory>) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Each write to an eventfd is an edge, so it needs no read.
        epoll::add(&events, &*wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&events, ring.event(), EventData::new_u64(DISK), EventFlags::IN)?;
        let queue = Queue { ring, events, line: None, inflight: None, origin: Instant::now() };
        let (jobs, inbox) = mpsc::channel();
        let thread =
            thread::Builder::new().name(format!("queue-{index}")).spawn(move || queue.run(&inbox))?;
        Ok(Self { jobs: Some(jobs), wake, thread: Some(thread) })
    }

    /// Have the thread do something, and wait for its answer.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Queue) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let (answer, answered) = mpsc::sync_channel(1);
        let job = move |queue: &mut Queue| {
            let _ = answer.send(job(queue));
        };
        self.jobs.as_ref().ok_or(Gone)?.send(Box::new(job)).map_err(|_| Gone)?;
        self.wake();
        answered.recv().map_err(|_| Gone)
    }

    fn wake(&self) {
        // Fails only after 2^64 writes.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        self.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The client's eventfds of a queue.
pub(super) struct Line {
    /// Signalled by the client: requests wait. It is polled and never read.
    pub(super) kick: OwnedFd,
    /// Signalled by us: requests have ended. Without one, the client polls.
    pub(super) call: Option<Notifier>,
    /// Signalled by us: the queue is broken.
    pub(super) err: Option<Notifier>,
}

/// A queue on its thread.
pub(super) struct Queue {
    ring: Ring<Memory>,
    events: OwnedFd,
    /// While the queue runs.
    line: Option<Line>,
    inflight: Option<InflightQueue>,
    /// What its times count from.
    origin: Instant,
}

impl Queue {
    /// Take rings into use, with what an earlier server has left.
    ///
    /// # Errors
    /// The rings cannot be used, or the kick cannot be slept on.
    pub(super) fn start(
        &mut self,
        mut setup: RingSetup,
        mut line: Line,
        mut inflight: Option<InflightQueue>,
    ) -> io::Result<()> {
        let broken = |Broken| io::Error::new(io::ErrorKind::InvalidInput, "rings that cannot be used");
        self.ring.start(&setup).map_err(broken)?;
        if let Some(left) = inflight.as_mut().and_then(|inflight| inflight.open(self.ring.used_index())) {
            setup.next_avail = left.next_avail;
            self.ring.start(&setup).map_err(broken)?;
            self.ring.resume(&left.heads).map_err(broken)?;
        }
        epoll::add(&self.events, &line.kick, EventData::new_u64(KICK), EventFlags::IN | EventFlags::ET)
            .inspect_err(|_| self.ring.abandon())?;
        // Whoever signalled last may not have come so far.
        signal(line.call.as_mut());
        self.line = Some(line);
        self.inflight = inflight;
        Ok(())
    }

    /// Wait for what is in flight, show it, and take the rings out of use. The index of the next chain, if any were.
    pub(super) fn stop(&mut self) -> Option<u16> {
        let stopped = match &mut self.inflight {
            Some(inflight) => self.ring.stop(inflight),
            None => self.ring.stop(&mut ()),
        };
        if let Some(mut line) = self.line.take() {
            // The client has the kick open, too, so closing it here does not do that.
            let _ = epoll::delete(&self.events, &line.kick);
            if stopped.is_some_and(|(_, wanted)| wanted) {
                signal(line.call.as_mut());
            }
        }
        self.inflight = None;
        stopped.map(|(next, _)| next)
    }

    /// Change where the client hears of completions. It hears at once, as it may have missed something.
    pub(super) fn set_call(&mut self, call: Option<Notifier>) {
        if let Some(line) = &mut self.line {
            line.call = call;
            signal(line.call.as_mut());
        }
    }

    /// Change where the client hears that the queue is broken.
    pub(super) fn set_err(&mut self, err: Option<Notifier>) {
        if let Some(line) = &mut self.line {
            line.err = err;
        }
    }

    /// Take other memory, with no rings in use.
    pub(super) fn set_memory(&mut self, memory: Memory) {
        self.ring.set_memory(memory);
    }

    /// The disk has so many bytes from now on.
    pub(super) const fn set_capacity(&mut self, bytes: u64) {
        self.ring.set_capacity(bytes);
    }

    /// Whether writes must be durable before they are completed.
    pub(super) const fn set_write_through(&mut self, write_through: bool) {
        self.ring.set_write_through(write_through);
    }

    fn run(mut self, inbox: &Receiver<Job>) {
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [empty; 3];
        let mut busy = 0u32;
        loop {
            let rest = self.rest();
            if rest == RingRest::No {
                self.serve();
                busy = busy.wrapping_add(1);
                if !busy.is_multiple_of(BUSY_ROUNDS) {
                    continue;
                }
            }
            let timeout = match rest {
                RingRest::No => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
                RingRest::For(time) => {
                    Some(Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() })
                }
                RingRest::Forever => None,
            };
            let count = match epoll::wait(&self.events, &mut events[..], timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                // None that could be: the descriptor is ours.
                Err(_) => return,
            };
            let events = events.get(..count).unwrap_or_default();
            if events.iter().any(|event| event.data.u64() == WAKE) && !self.take_jobs(inbox) {
                self.stop();
                return;
            }
            self.serve();
        }
    }

    /// Do what is asked for. False: nobody will ask any more.
    fn take_jobs(&mut self, inbox: &Receiver<Job>) -> bool {
        loop {
            match inbox.try_recv() {
                Ok(job) => job(self),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn now(&self) -> Time {
        Time::default().after(self.origin.elapsed())
    }

    fn rest(&mut self) -> RingRest {
        let now = self.now();
        let rest = match &mut self.inflight {
            Some(inflight) => self.ring.rest(now, inflight),
            None => self.ring.rest(now, &mut ()),
        };
        rest.unwrap_or_else(|Broken| {
            self.broken();
            RingRest::Forever
        })
    }

    fn serve(&mut self) {
        let now = self.now();
        let line = &mut self.line;
        let call = || signal(line.as_mut().and_then(|line| line.call.as_mut()));
        let served = match &mut self.inflight {
            Some(inflight) => self.ring.service(now, inflight, call),
            None => self.ring.service(now, &mut (), call),
        };
        if served == Err(Broken) {
            self.broken();
        }
    }

    /// The guest's rings cannot be processed. What ended before is shown: the guest may look.
    fn broken(&mut self) {
        signal(self.line.as_mut().and_then(|line| line.call.as_mut()));
        signal(self.line.as_mut().and_then(|line| line.err.as_mut()));
    }
}

/// Signal an eventfd of the client, if there is one.
#[inline]
fn signal(event: Option<&mut Notifier>) {
    if let Some(event) = event {
        event.signal();
    }
}
