//! The interrupts of the only processor.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Interrupt state of the processor.
#[derive(Default)]
pub(super) struct Processor {
    pub(super) taken: AtomicU32,
    pub(super) line: AtomicBool,
}

impl Processor {
    pub(super) fn interrupt(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }
}
