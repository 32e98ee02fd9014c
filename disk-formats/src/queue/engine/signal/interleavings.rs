//! No wake-up is lost between the threads that raise a signal and its owner.

use std::sync::Arc;

use interleave::sync::atomic::{AtomicBool, Ordering};
use interleave::sync::{Condvar, Mutex};
use interleave::{Fault, explore, finds, seeded, thread};

use level::Level;

#[path = "level.rs"]
mod level;

mod sync {
    pub(super) use interleave::sync::atomic;
}

/// A signal with an eventfd of the model.
struct Signal {
    level: Level,
    count: Mutex<u64>,
    readable: Condvar,
    published: [AtomicBool; 2],
}

impl Signal {
    fn publish_and_raise(&self, result: usize) {
        self.published[result].store(true, Ordering::Relaxed);
        let write = || {
            *self.count.lock().unwrap() += 1;
            self.readable.notify_one();
        };
        // With the fault, the thread that writes does not read what it wrote after the owner has lowered the signal.
        self.level.raise(write, || {
            if !seeded(Fault::Own) {
                self.read()
            }
        });
    }

    fn lower(&self) {
        self.level.lower(|| self.read());
    }

    fn read(&self) {
        *self.count.lock().unwrap() = 0;
    }

    /// Sleep until the eventfd is readable. With `read`, the owner also reads it, as a thread does that waits for edges.
    fn sleep(&self, read: bool) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.readable.wait(count).unwrap();
        }
        if read {
            *count = 0;
        }
    }
}

/// Two threads publish a result each and raise the signal. The owner sleeps until it has found both. If a wake-up is lost, it sleeps for
/// ever, which the checker reports.
fn publish(read: bool) {
    let signal = Arc::new(Signal {
        level: Level::new(),
        count: Mutex::new(0),
        readable: Condvar::new(),
        published: Default::default(),
    });
    let threads = [0, 1].map(|result| {
        let signal = Arc::clone(&signal);
        thread::spawn(move || signal.publish_and_raise(result))
    });
    // The owner also looks for results when nothing has woken it.
    while {
        signal.lower();
        !signal.published.iter().all(|published| published.load(Ordering::Relaxed))
    } {
        signal.sleep(read);
        thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    if !read {
        // No thread is left that writes, so the signal can be lowered.
        signal.lower();
        assert_eq!(*signal.count.lock().unwrap(), 0, "the owner is woken for ever");
    }
}

#[test]
fn an_owner_that_lowers_the_signal_misses_no_result() {
    explore(2, || publish(false));
}

/// If `Level::lower` returns although the state has become `RAISED` meanwhile, no thread writes the eventfd again.
#[test]
fn an_owner_that_waits_for_edges_misses_no_result() {
    explore(2, || publish(true));
}

/// The owner has lowered a signal whose eventfd was not written yet, and the write comes after that.
#[test]
fn a_signal_that_is_lowered_while_it_is_written_is_found() {
    finds(Fault::Own, 2, || publish(false));
}

/// `AcqRel` in `Level::update` and `Acquire` in `lower`: the owner sees what was published.
#[test]
fn a_signal_that_publishes_nothing_is_found() {
    finds(Fault::RelaxedStores, 2, || publish(false));
    finds(Fault::RelaxedLoads, 2, || publish(false));
}
