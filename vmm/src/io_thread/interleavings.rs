//! No request is lost between an I/O thread that goes to sleep and the virtual CPUs' threads that access the device's registers.

use std::os::fd::BorrowedFd;

use interleave::sync::{Arc, Condvar, Mutex};
use interleave::{Fault, explore, finds, seeded, thread};
use paradisk_devices::{AccessKind, Bar, Coalescing, Doorbell, IoDevice, PciDevice, Sleep, Stats, Time};

use shared::{Accessed, Shared};

#[allow(dead_code, reason = "the model does not use everything")]
#[path = "shared.rs"]
mod shared;

/// The lock, with the interface of the one in use.
mod sync {
    pub(super) use interleave::sync::MutexGuard;

    pub(super) struct Mutex<T>(interleave::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(interleave::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

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

/// A register puts a request in. Each call takes one.
#[derive(Default)]
struct Device {
    waiting: u32,
    taken: u32,
}

impl PciDevice for Device {
    fn config_read(&mut self, _: u16, _: &mut [u8]) {}

    fn config_write(&mut self, _: u16, _: &[u8]) {}

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }

    fn bar_read(&mut self, _: u8, _: u64, _: &mut [u8], _: Time) {}

    fn bar_write(&mut self, _: u8, _: u64, _: &[u8], _: Time) {
        self.waiting += 1;
    }

    fn access_kind(&self, _: u8, _: u64, _: Option<&[u8]>) -> AccessKind {
        AccessKind::Submission
    }

    fn doorbells(&self) -> &[Doorbell] {
        &[]
    }
}

impl IoDevice for Device {
    fn on_doorbell(&mut self, _: usize, _: Time) {}

    fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn on_completions(&mut self, _: Time) {
        if self.waiting > 0 {
            self.waiting -= 1;
            self.taken += 1;
        }
    }

    fn before_sleep(&mut self, _: Time) -> Sleep {
        if self.waiting > 0 { Sleep::No } else { Sleep::Forever }
    }

    fn reset(&mut self, _: Time) {}

    fn quiesce(&mut self, _: Time) {}

    fn set_coalescing(&mut self, _: Coalescing) {}

    fn stats(&self) -> Stats {
        Stats { completions: self.taken.into(), ..Stats::default() }
    }
}

/// What wakes the I/O thread.
#[derive(Clone, Copy, Default)]
struct Events {
    nudge: bool,
    /// The virtual CPUs have ended.
    stop: bool,
}

struct Model {
    shared: Shared<dyn PciDevice>,
    /// The I/O thread's epoll set.
    events: Mutex<Events>,
    ready: Condvar,
}

impl Model {
    fn notify(&self, set: fn(&mut Events)) {
        set(&mut self.events.lock().unwrap());
        self.ready.notify_one();
    }

    /// As `PciRoot` writes a register.
    fn submit(&self) {
        match self.shared.access((0, 0), Some(&[0]), |device, now| device.bar_write(0, 0, &[0], now)) {
            Accessed::Done(()) => {}
            Accessed::Wake(()) => self.notify(|events| events.nudge = true),
            Accessed::No => panic!("a device that has ended"),
        }
    }

    /// As `Worker::run`, until the thread would sleep although the virtual CPUs have ended. Returns the number of requests that were taken. With
    /// [`Fault::Own`], the thread says that it waits only after it has released the lock.
    fn run(&self) -> u64 {
        let mut held = self.shared.lock();
        loop {
            let device = held.device().unwrap();
            if device.before_sleep(Time(0)) == Sleep::No {
                device.on_completions(Time(0));
                continue;
            }
            if seeded(Fault::Own) {
                drop(held);
                self.shared.lock().will_wait();
            } else {
                held.will_wait();
                drop(held);
            }
            let woken = self.wait();
            held = self.shared.lock();
            held.has_waited();
            if !woken {
                return held.device().unwrap().stats().completions;
            }
        }
    }

    /// Sleep until there is an event. False: there will be none.
    fn wait(&self) -> bool {
        let mut events = self.events.lock().unwrap();
        loop {
            if std::mem::take(&mut events.nudge) {
                return true;
            }
            if events.stop {
                return false;
            }
            events = self.ready.wait(events).unwrap();
        }
    }
}

/// Two virtual CPUs put in requests.
fn submit() {
    let device: Box<dyn PciDevice> = Box::<Device>::default();
    let shared = Shared::new(device, time::Instant);
    let model = Arc::new(Model { shared, events: Mutex::default(), ready: Condvar::new() });
    let io_thread = Arc::clone(&model);
    let io_thread = thread::spawn(move || io_thread.run());
    let vcpu = Arc::clone(&model);
    let vcpu = thread::spawn(move || vcpu.submit());
    model.submit();
    model.submit();
    vcpu.join().unwrap();
    model.notify(|events| events.stop = true);
    assert_eq!(io_thread.join().unwrap(), 3, "a request is lost");
}

/// The protection: `Held::will_wait`, under the lock under which `before_sleep` was called.
#[test]
fn a_request_that_is_put_in_while_the_io_thread_goes_to_sleep_is_taken() {
    explore(2, submit);
    finds(Fault::Own, 2, submit);
}
