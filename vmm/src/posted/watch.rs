//! The I/O thread's side of posted writes.

use std::sync::Arc;
use std::time::Duration;

use paradisk_devices::{IoDevice, Time};

use super::worth::{LOOK, Seen, Worth};
use super::{PostedWrites, ZoneId};

/// One device's posted writes, on its I/O thread.
pub(crate) struct Watch {
    writes: Arc<PostedWrites>,
    zone: ZoneId,
    worth: Worth,
}

impl Watch {
    pub(crate) const fn new(writes: Arc<PostedWrites>, zone: ZoneId) -> Self {
        Self { writes, zone, worth: Worth::new() }
    }

    /// Before the thread sleeps: decide whether posting saves time, and process posted writes. True: the device has work.
    pub(crate) fn look(&mut self, device: &(impl IoDevice + ?Sized), now: Time) -> bool {
        if self.worth.due(now) {
            let (prompt, late) = self.writes.taken();
            let seen = Seen { requests: device.stats().requests, prompt, late };
            if self.worth.judge(now, seen) {
                self.writes.set_wanted(self.zone, self.worth.posting());
            }
        }
        self.take()
    }

    /// Process posted writes. True: the device has work.
    pub(crate) fn take(&self) -> bool {
        self.writes.take_on_io_thread(self.zone)
    }

    /// How long the thread may sleep.
    pub(crate) fn bound(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.worth.posting() { Some(timeout.map_or(LOOK, |timeout| timeout.min(LOOK))) } else { timeout }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.writes.set_wanted(self.zone, false);
    }
}
