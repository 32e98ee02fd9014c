//! The thread of a queue. It sleeps on the client's kick, the disk's completions, and the jobs that session and server send.

use std::io;
use std::os::fd::OwnedFd;

use paradisk_devices::event_loop::{Event, EventLoop, Interest};
use paradisk_devices::virtio::blk::{Broken, Ring, RingSetup};
use paradisk_devices::worker::{Serve, Worker};
use paradisk_devices::{Coalescing, ModerationState, Sleep, Time};
use paradisk_disk_formats::ThreadKind;

use super::inflight::InflightRecord;
use super::memory::Memory;
use crate::notifier::Notifier;

const KICK: Event = Event::Doorbell(0);

/// What a queue has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueReport {
    /// Signals for completions.
    pub signals: u64,
    /// The moderation of these signals.
    pub moderation: ModerationState,
}

/// Start a thread for queue `index`. Dropping the worker waits for the requests in flight.
pub(super) fn start(index: u16, ring: Ring<Memory>) -> io::Result<Worker<Queue>> {
    let mut events = EventLoop::new()?;
    events.add_completions(&[ring.event()])?;
    let queue = Queue { ring, events, eventfds: None, inflight: None, signals: 0 };
    Worker::start(ThreadKind::VhostUserQueue, format!("queue-{index}"), queue)
}

/// The client's eventfds of a queue.
pub(super) struct Eventfds {
    /// Signalled by the client: there are requests. It is polled and never read.
    pub(super) kick: OwnedFd,
    /// Signalled by the server: requests have completed. Without one, the client polls.
    pub(super) call: Option<Notifier>,
    /// Signalled by the server: the queue is broken.
    pub(super) err: Option<Notifier>,
}

/// A queue on its thread.
pub(super) struct Queue {
    ring: Ring<Memory>,
    events: EventLoop,
    /// While the queue runs.
    eventfds: Option<Eventfds>,
    inflight: Option<InflightRecord>,
    /// Signals for completions so far.
    signals: u64,
}

impl Queue {
    /// Start the rings, with the requests that an earlier server left in flight.
    ///
    /// # Errors
    /// The rings are not valid, or the kick cannot be polled.
    pub(super) fn start(
        &mut self,
        mut setup: RingSetup,
        mut eventfds: Eventfds,
        mut inflight: Option<InflightRecord>,
    ) -> io::Result<()> {
        let broken = |Broken| io::Error::new(io::ErrorKind::InvalidInput, "rings that cannot be used");
        self.ring.start(&setup).map_err(broken)?;
        if let Some(left) = inflight.as_mut().and_then(|inflight| inflight.open(self.ring.used_index())) {
            setup.next_avail = left.next_avail;
            self.ring.start(&setup).map_err(broken)?;
            self.ring.resume(&left.heads).map_err(broken)?;
        }
        self.events.add(&eventfds.kick, KICK, Interest::Edge).inspect_err(|_| self.ring.abandon())?;
        // An earlier server may have been killed between a completion and its signal.
        signal(eventfds.call.as_mut());
        self.eventfds = Some(eventfds);
        self.inflight = inflight;
        Ok(())
    }

    /// Wait for the requests in flight, post their completions, and stop the rings. Returns the index of the next chain, if the rings ran.
    pub(super) fn stop(&mut self) -> Option<u16> {
        let stopped = match &mut self.inflight {
            Some(inflight) => self.ring.stop(inflight),
            None => self.ring.stop(&mut ()),
        };
        if let Some(mut eventfds) = self.eventfds.take() {
            // The client keeps the kick open, so closing it here does not remove it from the epoll set.
            let _ = self.events.remove(&eventfds.kick);
            if stopped.is_some_and(|(_, wanted)| wanted) {
                self.signals += u64::from(signal(eventfds.call.as_mut()));
            }
        }
        self.inflight = None;
        stopped.map(|(next, _)| next)
    }

    /// What the queue has done so far.
    pub(super) const fn report(&self) -> QueueReport {
        QueueReport { signals: self.signals, moderation: self.ring.moderation() }
    }

    /// Replace the eventfd for completions, and signal it: the client may have missed a signal of the old one.
    pub(super) fn set_call(&mut self, call: Option<Notifier>) {
        if let Some(eventfds) = &mut self.eventfds {
            eventfds.call = call;
            signal(eventfds.call.as_mut());
        }
    }

    /// Replace the eventfd for a broken queue.
    pub(super) fn set_err(&mut self, err: Option<Notifier>) {
        if let Some(eventfds) = &mut self.eventfds {
            eventfds.err = err;
        }
    }

    /// Replace the memory, while the rings are stopped.
    pub(super) fn set_memory(&mut self, memory: Memory) {
        self.ring.set_memory(memory);
    }

    /// Set the capacity of the disk in bytes.
    pub(super) const fn set_capacity(&mut self, bytes: u64) {
        self.ring.set_capacity(bytes);
    }

    /// Change the interrupt moderation. After every job the thread calls [`serve`](Self::serve), which sends a signal that was held back.
    pub(super) fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.ring.set_coalescing(coalescing);
    }

    /// Whether writes must be on stable storage before they are completed.
    pub(super) const fn set_write_through(&mut self, write_through: bool) {
        self.ring.set_write_through(write_through);
    }

    /// The guest's rings cannot be processed. Completions that were posted before are signalled too.
    fn broken(&mut self) {
        signal(self.eventfds.as_mut().and_then(|eventfds| eventfds.call.as_mut()));
        signal(self.eventfds.as_mut().and_then(|eventfds| eventfds.err.as_mut()));
    }
}

impl Serve for Queue {
    fn events(&mut self) -> &mut EventLoop {
        &mut self.events
    }

    fn before_sleep(&mut self, now: Time) -> Sleep {
        let sleep = match &mut self.inflight {
            Some(inflight) => self.ring.before_sleep(now, inflight),
            None => self.ring.before_sleep(now, &mut ()),
        };
        sleep.unwrap_or_else(|Broken| {
            self.broken();
            Sleep::Forever
        })
    }

    /// The one doorbell is the kick, and `serve` polls the ring.
    fn on_doorbell(&mut self, _index: u32) {}

    fn serve(&mut self, now: Time) {
        let (eventfds, signals) = (&mut self.eventfds, &mut self.signals);
        let call = || {
            *signals += u64::from(signal(eventfds.as_mut().and_then(|eventfds| eventfds.call.as_mut())));
        };
        let served = match &mut self.inflight {
            Some(inflight) => self.ring.service(now, inflight, call),
            None => self.ring.service(now, &mut (), call),
        };
        if served == Err(Broken) {
            self.broken();
        }
    }

    fn end(&mut self) {
        self.stop();
    }
}

/// Signal an eventfd of the client. False: there is none.
#[inline]
fn signal(event: Option<&mut Notifier>) -> bool {
    event.is_some_and(|event| {
        event.signal();
        true
    })
}
