//! What a disk does once, before the first change of its content.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::contract::error::IoError;

#[allow(clippy::disallowed_types, reason = "the first change of a disk alone")]
type Mutex<T> = std::sync::Mutex<T>;

/// Whether the disk is prepared for changes.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    done: AtomicBool,
    /// Held while the disk is being prepared.
    preparing: Mutex<()>,
}

impl Begun {
    /// `done`: there is nothing to prepare.
    pub(crate) fn new(done: bool) -> Self {
        Self { done: AtomicBool::new(done), ..Self::default() }
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Run `begin` if it has not succeeded yet, on one thread at a time.
    ///
    /// # Errors
    /// Those of `begin`, which the next call runs again.
    pub(crate) fn begin(&self, begin: impl FnOnce() -> Result<(), IoError>) -> Result<(), IoError> {
        if self.is_done() {
            return Ok(());
        }
        let panicked = |_| IoError::Damaged("an earlier request panicked");
        let _one_at_a_time = self.preparing.lock().map_err(panicked)?;
        if !self.is_done() {
            begin()?;
            self.done.store(true, Ordering::Release);
        }
        Ok(())
    }
}
