//! The interrupt register and the line as virtual CPUs see them.
//!
//! The device's thread raises the line. The acknowledgement of the one cause that is shown lowers it, on the thread of the virtual CPU that
//! writes it: else each interrupt would cost two switches between threads. One that more depends on is forwarded.
//!
//! Whoever has changed the register brings the line to it afterwards, under one lock.
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
    /// A virtual CPU has lowered the line, which the PCI function has not been told yet.
    lowered: bool,
}

/// The register and the line.
pub(super) struct Line {
    state: Mutex<State>,
    /// The line, where others than the device's thread may lower it.
    shared: Option<Arc<dyn InterruptLine>>,
}

impl Line {
    pub(super) fn new(shared: Option<Arc<dyn InterruptLine>>) -> Self {
        Self { state: Mutex::new(State { causes: Causes::new(), lowered: false }), shared }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The register is read.
    pub(super) fn read(&self) -> u8 {
        self.lock().causes.read()
    }

    /// Whether an acknowledgement would be of mailboxes that the driver may not have looked at.
    pub(super) fn unread(&self) -> bool {
        self.lock().causes.unread()
    }

    /// On the device's thread: change the register, and bring the line to it. True: that asserted it.
    pub(super) fn update(&self, function: &mut Function, change: impl FnOnce(&mut Causes)) -> bool {
        let mut state = self.lock();
        change(&mut state.causes);
        state.settle(function)
    }

    /// On the device's thread: the driver acknowledges. The line falls, and rises for what was postponed. True: it did.
    pub(super) fn acknowledge(&self, function: &mut Function, seen: bool) -> bool {
        let mut state = self.lock();
        state.causes.acknowledge(seen);
        state.settle(function);
        state.causes.show();
        state.settle(function)
    }

    /// On a virtual CPU's thread: the driver acknowledges. False: that is for the device's thread.
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
    fn settle(&mut self, function: &mut Function) -> bool {
        if std::mem::take(&mut self.lowered) {
            function.set_line(false);
        }
        function.set_line(self.causes.asserted())
    }
}
