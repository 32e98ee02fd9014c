//! Detects a virtual CPU that is halted with interrupts off: the state after an operating system's shutdown that cannot power off the
//! machine. Such a CPU causes no exit, so its state is polled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_UNINITIALIZED};
use kvm_ioctls::VcpuFd;

use crate::error::Error;

const RFLAGS_IF: u64 = 1 << 9;

/// Queries of one virtual CPU, and its last answer.
#[derive(Default)]
pub(crate) struct HaltCheck {
    asked: AtomicU64,
    answered: AtomicU64,
    halted: AtomicBool,
}

impl HaltCheck {
    /// Request the state. Returns the number of the query.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The answer to a query or to a later one; `None`: not answered yet.
    pub(crate) fn answer(&self, question: u64) -> Option<bool> {
        (self.answered.load(Ordering::Acquire) >= question).then(|| self.halted.load(Ordering::Relaxed))
    }

    /// On the virtual CPU's thread, after `KVM_RUN` was interrupted: answer the queries. Do not call this after an exit for I/O: the next
    /// `KVM_RUN` completes that access and moves RIP, but `KVM_GET_MP_STATE` processes a pending INIT, which sets RIP.
    pub(crate) fn look(&self, vcpu: &VcpuFd) {
        let asked = self.asked.load(Ordering::Acquire);
        if asked != self.answered.load(Ordering::Relaxed) {
            // If the state is not available, the CPU counts as running.
            self.halted.store(is_halted(vcpu).unwrap_or(false), Ordering::Relaxed);
            self.answered.store(asked, Ordering::Release);
        }
    }
}

/// Whether no interrupt can wake the CPU. A CPU that was never started counts, too: only another CPU can start it.
fn is_halted(vcpu: &VcpuFd) -> Result<bool, Error> {
    let state = vcpu.get_mp_state().map_err(Error::kvm("KVM_GET_MP_STATE"))?.mp_state;
    let flags = vcpu.get_regs().map_err(Error::kvm("KVM_GET_REGS"))?.rflags;
    Ok(state == KVM_MP_STATE_UNINITIALIZED || state == KVM_MP_STATE_HALTED && flags & RFLAGS_IF == 0)
}
