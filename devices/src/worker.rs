//! A thread that owns a value, and runs jobs on it that other threads send.
//!
//! The thread sleeps in its own [`EventLoop`](crate::event_loop::EventLoop). The set of that loop has the worker's eventfd
//! ([`Worker::event`]), which wakes the thread for the jobs in its [`Inbox`].
//!
//! ```text
//! other threads: Worker::tell, Worker::ask -> channel, eventfd -> the thread: EventLoop::wait -> Inbox::take -> job(&mut value)
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;

use paradisk_disk_formats::{ThreadKind, spawn};
use rustix::event::{EventfdFlags, eventfd};

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The handle of a thread that owns a `T`. Dropping the handle ends the thread, and waits until it has ended.
#[derive(Debug)]
pub struct Worker<T> {
    jobs: Option<Sender<Job<T>>>,
    event: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// The jobs that were sent to a thread and not run yet.
#[derive(Debug)]
pub struct Inbox<T>(Receiver<Job<T>>);

/// The thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

impl<T: 'static> Worker<T> {
    /// A worker whose thread is [started](Self::start) later.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new() -> io::Result<(Self, Inbox<T>)> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (jobs, inbox) = mpsc::channel();
        Ok((Self { jobs: Some(jobs), event, thread: None }, Inbox(inbox)))
    }

    /// An eventfd. It is written for each job, when the worker is dropped, and by [`wake`](Self::wake). The thread waits for edges
    /// ([`Interest::Edge`](crate::event_loop::Interest::Edge)), so the eventfd is never read.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Start the thread. `run` must return when [`Inbox::take`] has returned false.
    ///
    /// # Errors
    /// The host refuses the thread.
    pub fn start(
        &mut self,
        kind: ThreadKind,
        name: impl Into<String>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.thread = Some(spawn(kind, name, run)?);
        Ok(())
    }

    /// Send a job to the thread. Does not wait. Jobs run in the order in which they were sent.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn tell(&self, job: impl FnOnce(&mut T) + Send + 'static) -> Result<(), Gone> {
        self.jobs.as_ref().ok_or(Gone)?.send(Box::new(job)).map_err(|_| Gone)?;
        self.wake();
        Ok(())
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
        // Fails only after 2^64 writes, because the counter is never read.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.jobs = None;
        self.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl<T> Inbox<T> {
    /// Run the jobs that were sent. False: the worker was dropped, and the thread must end.
    pub fn take(&self, value: &mut T) -> bool {
        loop {
            match self.0.try_recv() {
                Ok(job) => job(value),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}
