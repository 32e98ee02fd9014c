//! Aborts, and resets of targets, of the bus and of the adapter.
//!
//! - An abort posts no completion of its own if its CCB is found: the CCB completes, as aborted or, if the disk was faster, normally.
//! - The reset of a target is a CCB. It completes when the disks have completed all earlier requests.
//! - A reset of the adapter waits for the disks: the driver frees all memory, mailboxes included, when its write returns.

use vm_memory::GuestAddressSpace;

use super::BusLogic;
use super::ccb::Pending;
use super::command::Protocol;
use super::interrupts::Causes;
use super::spec::{adapter_status, completion};
use crate::hba::Hba;
use crate::scsi::TaskEnd;
use crate::time::Time;

impl<A: GuestAddressSpace> BusLogic<A> {
    /// Abort the CCB at this address. The abort counts as a request only if it posts a completion: in the statistics each request has one.
    #[cold]
    pub(super) fn abort(&mut self, ccb: u32, now: Time) {
        let in_flight =
            self.engine.in_flight.iter().find(|(_, pending)| pending.ccb == ccb).map(|(id, _)| id);
        tracing::info!(ccb, in_flight = in_flight.is_some(), "BusLogic abort");
        if let Some(id) = in_flight {
            self.engine.bus.abort(id);
            return;
        }
        let mut found = false;
        let taken = self.engine.backlog.take(|_, request| {
            let this = !found && request.pending.ccb == ccb;
            found |= this;
            this
        });
        match taken.first() {
            Some(request) => self.end(&request.pending, &TaskEnd::Aborted, now),
            None => {
                self.engine.stats.requests += 1;
                self.refuse(ccb, completion::ABORT_NOT_FOUND, adapter_status::NORMAL, now);
            }
        }
    }

    /// Execute a CCB that resets a target.
    #[cold]
    pub(super) fn reset_target(&mut self, target: u8, pending: Pending, now: Time) {
        tracing::info!(target, "BusLogic bus device reset");
        if self.resets.len() >= usize::from(u8::MAX) {
            return self.fail(&pending, adapter_status::SOFTWARE_ERROR, now);
        }
        if self.engine.bus.addresses().all(|address| address.target != target) {
            return self.end(&pending, &TaskEnd::NoTarget, now);
        }
        let taken = self.engine.backlog.take(|address, _| address.target == target);
        for request in &taken {
            self.end(&request.pending, &TaskEnd::Reset, now);
        }
        self.engine.bus.reset_target(target);
        // Completed in `complete`, after the completions of the target's requests.
        self.resets.push((target, pending));
    }

    /// Complete the CCBs whose targets have been reset.
    #[cold]
    pub(super) fn complete_target_resets(&mut self, now: Time) {
        let bus = &self.engine.bus;
        let is_over = |&(target, _): &(u8, Pending)| !bus.resetting(|address| address.target == target);
        let (over, waiting): (Vec<_>, Vec<_>) = self.resets.iter().copied().partition(is_over);
        self.resets = waiting;
        for (_, pending) in over {
            let incoming = pending.done(&mut self.engine.dma);
            self.post_incoming(incoming, now);
        }
    }

    /// Reset the SCSI bus. Its requests complete with the status of a reset. RSTS is not raised: it reports resets by other devices, and
    /// drivers respond to it with a reset of the adapter.
    pub(super) fn reset_bus(&mut self, now: Time) {
        tracing::info!("BusLogic bus reset");
        let taken = self.engine.backlog.take(|_, _| true);
        for request in &taken {
            self.end(&request.pending, &TaskEnd::Reset, now);
        }
        self.engine.bus.reset_all();
        self.complete(now);
    }

    /// Reset the adapter. Waits for the disk requests in flight: the kernel accesses guest memory for them, and cannot be stopped.
    pub(super) fn reset_adapter(&mut self) {
        tracing::debug!(in_flight = self.engine.bus.in_flight(), "BusLogic reset");
        self.engine.bus.reset_all();
        self.engine.bus.drain();
        self.engine.stats.completions += self.resets.len() as u64;
        self.engine.drop_waiting();
        self.engine.drop_in_flight();
        self.resets.clear();
        self.mailboxes = None;
        (self.strict, self.extended, self.loaded) = (false, false, false);
        self.protocol = Protocol::reset();
        self.change_interrupt(|causes| *causes = Causes::new());
    }
}
