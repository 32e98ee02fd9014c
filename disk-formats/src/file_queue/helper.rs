//! The helper threads: what may block (allocation, discard, zeroing, flushes) is done there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::Signal;
use crate::map_now::map_in_parts;
use crate::{Extents, Flush, Format, IoError};

/// What a transfer waits after EAGAIN.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// What a helper does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    PrepareRead,
    PrepareWrite,
    /// Map the range, for reading or for writing: what was prepared was forgotten again.
    Map {
        writes: bool,
    },
    Flush,
    Discard,
    WriteZeroes {
        may_unmap: bool,
    },
    /// Wait: this piece of the request is handed to the engine again afterwards.
    Pause {
        piece: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) slot: u32,
    pub(super) task: Task,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A job that has ended; of [`Task::Map`] with the places.
pub(super) type Done = (Job, Result<Option<Extents>, IoError>);

/// One thread, ended when this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    jobs: Option<Sender<Job>>,
    results: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    outstanding: usize,
}

impl Helper {
    pub(super) fn start(format: Arc<dyn Format>, signal: Arc<Signal>) -> std::io::Result<Self> {
        let (jobs, incoming) = channel::<Job>();
        let (outgoing, results) = channel();
        let run = move || {
            let mut batch = Vec::new();
            while let Ok(job) = incoming.recv() {
                batch.push(job);
                if let Task::Flush = job.task {
                    // It covers every flush that was requested before it begins. The thread that flushes gets no other jobs.
                    batch.extend(incoming.try_iter());
                }
                // A format that panics must not leave its request, and all that wait for it, without an end.
                let mut extents = None;
                let result = catch_unwind(AssertUnwindSafe(|| perform(&*format, job, &mut extents)))
                    .unwrap_or(Err(IoError::Damaged("the format panicked")));
                let mut done = |job| (job, result.map(|()| extents.take()));
                if batch.drain(..).any(|job| outgoing.send(done(job)).is_err()) {
                    return;
                }
                signal.raise();
            }
        };
        let thread = std::thread::Builder::new().name("disk-helper".into()).spawn(run)?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread), outstanding: 0 })
    }

    /// Whether the job was taken (the thread has not died).
    pub(super) fn send(&mut self, job: Job) -> bool {
        let taken = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        self.outstanding += usize::from(taken);
        taken
    }

    /// A job that has ended.
    pub(super) fn next(&mut self) -> Option<Done> {
        let ended = self.results.try_recv().ok()?;
        self.outstanding -= 1;
        Some(ended)
    }

    /// Jobs whose end has not been handed out.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }
}

fn perform(format: &dyn Format, job: Job, extents: &mut Option<Extents>) -> Result<(), IoError> {
    match job.task {
        Task::Map { writes } => {
            let extents = extents.insert(Extents::new());
            map_in_parts(format, writes, job.offset, job.len, extents)
        }
        Task::PrepareRead => format.prepare_read(job.offset, job.len),
        Task::PrepareWrite => format.prepare_write(job.offset, job.len),
        Task::Flush => match format.flush_kind() {
            Flush::Format => format.flush(),
            Flush::SyncFiles => {
                format.files().iter().filter(|file| file.writable()).try_for_each(|file| file.sync())
            }
        },
        Task::Discard => format.discard(job.offset, job.len),
        Task::WriteZeroes { may_unmap } => format.write_zeroes(job.offset, job.len, may_unmap),
        Task::Pause { .. } => {
            std::thread::sleep(PAUSE);
            Ok(())
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
