//! A disk's queue that breaks its contract ([`DiskQueue`](paradisk_disk_formats::DiskQueue)): it completes a request that is not in flight,
//! or has nothing in flight while requests wait for it.
//!
//! The disk is then faulted for as long as it is attached. A SCSI unit answers HARDWARE ERROR, internal target failure; a virtio block
//! device answers `VIRTIO_BLK_S_IOERR`. Later requests fail at once. A request in flight fails when the queue completes it; the others fail
//! when the queue reports that it has nothing in flight, because until then the host may write to their memory. So no request succeeds
//! without having been executed, and none waits for ever.
//!
//! Each completion is checked against the table of requests. Lost requests are looked for before the thread sleeps, not for each request.

use std::sync::OnceLock;

/// The reasons.
pub(crate) const UNKNOWN_COMPLETION: &str = "its queue completed a request that it does not have";
pub(crate) const NOTHING_IN_FLIGHT: &str = "its queue has nothing in flight, but requests wait for it";
pub(crate) const NO_SUCH_TASK: &str = "a task waits that is not in the table";

/// A disk whose requests all fail, because its queue, or an adapter, has a defect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("disk with serial number `{serial}`: {what}: all its requests fail until it is attached again")]
#[non_exhaustive]
pub struct DiskFault {
    /// The serial number that the guest sees.
    pub serial: String,
    /// The broken invariant.
    pub what: &'static str,
}

static REPORT: OnceLock<fn(&DiskFault)> = OnceLock::new();

/// Set the function that is called when a disk is faulted, on the adapter's thread, at most once for each attachment. Programs show the
/// fault to their user, because the guest only sees failed requests. Only the first call of this function has an effect.
pub fn on_disk_fault(report: fn(&DiskFault)) {
    let _ = REPORT.set(report);
}

/// Whether a disk is faulted.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    faulted: bool,
}

impl Fault {
    pub(crate) const fn is_set(&self) -> bool {
        self.faulted
    }

    /// Fault the disk from now on. The first call reports it.
    ///
    /// # Panics
    /// In builds with debug assertions: it is a defect of this program.
    #[cold]
    pub(crate) fn set(&mut self, what: &'static str, serial: &str) {
        if std::mem::replace(&mut self.faulted, true) {
            return;
        }
        let fault = DiskFault { serial: serial.to_owned(), what };
        tracing::error!(%fault, "disk faulted");
        if let Some(report) = REPORT.get() {
            report(&fault);
        }
        #[cfg(test)]
        if expected::note(&fault) {
            return;
        }
        debug_assert!(false, "{fault}");
    }
}

/// Faults that a test provokes.
#[cfg(test)]
pub(crate) mod expected {
    use std::cell::RefCell;

    use crate::fault::DiskFault;

    thread_local! {
        static FAULTS: RefCell<Option<Vec<DiskFault>>> = const { RefCell::new(None) };
    }

    /// From now on, faults of this thread are recorded and do not panic.
    pub(crate) fn begin() {
        FAULTS.set(Some(Vec::new()));
    }

    /// The faults that were recorded since [`begin`].
    pub(crate) fn take() -> Vec<&'static str> {
        let faults = FAULTS.with_borrow_mut(|faults| faults.as_mut().map(std::mem::take));
        faults.unwrap_or_default().iter().map(|fault| fault.what).collect()
    }

    pub(super) fn note(fault: &DiskFault) -> bool {
        FAULTS.with_borrow_mut(|faults| faults.as_mut().map(|faults| faults.push(fault.clone()))).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_reported_once() {
        expected::begin();
        let mut fault = Fault::default();
        assert!(!fault.is_set());
        fault.set(UNKNOWN_COMPLETION, "S1");
        fault.set(NOTHING_IN_FLIGHT, "S1");
        assert!(fault.is_set());
        assert_eq!(expected::take(), [UNKNOWN_COMPLETION]);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic = "its queue has nothing in flight"]
    fn a_fault_that_no_test_expects_panics() {
        Fault::default().set(NOTHING_IN_FLIGHT, "S1");
    }
}
