//! No wake-up is lost between the threads that raise a signal and its owner.

use std::sync::Arc;

use interleave::sync::atomic::{AtomicBool, Ordering};
use interleave::sync::{Condvar, Mutex};
use interleave::{Fault, explore, finds, thread};

use level::{Level, RAISED, WRITING};

#[path = "level.rs"]
mod level;

mod sync {
    pub(super) mod atomic {
        pub(in super::super) use interleave::sync::atomic::Ordering;

        use super::super::{RAISED, WRITING};
        use interleave::sync::atomic;
        use interleave::{Fault, seeded};

        /// With [`Fault::Own`], `lower` takes a signal that is being written for a raised one.
        #[derive(Debug)]
        pub(in super::super) struct AtomicU8(atomic::AtomicU8);

        impl AtomicU8 {
            pub(in super::super) fn new(value: u8) -> Self {
                Self(atomic::AtomicU8::new(value))
            }

            pub(in super::super) fn load(&self, order: Ordering) -> u8 {
                match self.0.load(order) {
                    WRITING if seeded(Fault::Own) && order == Ordering::Acquire => RAISED,
                    state => state,
                }
            }

            pub(in super::super) fn compare_exchange_weak(
                &self,
                current: u8,
                new: u8,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u8, u8> {
                self.0.compare_exchange_weak(current, new, success, failure)
            }
        }
    }
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
        self.level.raise(|| {
            *self.count.lock().unwrap() += 1;
            self.readable.notify_one();
        });
    }

    fn lower(&self) {
        self.level.lower(|| std::mem::take(&mut *self.count.lock().unwrap()) > 0);
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
    while {
        signal.sleep(read);
        signal.lower();
        !signal.published.iter().all(|published| published.load(Ordering::Relaxed))
    } {
        // A signal that is being written stays raised: let the other threads run.
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

/// Before the state `WRITING`, the owner lowered a signal whose eventfd was not written yet: the write came after that, and kept the owner
/// awake.
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
