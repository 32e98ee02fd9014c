//! Divides a disk into chunks for a pool of threads. Each thread claims the next chunk. Zeros that one thread finds are
//! skipped for all.

use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::formats::copy::content::{CHUNK, ImageError};

/// Control of a long operation: number of threads, cancellation, progress.
pub struct Control<'a> {
    /// Number of threads, including the caller's. See [`default_workers`].
    pub workers: NonZero<usize>,
    /// Any thread may set it: the operation ends with [`ImageError::Cancelled`] after the current chunks.
    pub cancel: &'a AtomicBool,
    /// All workers call it after each chunk, with the number of bytes processed and the total number.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// A number of threads for most hosts: one for each processor, within limits that keep a disk busy while some threads
/// compute.
#[must_use]
pub fn default_workers() -> NonZero<usize> {
    const FEW: NonZero<usize> = NonZero::new(4).unwrap();
    const MANY: NonZero<usize> = NonZero::new(16).unwrap();
    thread::available_parallelism().map_or(FEW, |processors| processors.clamp(FEW, MANY))
}

/// The chunks of a disk, and which of them are claimed.
pub(super) struct Chunks<'a> {
    control: &'a Control<'a>,
    end: u64,
    next: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(end: u64, control: &'a Control<'a>) -> Self {
        Self { control, end, next: 0.into(), done: 0.into(), stop: false.into() }
    }

    /// Claim the next `count` chunks, or what is left; `None` if all are claimed, or if another worker failed.
    pub(super) fn claim(&self, count: u64) -> Result<Option<Range<u64>>, ImageError> {
        if self.control.cancel.load(Ordering::Relaxed) {
            return Err(ImageError::Cancelled);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let start = self.next.fetch_add(count * CHUNK, Ordering::Relaxed);
        Ok((start < self.end).then(|| start..(start + count * CHUNK).min(self.end)))
    }

    /// Whether the chunks from `at` on are unclaimed.
    pub(super) fn unclaimed(&self, at: u64) -> bool {
        at < self.end && self.next.load(Ordering::Relaxed) <= at
    }

    /// Claim all bytes before `at`, which need no work.
    pub(super) fn pass_over(&self, at: u64) {
        let at = if at >= self.end { self.end } else { at - at % CHUNK };
        let before = self.next.fetch_max(at, Ordering::Relaxed);
        self.finished(at.saturating_sub(before));
    }

    /// `len` claimed bytes are processed.
    pub(super) fn finished(&self, len: u64) {
        let before = self.done.fetch_add(len, Ordering::Relaxed);
        (self.control.progress)(before + len, self.end);
    }

    /// Run `work` on all threads until each has returned. The first error stops all threads. An error other than
    /// [`ImageError::Cancelled`] takes precedence.
    pub(super) fn run(&self, work: impl Fn() -> Result<(), ImageError> + Sync) -> Result<(), ImageError> {
        let work = || {
            let mut stop = StopOnFailure { stop: &self.stop, failed: true };
            let done = work();
            stop.failed = done.is_err();
            done
        };
        thread::scope(|scope| {
            // If the host refuses a thread, fewer are used.
            let others: Vec<_> = (1..self.control.workers.get())
                .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let mut outcome = work();
            for other in others {
                match other.join() {
                    Ok(Err(error)) if matches!(outcome, Ok(()) | Err(ImageError::Cancelled)) => {
                        outcome = Err(error);
                    }
                    Ok(_) => {}
                    Err(panic) => resume_unwind(panic),
                }
            }
            outcome
        })
    }
}

/// Stops the other workers when this worker fails or panics.
struct StopOnFailure<'a> {
    stop: &'a AtomicBool,
    failed: bool,
}

impl Drop for StopOnFailure<'_> {
    fn drop(&mut self) {
        if self.failed {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}
