//! The thread of a queue. It sleeps on the client's kick, the disk's completions, and the jobs that session and server send.

use std::io;
use std::os::fd::OwnedFd;

use paradisk_devices::ModerationState;
use paradisk_devices::event_loop::{Event, Interest};
use paradisk_devices::virtio::blk::{Broken, Front, RingSetup, RingThread};

use super::inflight::InflightRecord;
use super::memory::Memory;
use crate::notifier::Notifier;

const KICK: Event = Event::Doorbell(0);

/// The only queue of its thread.
const QUEUE: usize = 0;

/// What a queue has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueReport {
    /// Signals for completions.
    pub signals: u64,
    /// The moderation of these signals.
    pub moderation: ModerationState,
}

/// A queue on its thread.
pub(super) type Queue = RingThread<Memory, Client>;

/// The client's eventfds of a queue.
pub(super) struct Eventfds {
    /// Signalled by the client: there are requests. It is polled and never read.
    pub(super) kick: OwnedFd,
    /// Signalled by the server: requests have completed. Without one, the client polls.
    pub(super) call: Option<Notifier>,
    /// Signalled by the server: the queue is broken.
    pub(super) err: Option<Notifier>,
}

/// The client of a queue.
#[derive(Default)]
pub(super) struct Client {
    /// While the queue runs.
    eventfds: Option<Eventfds>,
    inflight: Option<InflightRecord>,
    /// Signals for completions so far.
    signals: u64,
}

impl Client {
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
}

impl Front for Client {
    const TRACKS: bool = true;

    fn signal(&mut self, _queue: usize) {
        self.signals += u64::from(signal(self.eventfds.as_mut().and_then(|eventfds| eventfds.call.as_mut())));
    }

    /// Completions that were posted before are signalled too.
    fn broken(&mut self, queue: usize) {
        self.signal(queue);
        signal(self.eventfds.as_mut().and_then(|eventfds| eventfds.err.as_mut()));
    }

    #[inline]
    fn taken(&mut self, head: u16) {
        if let Some(inflight) = &mut self.inflight {
            inflight.taken(head);
        }
    }

    #[inline]
    fn posting(&mut self, head: u16) {
        if let Some(inflight) = &mut self.inflight {
            inflight.posting(head);
        }
    }

    #[inline]
    fn posted(&mut self, head: u16, used: u16) {
        if let Some(inflight) = &mut self.inflight {
            inflight.posted(head, used);
        }
    }
}

/// Start the rings, with the requests that an earlier server left in flight.
///
/// # Errors
/// The rings are not valid, or the kick cannot be polled.
pub(super) fn start(
    queue: &mut Queue,
    mut setup: RingSetup,
    mut eventfds: Eventfds,
    mut inflight: Option<InflightRecord>,
) -> io::Result<()> {
    let broken = |Broken| io::Error::new(io::ErrorKind::InvalidInput, "rings that cannot be used");
    let Queue { rings, events, .. } = queue;
    rings.start(QUEUE, &setup).map_err(broken)?;
    if let Some(left) = inflight.as_mut().and_then(|inflight| inflight.open(rings.used_index(QUEUE))) {
        setup.next_avail = Some(left.next_avail);
        rings.start(QUEUE, &setup).map_err(broken)?;
        rings.resume(QUEUE, &left.heads).map_err(broken)?;
    }
    events.add(&eventfds.kick, KICK, Interest::Edge).inspect_err(|_| rings.abandon(QUEUE))?;
    // An earlier server may have been killed between a completion and its signal.
    signal(eventfds.call.as_mut());
    let client = rings.front();
    (client.eventfds, client.inflight) = (Some(eventfds), inflight);
    Ok(())
}

/// Wait for the requests in flight, post their completions, and stop the rings. Returns the index of the next chain, if the rings ran.
pub(super) fn stop(queue: &mut Queue) -> Option<u16> {
    let next = queue.rings.stop(QUEUE);
    let client = queue.rings.front();
    client.inflight = None;
    if let Some(eventfds) = client.eventfds.take() {
        // The client keeps the kick open, so closing it here does not remove it from the epoll set.
        let _ = queue.events.remove(&eventfds.kick);
    }
    next
}

/// What the queue has done so far.
pub(super) fn report(queue: &mut Queue) -> Option<QueueReport> {
    let moderation = *queue.rings.moderation().first()?;
    Some(QueueReport { signals: queue.rings.front().signals, moderation })
}

/// Signal an eventfd of the client. False: there is none.
#[inline]
fn signal(event: Option<&mut Notifier>) -> bool {
    event.is_some_and(|event| {
        event.signal();
        true
    })
}
