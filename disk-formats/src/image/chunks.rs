//! Work over a disk, chunk by chunk, shared by threads: each claims the next chunk; zeros that one of them finds are
//! skipped by all.

use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::error::ImageError;

/// Bytes of a chunk; chunks begin at multiples of it.
pub(super) const CHUNK: u64 = 2 << 20;

/// How a long operation runs, and how it is watched and ended.
pub struct Control<'a> {
    /// Threads that share the work, the caller's among them. See [`default_workers`].
    pub workers: NonZero<usize>,
    /// Set from anywhere: the operation ends with [`ImageError::Cancelled`] after the chunks at hand.
    pub cancel: &'a AtomicBool,
    /// Called with bytes done and bytes in all, by all workers, after each chunk.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// Threads that serve most hosts: one for each processor, and enough to keep a disk busy while others compute.
#[must_use]
pub fn default_workers() -> NonZero<usize> {
    const FEW: NonZero<usize> = NonZero::new(4).unwrap();
    const MANY: NonZero<usize> = NonZero::new(16).unwrap();
    thread::available_parallelism().map_or(FEW, |processors| processors.clamp(FEW, MANY))
}

/// The unclaimed chunks of a disk.
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

    /// Claim the next bytes, `count` chunks or what is left; `None` where all is claimed, or another worker failed.
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

    /// Whether chunks from `at` on are still to be claimed.
    pub(super) fn unclaimed(&self, at: u64) -> bool {
        at < self.end && self.next.load(Ordering::Relaxed) <= at
    }

    /// No worker has anything to do before `at`.
    pub(super) fn pass_over(&self, at: u64) {
        let at = if at >= self.end { self.end } else { at - at % CHUNK };
        let before = self.next.fetch_max(at, Ordering::Relaxed);
        self.finished(at.saturating_sub(before));
    }

    /// So many claimed bytes are done.
    pub(super) fn finished(&self, len: u64) {
        let before = self.done.fetch_add(len, Ordering::Relaxed);
        (self.control.progress)(before + len, self.end);
    }

    /// Run `work` on all threads until each has returned. The first error ends it; an error other than
    /// [`ImageError::Cancelled`] is preferred.
    pub(super) fn run(&self, work: impl Fn() -> Result<(), ImageError> + Sync) -> Result<(), ImageError> {
        let work = || {
            let mut stop = StopOnFailure { stop: &self.stop, failed: true };
            let done = work();
            stop.failed = done.is_err();
            done
        };
        thread::scope(|scope| {
            // Where the host refuses threads, there are fewer.
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

/// Stops the other workers if one has failed or panicked.
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
