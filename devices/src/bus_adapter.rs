//! What adapters in front of a SCSI bus do alike.

/// Maximum number of batches before an adapter returns to its I/O thread.
const MAX_BATCHES: usize = 16;

/// Complete what has ended, and take batches of requests until there are none. True: there may be more, which must wait for the next call.
/// `fetch` takes a batch and hands it to the disks; false: it found none.
#[inline(always)]
pub(crate) fn work<D>(device: &mut D, fetch: impl Fn(&mut D) -> bool, complete: impl Fn(&mut D)) -> bool {
    complete(device);
    for _ in 0..MAX_BATCHES {
        if !fetch(device) {
            return false;
        }
        complete(device);
    }
    true
}

/// Methods of [`IoDevice`](crate::device::IoDevice) for an adapter with the fields `bus`, `moderator`, `stats` and `dma`, and the methods
/// `service`, `complete` and `start_backlog`, which starts nothing and returns false while the adapter may not start requests. It has
/// [`HotPlug`](crate::device::HotPlug), too. The argument is the method that signals completions to the guest.
macro_rules! bus_adapter_methods {
    ($signal:ident) => {
        fn completion_events(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            self.bus.events()
        }

        fn on_completions(&mut self, now: crate::time::Time) {
            let completed = self.stats.completions;
            self.service(now);
            if self.stats.completions == completed {
                self.bus.clear_late_events();
            }
        }

        fn quiesce(&mut self, now: crate::time::Time) {
            self.bus.drain();
            self.complete(now);
            // Requests that were taken from the guest's queue already complete, too.
            while self.start_backlog(now) {
                self.bus.drain();
                self.complete(now);
            }
            if self.moderator.flush() {
                self.$signal();
            }
            self.dma.release();
        }

        fn set_coalescing(&mut self, coalescing: crate::moderation::Coalescing) {
            if self.moderator.set_options(coalescing) {
                self.$signal();
            }
        }

        fn moderation(&self) -> Vec<crate::moderation::ModerationState> {
            vec![self.moderator.state()]
        }

        fn hot_plug(&mut self) -> Option<&mut dyn crate::device::HotPlug> {
            Some(self)
        }

        fn refresh(&mut self, _now: crate::time::Time) {
            self.bus.refresh();
        }

        fn stats(&self) -> crate::device::Stats {
            self.stats.with(&self.bus.queue_stats())
        }
    };
}

pub(crate) use bus_adapter_methods;
