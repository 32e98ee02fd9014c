//! The hand-over of jobs to the thread of a [`Worker`](super::Worker): a channel, and what wakes the thread.

use std::fmt;

use super::sync::mpsc::{self, Receiver, Sender, TryRecvError};

/// Wakes the thread from its sleep, or from the next one if it is awake. Several calls may wake it once.
pub(super) trait Wake {
    fn wake(&self);
}

pub(super) fn channel<J, W: Wake>(wake: W) -> (Outbox<J, W>, Inbox<J>) {
    let (jobs, inbox) = mpsc::channel();
    (Outbox { jobs: Some(jobs), wake }, Inbox(inbox))
}

pub(super) struct Outbox<J, W> {
    jobs: Option<Sender<J>>,
    wake: W,
}

impl<J, W: fmt::Debug> fmt::Debug for Outbox<J, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("wake", &self.wake).finish_non_exhaustive()
    }
}

impl<J, W: Wake> Outbox<J, W> {
    /// Send a job, and wake the thread. The job is given back if the thread has ended.
    pub(super) fn send(&self, job: J) -> Result<(), J> {
        let Some(jobs) = &self.jobs else { return Err(job) };
        jobs.send(job).map_err(|unsent| unsent.0)?;
        self.wake.wake();
        Ok(())
    }

    pub(super) fn wake(&self) {
        self.wake.wake();
    }

    /// End the thread after the jobs that were sent.
    pub(super) fn close(&mut self) {
        self.jobs = None;
        self.wake.wake();
    }
}

pub(super) struct Inbox<J>(Receiver<J>);

impl<J> Inbox<J> {
    /// Call this after each wake-up: run all jobs that were sent. False: the other end was closed.
    pub(super) fn run(&self, mut run: impl FnMut(J)) -> bool {
        loop {
            match self.0.try_recv() {
                Ok(job) => run(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}
