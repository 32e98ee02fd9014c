//! The helper threads: they do the work that may block (mapping, allocation, discard, zeroing, flushes, pauses before a retry).
//!
//! Every accepted job ends. If the format panics, the job ends with an error. If the thread itself unwinds (for example
//! because the panic's payload panics when it is dropped), it wakes the queue: the accepted jobs then end with an
//! error, and the helper accepts no more.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::part::PartialWork;
use super::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use super::thread::JoinHandle;
use super::{Signal, threads};
use crate::contract::error::IoError;
use crate::host::threads::ThreadKind;
use crate::map::extent::Extents;
use crate::map::format::{Flush, Format, map_now};

/// Delay before a transfer is repeated after EAGAIN.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// What a helper does for a job.
#[derive(Clone, Debug)]
pub(super) enum JobKind {
    /// Map the range, for reading or for writing.
    Map {
        writes: bool,
    },
    Flush,
    Discard,
    WriteZeroes {
        may_unmap: bool,
    },
    /// Transfer a request that does not fill the units of direct I/O.
    Partial(Arc<PartialWork>),
    /// Sleep for [`PAUSE`]. Then the queue starts this piece of the request again.
    Pause {
        piece: u32,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) slot: u32,
    pub(super) kind: JobKind,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A job that has ended. The result of [`JobKind::Map`] has the extents; that of other jobs none.
pub(super) type Done = (Job, Result<Extents, IoError>);

/// One helper thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Helper {
    jobs: Option<Sender<Job>>,
    results: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// Jobs whose end `next` has not returned, in order: the thread processes them in this order.
    outstanding: VecDeque<Job>,
}

/// The helper threads of a queue. Each is started by its first job.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    helper: Option<Helper>,
    /// Executes the flushes, so that other jobs do not wait for them, and the pauses: a [`Partial`](JobKind::Partial) job on the
    /// helper may wait for the write that is repeated after a pause.
    flusher: Option<Helper>,
}

impl Helpers {
    /// Send a job to the helper or the flusher. The end of the job raises `signal`.
    ///
    /// # Errors
    /// The host's, if it refuses a thread; ECANCELED if the thread has died.
    pub(super) fn send(
        &mut self,
        job: Job,
        format: &Arc<dyn Format>,
        signal: &Arc<Signal>,
    ) -> Result<(), Errno> {
        let (helper, name) = match job.kind {
            JobKind::Flush | JobKind::Pause { .. } => (&mut self.flusher, "disk-flusher"),
            _ => (&mut self.helper, "disk-helper"),
        };
        let helper = match helper {
            Some(helper) => helper,
            none => {
                let helper = Helper::start(name, Arc::clone(format), Arc::clone(signal))
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
                none.insert(helper)
            }
        };
        if helper.send(job) { Ok(()) } else { Err(Errno::CANCELED) }
    }

    /// Whether there are jobs whose end `next` has not returned.
    #[inline]
    pub(super) fn busy(&self) -> bool {
        [&self.helper, &self.flusher].into_iter().flatten().any(|helper| helper.outstanding() > 0)
    }

    /// A job that has ended.
    pub(super) fn next(&mut self) -> Option<Done> {
        [&mut self.helper, &mut self.flusher].into_iter().flatten().find_map(Helper::next)
    }
}

/// Raises the signal when the thread ends, even by a panic.
struct WakeAtEnd(Arc<Signal>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl Helper {
    pub(super) fn start(
        name: &'static str,
        format: Arc<dyn Format>,
        signal: Arc<Signal>,
    ) -> std::io::Result<Self> {
        let (jobs, incoming) = channel::<Job>();
        let (outgoing, results) = channel();
        let run = move || {
            let signal = WakeAtEnd(signal);
            // Dropped in reverse order, before the signal is raised: when the queue wakes, no more jobs are accepted,
            // and all accepted jobs have ended.
            let outgoing = outgoing;
            let incoming = incoming;
            let mut batch = Vec::new();
            let mut next = None;
            while let Some(job) = next.take().or_else(|| incoming.recv().ok()) {
                batch.push(job.clone());
                if let JobKind::Flush = job.kind {
                    // One flush covers the flush requests that were sent before it begins.
                    batch.extend(std::iter::from_fn(|| {
                        next = incoming.try_recv().ok();
                        next.take_if(|next| matches!(next.kind, JobKind::Flush))
                    }));
                }
                // If the format panics, the jobs of this batch must still end.
                let mut result = catch_unwind(AssertUnwindSafe(|| perform(&*format, &job)))
                    .unwrap_or(Err(IoError::Damaged("the format panicked")));
                let mut done = |job| (job, result.as_mut().map(std::mem::take).map_err(|error| *error));
                if batch.drain(..).any(|job| outgoing.send(done(job)).is_err()) {
                    return;
                }
                signal.0.raise();
            }
        };
        let thread = threads::spawn(ThreadKind::DiskHelper, name, run)?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread), outstanding: VecDeque::new() })
    }

    /// Send a job. Returns false if the thread has died.
    pub(super) fn send(&mut self, job: Job) -> bool {
        let taken = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job.clone()).is_ok());
        if taken {
            self.outstanding.push_back(job);
        }
        taken
    }

    /// A job that has ended.
    pub(super) fn next(&mut self) -> Option<Done> {
        match self.results.try_recv() {
            Ok(ended) => {
                self.outstanding.pop_front();
                Some(ended)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some((self.outstanding.pop_front()?, Err(IoError::Damaged("the helper thread panicked"))))
            }
        }
    }

    /// Jobs whose end `next` has not returned.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }
}

fn perform(format: &dyn Format, job: &Job) -> Result<Extents, IoError> {
    tracing::trace!(kind = ?job.kind, offset = job.offset, len = job.len, "slow path");
    let mut extents = Extents::new();
    match &job.kind {
        &JobKind::Map { writes } => map_now(format, writes, job.offset, job.len, &mut extents),
        JobKind::Flush => match format.flush_kind() {
            Flush::Format => format.flush(),
            Flush::SyncFiles => {
                format.files().iter().filter(|file| file.writable()).try_for_each(|file| file.sync())
            }
        },
        JobKind::Discard => format.discard(job.offset, job.len),
        &JobKind::WriteZeroes { may_unmap } => format.write_zeroes(job.offset, job.len, may_unmap),
        JobKind::Partial(work) => work.perform(format),
        JobKind::Pause { .. } => {
            std::thread::sleep(PAUSE);
            Ok(())
        }
    }
    .map(|()| extents)
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
