//! What the threads of a device share.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::super::pci::Transport;
use crate::device::Stats;
use crate::moderation::ModerationState;

/// What a queue has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) stats: Stats,
    /// `None` before the first report.
    pub(super) moderation: Option<ModerationState>,
}

/// What the threads share.
pub(super) struct Shared {
    pub(super) transport: Mutex<Transport>,
    /// What each queue has done.
    pub(super) reports: Box<[Mutex<Report>]>,
    /// The completion event of the device: it wakes the owner's thread, to finish a reset or to deliver interrupts.
    pub(super) attention: OwnedFd,
    /// [`InterruptSink::delivers_after_calls`].
    pub(super) delivers_after_calls: bool,
}

impl Shared {
    pub(super) fn transport(&self) -> MutexGuard<'_, Transport> {
        // A poisoned lock is no error: the registers are valid after every statement.
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn report(&self, queue: usize) -> Option<MutexGuard<'_, Report>> {
        Some(self.reports.get(queue)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Send an interrupt for completions of a queue. Called on the queue's thread.
    pub(super) fn signal(&self, queue: usize) {
        self.transport().signal_queue(queue);
        if self.delivers_after_calls {
            self.wake_owner();
        }
    }

    /// A queue's rings cannot be processed, or its thread has ended: set DEVICE_NEEDS_RESET.
    pub(super) fn broken(&self) {
        let mut transport = self.transport();
        // A pending reset repairs the queue, and until it completes the device must not signal.
        if !transport.resetting() {
            transport.needs_reset();
        }
        drop(transport);
        self.wake_owner();
    }

    pub(super) fn wake_owner(&self) {
        // Fails only if the counter is full, and then the event is readable already.
        let _ = rustix::io::write(&self.attention, &1u64.to_ne_bytes());
    }
}
