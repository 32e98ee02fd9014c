//! The epoll set of a thread that serves devices (completion events, doorbells, events of the thread's owner), and the rules for when
//! the thread waits and how long it polls before.
//!
//! Each owner writes the loop itself, because owners do different things between two steps: release a lock during the sleep, execute
//! messages, deliver interrupts. The steps are always these:
//!
//! ```text
//!     +-> the owner's commands; a new set if descriptors have changed
//!     |   Polling::goes_on, or before_sleep -> EventLoop::next
//!     |     Again: on_completions -----------------------------------------+
//!     |     Wait(wait)                                                     |
//!     |   EventLoop::wait: epoll_pwait2, the loop's own system call        |
//!     |   Polling::has_slept after a sleep                                 |
//!     |   Ready::completions -> on_completions                             |
//!     |   Ready::iter: on_doorbell, the owner's events                     |
//!     +--------------------------------------------------------------------+
//! ```
//!
//! - A device that always has work ([`Sleep::No`]) does not starve other events: in one turn of [`BUSY_TURNS`], `next` returns a wait with
//!   a timeout of 0.
//! - A deadline ([`Sleep::Until`]) is passed to the kernel in nanoseconds (`epoll_pwait2`, Linux 5.11), and is kept also if other events
//!   come all the time.
//! - Only changes of the set allocate. No lock is taken.
//!
//! Doorbells and the owner's channel are eventfds that are watched by [`Interest::Edge`]: each write is an edge, so they are never read.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::device::{Sleep, Stats};
use crate::time::Time;

/// While the device always has work, one turn in this many polls for events.
pub const BUSY_TURNS: u32 = 16;
/// Events taken from the kernel at once; more wait for the next turn.
const EVENTS: usize = 64;
/// Pause instructions between two polls of the device.
const PAUSES: u32 = 4;
/// User data of [`Event::Completions`] in the epoll set.
const COMPLETIONS: u64 = 0;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion event of a device: [`IoDevice::completion_events`](crate::IoDevice::completion_events).
    Completions,
    /// The doorbell of this index in [`PciDevice::doorbells`](crate::PciDevice::doorbells), or in the connections of a VMBus.
    Doorbell(u32),
    /// An event of the thread's owner, with a number that the owner has chosen.
    Own(u32),
}

impl Event {
    const fn data(self) -> EventData {
        let (kind, number) = match self {
            Self::Completions => return EventData::new_u64(COMPLETIONS),
            Self::Doorbell(index) => (1, index),
            Self::Own(number) => (2, number),
        };
        EventData::new_u64(kind << 32 | number as u64)
    }

    #[inline]
    fn of(event: &epoll::Event) -> Self {
        let data = event.data.u64();
        match data >> 32 {
            1 => Self::Doorbell(data as u32),
            2 => Self::Own(data as u32),
            _ => Self::Completions,
        }
    }
}

/// When a descriptor wakes the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interest {
    /// Once for each write to an eventfd. What was written before the descriptor entered the set counts once, too.
    Edge,
    /// While it is readable.
    Readable,
    /// While it is writable.
    Writable,
    /// When the other end has closed it.
    HangUp,
}

impl Interest {
    const fn flags(self) -> EventFlags {
        match self {
            Self::Edge => EventFlags::IN.union(EventFlags::ET),
            Self::Readable => EventFlags::IN,
            Self::Writable => EventFlags::OUT,
            // Reported without any flag.
            Self::HangUp => EventFlags::empty(),
        }
    }
}

/// The next step of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Call [`on_completions`](crate::IoDevice::on_completions) and begin again.
    Again,
    /// Wait for events.
    Wait(Wait),
}

/// How long to wait for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The longest wait; `None`: until an event. An owner with deadlines of its own may shorten it.
    pub timeout: Option<Duration>,
    /// The device's deadline: when it must be called even if there are no completion events.
    due: Option<Time>,
}

impl Wait {
    /// Whether the thread sleeps: it waits for some time.
    #[must_use]
    #[inline]
    pub fn sleeps(&self) -> bool {
        self.timeout != Some(Duration::ZERO)
    }
}

/// An epoll set, and the number of turns since it was last polled.
///
/// A descriptor that was closed cannot be removed, because its number may be another file's by now. So an owner whose descriptors have
/// changed makes a new set.
#[derive(Debug)]
pub struct EventLoop {
    epoll: OwnedFd,
    /// Completion events in the set.
    completions: Vec<RawFd>,
    /// Turns in a row without a wait.
    busy: u32,
}

impl EventLoop {
    /// With an empty set.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: new_epoll()?, completions: Vec::new(), busy: 0 })
    }

    /// Add a descriptor to the set.
    ///
    /// # Errors
    /// It is in the set already, or epoll does not support it.
    pub fn add(&self, fd: impl AsFd, event: Event, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, event.data(), interest.flags())?)
    }

    /// Remove a descriptor that is still open.
    ///
    /// # Errors
    /// It is not in the set.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Add the completion events of a device to a set that has none yet.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_completions(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        for fd in fds {
            self.add(fd, Event::Completions, Interest::Readable)?;
            self.completions.push(fd.as_raw_fd());
        }
        Ok(())
    }

    /// Whether the completion events in the set are still those of the device, which are `fds` now. False: the owner must make a new set.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn completions_are(&self, fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
        if !fds.iter().map(AsRawFd::as_raw_fd).eq(self.completions.iter().copied()) {
            return Ok(false);
        }
        for fd in fds {
            // The same number may be another file: then the old one left the set when it was closed.
            match epoll::add(&self.epoll, fd, Event::Completions.data(), EventFlags::IN) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// The step after [`before_sleep`](crate::IoDevice::before_sleep) has returned `sleep`.
    #[inline]
    pub fn next(&mut self, sleep: Sleep, now: Time) -> Next {
        let (timeout, due) = match sleep {
            Sleep::No => {
                self.busy += 1;
                if self.busy < BUSY_TURNS {
                    return Next::Again;
                }
                (Some(Duration::ZERO), None)
            }
            Sleep::Until(time) => (Some(time.since(now)), Some(time)),
            Sleep::Forever => (None, None),
        };
        self.busy = 0;
        Next::Wait(Wait { timeout, due })
    }

    /// Wait for events. A signal may end the wait early, without events; so does io_uring when it has work for this thread to complete a
    /// request.
    ///
    /// # Errors
    /// The host refuses.
    #[inline]
    pub fn wait(&self, wait: Wait, ready: &mut Ready) -> io::Result<()> {
        let timeout = wait.timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        ready.due = wait.due;
        ready.count = match epoll::wait(&self.epoll, ready.events.as_mut_slice(), timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        Ok(())
    }
}

/// How long a thread polls its device before it sleeps: up to a limit after the device's last work. Work that comes while the thread polls
/// needs no wake-up, and the guest does not notify the device of it, because [`before_sleep`](crate::IoDevice::before_sleep) is not called.
/// The interval adapts: after a wait for work that was longer than the limit, the thread does not poll.
#[derive(Debug)]
pub struct Polling {
    limit: Duration,
    /// The current polling interval, up to `limit`.
    interval: Duration,
    /// The device's requests and completions so far, when they were last looked at; and when the device last had work, as far as is known.
    work: (u64, u64),
    worked_at: Time,
}

impl Polling {
    /// Poll for up to `limit`; 0: do not poll.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit, interval: Duration::ZERO, work: (0, 0), worked_at: Time(0) }
    }

    /// Whether to poll on ([`Sleep::No`]) instead of [preparing a sleep](crate::IoDevice::before_sleep): the device, whose counters are
    /// `stats`, had work within the polling interval.
    #[inline]
    pub fn goes_on(&mut self, stats: impl FnOnce() -> Stats, now: Time) -> bool {
        if self.interval.is_zero() {
            return false;
        }
        let stats = stats();
        let work = (stats.requests, stats.completions);
        if work != self.work {
            (self.work, self.worked_at) = (work, now);
        }
        let goes_on = now.since(self.worked_at) < self.interval;
        if goes_on {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        goes_on
    }

    /// After a sleep, adapt the polling interval: longer if polling would have avoided the sleep, 0 if work came too late for that.
    #[inline]
    pub fn has_slept(&mut self, now: Time) {
        let limit = self.limit;
        let waited = now.since(self.worked_at);
        self.interval =
            if waited > limit { Duration::ZERO } else { (self.interval * 2).max(limit / 8).min(limit) };
        self.worked_at = now;
    }
}

/// The events that a wait has found, and the buffer for them. Made on the thread that waits: it is not `Send`.
pub struct Ready {
    events: [epoll::Event; EVENTS],
    count: usize,
    due: Option<Time>,
}

impl Default for Ready {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Ready {
    /// Without events.
    #[must_use]
    pub const fn new() -> Self {
        let empty = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Self { events: [empty; EVENTS], count: 0, due: None }
    }

    /// Whether to call [`on_completions`](crate::IoDevice::on_completions): a completion event is ready, the time is up, or the wait ended
    /// without events.
    #[must_use]
    #[inline]
    pub fn completions(&self, now: Time) -> bool {
        let events = self.events();
        events.is_empty()
            || events.iter().any(|event| event.data.u64() == COMPLETIONS)
            || self.due.is_some_and(|due| now >= due)
    }

    /// The events, in the order in which the kernel reports them.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.events().iter().map(Event::of)
    }

    #[inline]
    fn events(&self) -> &[epoll::Event] {
        self.events.get(..self.count).unwrap_or_default()
    }
}

fn new_epoll() -> io::Result<OwnedFd> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
    }

    fn signal(event: &OwnedFd) {
        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
    }

    const AT_ONCE: Wait = Wait { timeout: Some(Duration::ZERO), due: None };

    /// The events of a wait that does not sleep.
    fn ready(events: &EventLoop) -> Vec<Event> {
        let mut ready = Ready::new();
        events.wait(AT_ONCE, &mut ready).unwrap();
        ready.iter().collect()
    }

    /// Timeouts in milliseconds are rounded up: a poll that is due in 0.1 ms would hold requests up for 1 ms.
    #[test]
    fn a_wait_is_not_rounded_up_to_milliseconds() {
        let (events, mut ready) = (EventLoop::new().unwrap(), Ready::new());
        let timeout = Duration::from_micros(100);
        let wait = Wait { timeout: Some(timeout), due: None };
        let begin = std::time::Instant::now();
        loop {
            let start = std::time::Instant::now();
            events.wait(wait, &mut ready).unwrap();
            let took = start.elapsed();
            assert!(took >= timeout, "{took:?}");
            // On a busy host, many waits end late; none that is rounded up ends before.
            if took < Duration::from_micros(900) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no wait is shorter than {took:?}");
        }
    }

    #[test]
    fn a_device_that_never_sleeps_leaves_turns_to_other_events() {
        let mut events = EventLoop::new().unwrap();
        for _ in 0..3 {
            for _ in 1..BUSY_TURNS {
                assert_eq!(events.next(Sleep::No, Time(0)), Next::Again);
            }
            assert_eq!(events.next(Sleep::No, Time(0)), Next::Wait(AT_ONCE));
        }
        assert!(!AT_ONCE.sleeps());
    }

    #[test]
    fn a_sleep_ends_a_row_of_busy_turns() {
        let mut events = EventLoop::new().unwrap();
        assert_eq!(events.next(Sleep::No, Time(0)), Next::Again);
        assert_eq!(events.next(Sleep::Forever, Time(0)), Next::Wait(Wait { timeout: None, due: None }));
        for _ in 1..BUSY_TURNS {
            assert_eq!(events.next(Sleep::No, Time(0)), Next::Again);
        }
    }

    #[test]
    fn a_deadline_is_due_however_many_events_there_are() {
        let mut events = EventLoop::new().unwrap();
        let bell = event();
        events.add(&bell, Event::Doorbell(3), Interest::Edge).unwrap();
        let Next::Wait(wait) = events.next(Sleep::Until(Time(1_000)), Time(400)) else { panic!("a wait") };
        assert_eq!((wait.timeout, wait.sleeps()), (Some(Duration::from_nanos(600)), true));
        signal(&bell);
        let mut ready = Ready::new();
        events.wait(wait, &mut ready).unwrap();
        assert_eq!(ready.iter().collect::<Vec<_>>(), [Event::Doorbell(3)]);
        assert!(!ready.completions(Time(999)) && ready.completions(Time(1_000)));
        // The same without an event: the time is up, whatever the clock says.
        events.wait(wait, &mut ready).unwrap();
        assert!(ready.iter().next().is_none() && ready.completions(Time(999)));
        // A deadline that has passed already.
        let past = events.next(Sleep::Until(Time(1_000)), Time(2_000));
        assert!(matches!(past, Next::Wait(wait) if !wait.sleeps()), "{past:?}");
    }

    #[test]
    fn the_polling_interval_adapts() {
        let us = |us: u64| Time(1_000 * us);
        let mut polling = Polling::new(Duration::from_micros(80));
        let goes_on = |polling: &mut Polling, requests, time| {
            polling.goes_on(|| Stats { requests, ..Stats::default() }, us(time))
        };
        assert!(!goes_on(&mut polling, 0, 1), "before the first sleep");
        // An eighth of the limit at first. Work begins it anew.
        polling.has_slept(us(70));
        assert!(goes_on(&mut polling, 0, 79) && !goes_on(&mut polling, 0, 80));
        assert!(
            goes_on(&mut polling, 1, 85) && goes_on(&mut polling, 1, 94) && !goes_on(&mut polling, 1, 95)
        );
        // Doubled by each wait that is not longer than the limit, up to the limit.
        for (slept, interval) in [(165, 20), (200, 40), (280, 80), (360, 80)] {
            polling.has_slept(us(slept));
            assert!(goes_on(&mut polling, 1, slept + interval - 1), "{slept}");
            assert!(!goes_on(&mut polling, 1, slept + interval), "{slept}");
        }
        polling.has_slept(us(441));
        assert!(!goes_on(&mut polling, 2, 442), "after a longer wait");
    }

    #[test]
    fn a_wait_that_ends_without_events_may_have_completions() {
        assert!(Ready::new().completions(Time(0)));
    }

    #[test]
    fn each_kind_of_event_is_known_again() {
        let mut events = EventLoop::new().unwrap();
        let all = [event(), event(), event(), event()];
        events.add_completions(&[all[0].as_fd()]).unwrap();
        events.add(&all[1], Event::Doorbell(u32::MAX), Interest::Edge).unwrap();
        events.add(&all[2], Event::Own(7), Interest::Edge).unwrap();
        events.add(&all[3], Event::Own(u32::MAX), Interest::HangUp).unwrap();
        assert_eq!(ready(&events), []);
        all.iter().for_each(signal);
        assert_eq!(ready(&events), [Event::Completions, Event::Doorbell(u32::MAX), Event::Own(7)]);
        // The device reads its own events; a write to the others was one edge.
        assert_eq!(ready(&events), [Event::Completions]);
        signal(&all[2]);
        assert_eq!(ready(&events), [Event::Completions, Event::Own(7)]);
        events.remove(&all[2]).unwrap();
        signal(&all[2]);
        assert_eq!(ready(&events), [Event::Completions]);
    }

    #[test]
    fn a_number_that_is_another_file_is_watched_again() {
        let mut events = EventLoop::new().unwrap();
        let old = event();
        events.add_completions(&[old.as_fd()]).unwrap();
        assert!(events.completions_are(&[old.as_fd()]).unwrap());
        let new = event();
        assert!(!events.completions_are(&[new.as_fd()]).unwrap());
        assert!(!events.completions_are(&[old.as_fd(), new.as_fd()]).unwrap());
        // The old file is closed, and its number is that of a new one.
        let mut old = old;
        rustix::io::dup2(&new, &mut old).unwrap();
        signal(&new);
        assert_eq!(ready(&events), []);
        assert!(events.completions_are(&[old.as_fd()]).unwrap());
        assert_eq!(ready(&events), [Event::Completions]);
    }
}
