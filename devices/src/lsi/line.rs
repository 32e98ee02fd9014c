//! The INTx line as virtual CPUs see it.
//!
//! The device's thread raises the line. The read that takes the last reply out of the reply FIFO lowers it, on the thread of the virtual CPU that
//! reads: else each interrupt would cost two switches between threads.
//!
//! Whoever has changed the interrupt status brings the line to it afterwards, under one lock. So the line ends at what the last
//! change makes of the status.
#![expect(
    clippy::disallowed_types,
    reason = "taken where the line changes, which costs a system call; messages take no lock"
)]

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::interrupt::InterruptLine;
use crate::pci::{Function, InterruptMode};

pub(super) struct Line {
    /// The line may be asserted.
    up: AtomicBool,
    /// The line, where others than the device's thread may lower it.
    shared: Option<Arc<dyn InterruptLine>>,
    /// Held while the line is changed. True: a virtual CPU has lowered it, which the PCI function has not been told yet.
    lowered: Mutex<bool>,
}

impl Line {
    pub(super) fn new(shared: Option<Arc<dyn InterruptLine>>) -> Self {
        Self { up: AtomicBool::new(false), shared, lowered: Mutex::new(false) }
    }

    /// Whether only the device's thread can lower the line, and it may be asserted.
    pub(super) fn needs_owner(&self) -> bool {
        self.shared.is_none() && self.up.load(Ordering::Acquire)
    }

    /// On the device's thread: bring the line to the interrupt status, which is `asserted`, with replies `pending`. True: that asserted
    /// the line.
    pub(super) fn update(
        &self,
        function: &mut Function,
        asserted: impl Fn() -> bool,
        pending: impl Fn() -> bool,
    ) -> bool {
        if function.mode() != InterruptMode::Intx && !self.up.load(Ordering::Relaxed) {
            return function.set_line(asserted());
        }
        let mut lowered = self.lowered.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *lowered) {
            function.set_line(false);
        }
        // Before the status is read: a virtual CPU that takes the last reply meanwhile waits for the lock, and lowers the line then.
        let was_up = self.up.swap(true, Ordering::Relaxed);
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        // With a read of the FIFO between its two checks, the status is 0 for a moment although replies are there.
        let asserted = asserted() || was_up && pending();
        let raised = function.set_line(asserted);
        self.up.store(asserted && function.mode() == InterruptMode::Intx, Ordering::Release);
        raised
    }

    /// On a virtual CPU's thread, after it has taken a reply: lower the line if nothing is `pending`.
    pub(super) fn settle(&self, pending: impl Fn() -> bool) {
        let Some(shared) = &self.shared else { return };
        // Pairs with the fence in `update`.
        fence(Ordering::SeqCst);
        if !self.up.load(Ordering::Relaxed) || pending() {
            return;
        }
        let mut lowered = self.lowered.lock().unwrap_or_else(PoisonError::into_inner);
        if self.up.load(Ordering::Relaxed) && !pending() {
            self.up.store(false, Ordering::Relaxed);
            *lowered = true;
            shared.lower();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(AtomicBool);

    impl InterruptLine for Counted {
        fn lower(&self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_the_last_reply_lowers_a_line_that_is_up() {
        let out = Arc::new(Counted(AtomicBool::new(false)));
        let line = Line::new(Some(out.clone()));
        line.settle(|| false);
        assert!(!out.0.load(Ordering::Relaxed), "it is down");
        line.up.store(true, Ordering::Relaxed);
        line.settle(|| true);
        assert!(!out.0.load(Ordering::Relaxed), "there is more to read");
        assert!(!line.needs_owner());
        line.settle(|| false);
        assert!(out.0.load(Ordering::Relaxed));
    }
}
