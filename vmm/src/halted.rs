//! Whether a virtual CPU sleeps for good: halted with interrupts off, as an operating system leaves it that has nothing more to
//! do and cannot switch the machine off. KVM keeps such a CPU to itself, so it is asked from time to time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_UNINITIALIZED};
use kvm_ioctls::VcpuFd;

use crate::error::Error;

const RFLAGS_IF: u64 = 1 << 9;

/// Questions to one virtual CPU, and its last answer.
#[derive(Default)]
pub(crate) struct HaltCheck {
    asked: AtomicU64,
    answered: AtomicU64,
    halted: AtomicBool,
}

impl HaltCheck {
    /// Ask; the number of the question.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The answer to a question or to a later one, once it is there.
    pub(crate) fn answer(&self, question: u64) -> Option<bool> {
        (self.answered.load(Ordering::Acquire) >= question).then(|| self.halted.load(Ordering::Relaxed))
    }

    /// On the virtual CPU's thread, after `KVM_RUN` was interrupted: answer what was asked. Not after an exit for I/O: KVM completes that access
    /// at the next `KVM_RUN`, and moves RIP then, but `KVM_GET_MP_STATE` obeys an INIT that is pending, which sets RIP.
    pub(crate) fn look(&self, vcpu: &VcpuFd) {
        let asked = self.asked.load(Ordering::Acquire);
        if asked != self.answered.load(Ordering::Relaxed) {
            // One that does not tell may run.
            self.halted.store(is_halted(vcpu).unwrap_or(false), Ordering::Relaxed);
            self.answered.store(asked, Ordering::Release);
        }
    }
}

/// Whether no interrupt can wake it. One that was never started can be by another only.
fn is_halted(vcpu: &VcpuFd) -> Result<bool, Error> {
    let state = vcpu.get_mp_state().map_err(Error::kvm("KVM_GET_MP_STATE"))?.mp_state;
    let flags = vcpu.get_regs().map_err(Error::kvm("KVM_GET_REGS"))?.rflags;
    Ok(state == KVM_MP_STATE_UNINITIALIZED || state == KVM_MP_STATE_HALTED && flags & RFLAGS_IF == 0)
}
