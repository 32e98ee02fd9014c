//! The interrupt register and the line, shared with the virtual CPUs.
//!
//! The device's thread raises the line. If IMBL is the only cause, the acknowledgement lowers the line on the thread of the virtual CPU
//! that writes it, which saves two thread switches for each interrupt. Every other acknowledgement is forwarded to the device's thread.
//!
//! A thread that changes the register updates the line under the same lock.
#![expect(
    clippy::disallowed_types,
    reason = "taken where the register changes, which costs a system call for the line or an exit of the guest"
)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::interrupts::Causes;
use crate::interrupt::InterruptLine;
use crate::pci::Function;

struct State {
    causes: Causes,
    /// A virtual CPU's thread has lowered the line; the PCI function does not know yet.
    lowered: bool,
}

/// The register and the line.
pub(super) struct Line {
    state: Mutex<State>,
    /// The line, if other threads than the device's may lower it.
    shared: Option<Arc<dyn InterruptLine>>,
}

impl Line {
    pub(super) fn new(shared: Option<Arc<dyn InterruptLine>>) -> Self {
        Self { state: Mutex::new(State { causes: Causes::new(), lowered: false }), shared }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver reads the register.
    pub(super) fn read(&self) -> u8 {
        self.lock().causes.read()
    }

    /// As [`Causes::unread`].
    pub(super) fn unread(&self) -> bool {
        self.lock().causes.unread()
    }

    /// On the device's thread: change the register, and update the line. True: this asserted the line.
    pub(super) fn update(&self, function: &mut Function, change: impl FnOnce(&mut Causes)) -> bool {
        let mut state = self.lock();
        change(&mut state.causes);
        state.update_line(function)
    }

    /// On the device's thread: the driver acknowledges. The line falls, and rises again if a cause is pending. True: it rose.
    pub(super) fn acknowledge(&self, function: &mut Function, seen: bool) -> bool {
        let mut state = self.lock();
        state.causes.acknowledge(seen);
        state.update_line(function);
        state.causes.present_pending();
        state.update_line(function)
    }

    /// On a virtual CPU's thread: the driver acknowledges. False: nothing was done, and the device's thread must acknowledge.
    pub(super) fn try_acknowledge(&self) -> bool {
        let Some(shared) = &self.shared else { return false };
        let mut state = self.lock();
        let asserted = state.causes.asserted();
        if !state.causes.acknowledge_mailboxes() {
            return false;
        }
        if asserted {
            state.lowered = true;
            shared.lower();
        }
        true
    }
}

impl State {
    fn update_line(&mut self, function: &mut Function) -> bool {
        if std::mem::take(&mut self.lowered) {
            function.set_line(false);
        }
        function.set_line(self.causes.asserted())
    }
}
