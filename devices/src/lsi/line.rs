//! The INTx line, as shared between the device's thread and the virtual CPUs.
//!
//! The device's thread asserts the line. The read that pops the last reply of the reply FIFO deasserts it, on the
//! thread of the virtual CPU that reads. Forwarding that read would cost two thread switches for each interrupt.
//!
//! Each thread that changes the interrupt status then updates the line under a lock. So the line matches the status
//! after the last change.
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
    /// The line, if virtual CPUs may deassert it.
    shared: Option<Arc<dyn InterruptLine>>,
    /// Held while the line changes. True if a virtual CPU has deasserted the line, and the PCI function does not know
    /// yet.
    lowered: Mutex<bool>,
}

impl Line {
    pub(super) fn new(shared: Option<Arc<dyn InterruptLine>>) -> Self {
        Self { up: AtomicBool::new(false), shared, lowered: Mutex::new(false) }
    }

    /// Whether the line may be asserted, and only the device's thread can deassert it.
    pub(super) fn needs_owner(&self) -> bool {
        self.shared.is_none() && self.up.load(Ordering::Acquire)
    }

    /// Called on the device's thread: set the line to the interrupt status `asserted`; `pending` tells whether there
    /// are replies. Returns whether that asserted the line.
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
        // Set before the status is read: a virtual CPU that pops the last reply in the meantime waits for the lock, and
        // then deasserts the line.
        let was_up = self.up.swap(true, Ordering::Relaxed);
        // Pairs with the fence in `lower_if_idle`.
        fence(Ordering::SeqCst);
        // While a read of the FIFO is between its two checks (`Port::rearm`), the status may be 0 although there are
        // replies.
        let asserted = asserted() || was_up && pending();
        let raised = function.set_line(asserted);
        self.up.store(asserted && function.mode() == InterruptMode::Intx, Ordering::Release);
        raised
    }

    /// Called on a virtual CPU's thread after it has popped a reply: deassert the line if nothing is `pending`.
    pub(super) fn lower_if_idle(&self, pending: impl Fn() -> bool) {
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
    use crate::lsi::Personality;
    use crate::testing::{Counts, Sink};

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
        line.lower_if_idle(|| false);
        assert!(!out.0.load(Ordering::Relaxed), "it is down");
        line.up.store(true, Ordering::Relaxed);
        line.lower_if_idle(|| true);
        assert!(!out.0.load(Ordering::Relaxed), "there is more to read");
        assert!(!line.needs_owner());
        line.lower_if_idle(|| false);
        assert!(out.0.load(Ordering::Relaxed));
    }

    /// While a read of the FIFO is between its two checks, the status is 0 although there are replies.
    #[test]
    fn a_line_that_is_up_stays_up_while_there_are_replies() {
        let counts = Arc::new(Counts::default());
        let identity = Personality::Spi1030.identity();
        let mut function = Function::new(&identity, Box::new(Sink(Arc::clone(&counts)))).with_intx(1);
        let line = Line::new(None);
        assert!(line.update(&mut function, || true, || true));
        assert!(!line.update(&mut function, || false, || true));
        assert!(counts.line() && line.needs_owner());
        assert!(!line.update(&mut function, || false, || false));
        assert!(!counts.line() && !line.needs_owner());
    }
}
