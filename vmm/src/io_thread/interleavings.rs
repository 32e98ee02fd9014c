//! No request is lost between an I/O thread and the virtual CPUs' threads that call its device while it sleeps.

use std::os::fd::BorrowedFd;

use interleave::sync::atomic::{AtomicU32, Ordering};
use interleave::sync::{Arc, Condvar, Mutex};
use interleave::{Fault, explore, finds, seeded, sync, thread};
use paradisk_devices::{Coalescing, IoDevice, Sleep, Stats, Time};

use super::counters;
use counters::Counters;
use shared::{Held, Notification, Served, Shared};

#[allow(dead_code, reason = "the model does not use everything")]
#[path = "shared.rs"]
mod shared;

/// The clock does not advance.
mod time {
    use std::time::Duration;

    #[derive(Clone, Copy)]
    pub(super) struct Instant;

    impl Instant {
        pub(super) const fn elapsed(self) -> Duration {
            Duration::ZERO
        }
    }
}

/// Virtual CPUs' threads always serve doorbells.
mod rule {
    use std::time::Duration;

    pub(super) const LONGEST: Duration = Duration::from_micros(100);

    pub(super) struct Work {
        pub(super) requests: u64,
        pub(super) completions: u64,
    }

    pub(super) struct Rule;

    impl Rule {
        pub(super) const fn new() -> Self {
            Self
        }

        pub(super) const fn on_vcpu(&self) -> bool {
            true
        }

        pub(super) const fn samples_this_sleep(&mut self) -> bool {
            true
        }

        pub(super) const fn io_thread_sleeps(&mut self, _: Work) {}

        pub(super) const fn admits(&mut self) -> bool {
            true
        }

        pub(super) const fn served(&mut self, work: Work, _: Duration) {
            let Work { requests, completions } = work;
            assert!(requests == completions);
        }

        pub(super) const fn stop(&mut self) {}
    }
}

/// Requests that virtual CPUs have put in, and those that the device has completed.
#[derive(Default)]
struct Ring {
    put_in: AtomicU32,
    completed: AtomicU32,
}

/// Takes one request in each call. When a call leaves requests, the next `before_sleep` says so, once.
struct Device {
    ring: Arc<Ring>,
    more: bool,
}

impl IoDevice for Device {
    fn on_doorbell(&mut self, _: usize, now: Time) {
        self.on_completions(now);
    }

    fn completes_at_once(&self) -> bool {
        true
    }

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn on_completions(&mut self, _: Time) {
        let waiting = self.ring.put_in.load(Ordering::Acquire) - self.ring.completed.load(Ordering::Relaxed);
        if waiting > 0 {
            self.ring.completed.fetch_add(1, Ordering::Relaxed);
        }
        self.more = waiting > 1;
    }

    fn before_sleep(&mut self, _: Time) -> Sleep {
        if std::mem::take(&mut self.more) { Sleep::No } else { Sleep::Forever }
    }

    fn reset(&mut self, _: Time) {}

    fn quiesce(&mut self, _: Time) {}

    fn set_coalescing(&mut self, _: Coalescing) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// What wakes the I/O thread.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    doorbell: bool,
    nudge: bool,
    /// The virtual CPUs have ended. This wakes nobody who has to look for requests.
    stop: bool,
}

struct Model {
    shared: Shared<Device>,
    ring: Arc<Ring>,
    /// The I/O thread's epoll set.
    events: Mutex<Events>,
    ready: Condvar,
}

impl Model {
    fn notify(&self, set: fn(&mut Events)) {
        set(&mut self.events.lock().unwrap());
        self.ready.notify_one();
    }

    /// As `DeviceHandle::ring`, after this many requests were put in.
    fn ring(&self, requests: u32) {
        self.ring.put_in.fetch_add(requests, Ordering::Release);
        match self.shared.serve(Notification::Doorbell(0)) {
            Served::Done => {}
            Served::More => self.notify(|events| events.nudge = true),
            Served::No => self.notify(|events| events.doorbell = true),
        }
    }

    /// With [`Fault::Own`], the I/O thread does not ask whether a virtual CPU's thread has left the device with more to do.
    fn take_unfinished(held: &mut Held<Device>) -> bool {
        held.take_unfinished() && !seeded(Fault::Own)
    }

    /// As `Worker::run`, until the thread would sleep although the virtual CPUs have ended.
    fn run(&self) {
        let mut held = self.shared.lock().unwrap();
        loop {
            let unfinished = Self::take_unfinished(&mut held);
            let now = self.shared.now();
            if unfinished {
                held.device().unwrap().on_completions(now);
            }
            if held.device().unwrap().before_sleep(now) == Sleep::No {
                held.device().unwrap().on_completions(now);
                continue;
            }
            self.shared.io_thread_sleeps(&mut held, now, None);
            drop(held);
            let Some(woken_by) = self.wait() else { return };
            held = self.shared.lock().unwrap();
            if woken_by.doorbell {
                held.device().unwrap().on_doorbell(0, now);
            }
        }
    }

    /// Sleep until there is an event; `None` if there will be none.
    fn wait(&self) -> Option<Events> {
        let mut events = self.events.lock().unwrap();
        loop {
            let Events { doorbell, nudge, stop } = *events;
            if doorbell || nudge {
                (events.doorbell, events.nudge) = (false, false);
                return Some(Events { doorbell, nudge, stop });
            }
            if stop {
                return None;
            }
            events = self.ready.wait(events).unwrap();
        }
    }
}

/// One virtual CPU puts in more requests than its thread completes, another puts in one.
fn ring() {
    let ring = Arc::new(Ring::default());
    let device = Box::new(Device { ring: Arc::clone(&ring), more: false });
    let shared = Shared::new(device, time::Instant, Arc::new(Counters::default()));
    let model =
        Arc::new(Model { shared, ring, events: Mutex::new(Events::default()), ready: Condvar::new() });
    let io_thread = Arc::clone(&model);
    let io_thread = thread::spawn(move || io_thread.run());
    let vcpu = Arc::clone(&model);
    let vcpu = thread::spawn(move || vcpu.ring(4));
    model.ring(1);
    vcpu.join().unwrap();
    model.notify(|events| events.stop = true);
    io_thread.join().unwrap();
    assert_eq!(model.ring.completed.load(Ordering::Relaxed), 5, "a request is lost");
}

/// The protections: `Held::take_unfinished`, and `Served::More` and `Served::No`, for which the caller wakes the I/O thread.
#[test]
fn a_request_that_a_virtual_cpu_leaves_is_completed_by_the_io_thread() {
    explore(2, ring);
    finds(Fault::Own, 2, ring);
}
