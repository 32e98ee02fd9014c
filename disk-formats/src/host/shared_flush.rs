//! Flushes of one file or disk: one at a time, and one for all threads that wait for it.

use super::sync::atomic::{AtomicU64, Ordering};
use super::sync::{OnceLock, PoisonError};

#[allow(clippy::disallowed_types, reason = "held by a flush, never by a read or write")]
type Mutex<T> = super::sync::Mutex<T>;

/// The flushes of a file or disk.
#[derive(Debug, Default)]
pub(crate) struct SharedFlush {
    /// Number of flushes that have begun.
    begun: AtomicU64,
    /// Number of the last flush that succeeded. Locked during a flush.
    done: Mutex<u64>,
}

impl SharedFlush {
    /// Run `flush` while no other thread flushes. If another thread's flush has begun since this call and has succeeded when this thread's
    /// turn comes, `flush` is not run: the other flush covers all writes that completed before this call.
    ///
    /// # Errors
    /// Those of `flush`. They concern this call alone: another thread that waits runs its own.
    pub(crate) fn run<E>(&self, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let wanted = self.begun.load(Ordering::Acquire) + 1;
        // A flush that has panicked did not change the number.
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if *done >= wanted {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        flush()?;
        *done = number;
        Ok(())
    }

    /// Run `flush` whatever other threads have flushed. No other flush runs meanwhile.
    pub(crate) fn run_always<T>(&self, flush: impl FnOnce() -> T) -> T {
        let _one_at_a_time = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        flush()
    }
}

/// Flushes of which none succeeds after the first error: the kernel reports an error once.
#[derive(Debug)]
pub(crate) struct StickyFlush<E> {
    /// The first error.
    lost: OnceLock<E>,
    shared: SharedFlush,
}

impl<E: Copy> StickyFlush<E> {
    /// As [`SharedFlush::run`]. `flush` is not run after an error, and records its own by [`fail`](Self::fail) before it returns.
    ///
    /// # Errors
    /// The first error, whoever recorded it.
    pub(crate) fn run(&self, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.shared.run(|| {
            self.check()?;
            flush()
        })?;
        // Another thread may have recorded a writeback error in the meantime.
        self.check()
    }

    /// Record an error. Returns whether it is the first.
    pub(crate) fn fail(&self, error: E) -> bool {
        self.lost.set(error).is_ok()
    }

    /// # Errors
    /// The first error.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), E> {
        self.lost.get().map_or(Ok(()), |error| Err(*error))
    }

    #[cfg(test)]
    pub(crate) fn begun(&self) -> u64 {
        self.shared.begun.load(Ordering::Acquire)
    }
}

impl<E> Default for StickyFlush<E> {
    fn default() -> Self {
        Self { lost: OnceLock::new(), shared: SharedFlush::default() }
    }
}
