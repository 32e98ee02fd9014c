//! A thread that owns a value: it serves the value's events, and runs jobs on it that other threads send.
//!
//! ```text
//! other threads: Worker::ask -> channel, eventfd
//!                                          |
//!     +-> Serve::before_sleep -> EventLoop::next, wait -> the jobs: job(&mut value)
//!     |   Serve::on_doorbell for each doorbell
//!     +-- Serve::has_slept, Serve::serve
//! ```
//!
//! The thread returns from the loop when its [`Worker`] is dropped, and drops the value.

mod jobs;

use std::io;
use std::os::fd::OwnedFd;
// `jobs` takes its primitives from here; its model takes those of a checker.
use std::sync::{self, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use paradisk_disk_formats::{ThreadKind, spawn};
use rustix::event::{EventfdFlags, eventfd};

use crate::device::Sleep;
use crate::event_loop::{Event, EventLoop, Interest, Next, Ready};
use crate::time::Time;

use jobs::{Inbox, Outbox, Wake};

/// There is a job, the worker was dropped, or another thread has called [`Worker::wake`].
const WAKE: Event = Event::Own(0);

/// What the thread of a [`Worker`] serves.
pub trait Serve {
    /// The set that the thread waits for: doorbells and completion events. [`Event::Own`] is the worker's.
    fn events(&mut self) -> &mut EventLoop;

    /// How long the thread may sleep. Times are counted from the start of the thread.
    fn before_sleep(&mut self, now: Time) -> Sleep;

    /// A doorbell of the set has rung. [`serve`](Self::serve) follows.
    fn on_doorbell(&mut self, index: u32);

    /// The thread has slept. [`serve`](Self::serve) follows.
    fn has_slept(&mut self, _now: Time) {}

    /// The thread has woken, or was not to sleep: whatever the event was, poll all rings and reap all completions.
    fn serve(&mut self, now: Time);
}

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The handle of a thread that owns a `T`. Dropping the handle ends the thread, and waits until it has ended.
#[derive(Debug)]
pub struct Worker<T> {
    jobs: Outbox<Job<T>, Eventfd>,
    thread: Option<JoinHandle<()>>,
}

/// Written for each job, for the end, and by [`Worker::wake`]. The thread waits for edges, so it is never read.
#[derive(Debug)]
struct Eventfd(OwnedFd);

impl Wake for Eventfd {
    fn wake(&self) {
        // Fails only after 2^64 writes, because the counter is never read.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl<T: Serve + Send + 'static> Worker<T> {
    /// Start a thread that owns `value`.
    ///
    /// # Errors
    /// The host has no descriptors left, or refuses the thread.
    pub fn start(kind: ThreadKind, name: impl Into<String>, mut value: T) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        value.events().add(&event, WAKE, Interest::Edge)?;
        let (jobs, inbox) = jobs::channel(Eventfd(event));
        let thread = spawn(kind, name, move || run(&mut value, &inbox))?;
        Ok(Self { jobs, thread: Some(thread) })
    }
}

impl<T: 'static> Worker<T> {
    /// Send a job to the thread. Does not wait. Jobs run in the order in which they were sent.
    ///
    /// # Errors
    /// The thread has ended.
    fn tell(&self, job: impl FnOnce(&mut T) + Send + 'static) -> Result<(), Gone> {
        self.jobs.send(Box::new(job)).map_err(|_| Gone)
    }

    /// Send a job to the thread, and wait for its result.
    ///
    /// # Errors
    /// The thread has ended, or ends before it has run the job.
    pub fn ask<R: Send + 'static>(&self, job: impl FnOnce(&mut T) -> R + Send + 'static) -> Result<R, Gone> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.tell(move |value| {
            let _ = answer.send(job(value));
        })?;
        answered.recv().map_err(|_| Gone)
    }
}

impl<T> Worker<T> {
    /// Wake the thread without sending a job.
    pub fn wake(&self) {
        self.jobs.wake();
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.jobs.close();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The thread.
fn run<T: Serve>(value: &mut T, inbox: &Inbox<Job<T>>) {
    let origin = Instant::now();
    let now = || Time::default().after(origin.elapsed());
    let mut ready = Ready::new();
    loop {
        let time = now();
        let sleep = value.before_sleep(time);
        let mut slept = false;
        if let Next::Wait(wait) = value.events().next(sleep, time) {
            slept = wait.sleeps();
            // No error is possible: the descriptor is valid.
            if value.events().wait(wait, &mut ready).is_err() {
                return;
            }
            for event in ready.iter() {
                match event {
                    WAKE if !inbox.run(|job| job(value)) => return,
                    Event::Doorbell(index) => value.on_doorbell(index),
                    _ => {}
                }
            }
        }
        let time = now();
        if slept {
            value.has_slept(time);
        }
        value.serve(time);
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts doorbells, and tells of its end.
    struct Counting {
        events: EventLoop,
        doorbells: u32,
        served: u32,
        ended: mpsc::Sender<u32>,
    }

    impl Serve for Counting {
        fn events(&mut self) -> &mut EventLoop {
            &mut self.events
        }

        fn before_sleep(&mut self, _now: Time) -> Sleep {
            Sleep::Forever
        }

        fn on_doorbell(&mut self, index: u32) {
            self.doorbells += index;
        }

        fn serve(&mut self, _now: Time) {
            self.served = self.doorbells;
        }
    }

    impl Drop for Counting {
        fn drop(&mut self) {
            let _ = self.ended.send(self.doorbells);
        }
    }

    #[test]
    fn events_are_served_and_jobs_run_in_order_until_the_worker_is_dropped() {
        let (ended, end) = mpsc::channel();
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let events = EventLoop::new().unwrap();
        events.add(&doorbell, Event::Doorbell(7), Interest::Edge).unwrap();
        let value = Counting { events, doorbells: 0, served: 0, ended };
        let worker = Worker::start(ThreadKind::AdapterQueue, "test", value).unwrap();
        rustix::io::write(&doorbell, &1u64.to_ne_bytes()).unwrap();
        // A job may run between the doorbell and the thread's wake-up for it.
        while worker.ask(|value| value.served).unwrap() != 7 {
            std::thread::yield_now();
        }
        worker.tell(|value| value.doorbells *= 2).unwrap();
        worker.tell(|value| value.doorbells += 1).unwrap();
        assert_eq!(worker.ask(|value| value.doorbells), Ok(15));
        assert!(end.try_recv().is_err());
        drop(worker);
        assert_eq!(end.try_recv(), Ok(15), "the value is dropped before the worker is");
    }

    #[test]
    fn a_worker_whose_thread_has_panicked_is_gone() {
        let (ended, _end) = mpsc::channel();
        let value = Counting { events: EventLoop::new().unwrap(), doorbells: 0, served: 0, ended };
        let worker = Worker::start(ThreadKind::AdapterQueue, "test", value).unwrap();
        assert_eq!(worker.ask::<()>(|_| panic!("in a job")), Err(Gone));
    }
}
