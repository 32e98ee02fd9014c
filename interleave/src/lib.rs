//! Runs models of hand-overs between threads in many interleavings (docs/fuzzing.md, "Interleavings").
//!
//! A model includes the source of the hand-over a second time, with a checker's primitives in place of those of `std`:
//! - [`explore`]: loom runs it in all interleavings with few preemptions, and with all values that a load may return in C11's memory model.
//!   The primitives are [`sync`] and [`thread`].
//! - [`sample`]: shuttle runs it in many random interleavings, sequentially consistent. The primitives are those of [`shuttle`].
//!
//! [`finds`] and [`sample_finds`] run the model with a seeded [`Fault`], and demand that the checker reports it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use loom::thread;
pub use shuttle;

/// A fault that the primitives of a model have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Loads do not acquire.
    RelaxedLoads,
    /// Stores and the write half of read-modify-write operations do not release.
    RelaxedStores,
    /// Fences have no effect.
    NoFences,
    /// A fault of the model's own primitives.
    Own,
    /// Another one.
    OwnToo,
}

thread_local! {
    // Both checkers run all threads of a model on the thread of the test.
    static SEEDED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Whether the model runs with this fault.
#[must_use]
pub fn seeded(fault: Fault) -> bool {
    SEEDED.get() == Some(fault)
}

/// Run a model by loom in all interleavings with at most `preemptions` preemptions.
///
/// # Panics
/// An assertion of the model fails, or all its threads are blocked.
pub fn explore(preemptions: usize, model: fn()) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(preemptions);
    checker.max_branches = 20_000;
    checker.check(model);
}

/// As [`explore`], with a seeded fault.
///
/// # Panics
/// The checker does not report it.
pub fn finds(fault: Fault, preemptions: usize, model: fn()) {
    finds_by(fault, || explore(preemptions, model));
}

/// Run a model by shuttle in this many random interleavings.
///
/// # Panics
/// An assertion of the model fails, or all its threads are blocked.
pub fn sample(interleavings: usize, model: fn()) {
    let mut config = shuttle::Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(1, interleavings);
    shuttle::Runner::new(scheduler, config).run(model);
}

/// As [`sample`], with a seeded fault.
///
/// # Panics
/// The checker does not report it.
pub fn sample_finds(fault: Fault, interleavings: usize, model: fn()) {
    finds_by(fault, || sample(interleavings, model));
}

/// Run any check of a model with a seeded fault.
///
/// # Panics
/// `check` does not panic.
pub fn finds_by(fault: Fault, check: impl FnOnce()) {
    SEEDED.set(Some(fault));
    let found = catch_unwind(AssertUnwindSafe(check));
    SEEDED.set(None);
    let Err(panic) = found else { panic!("the checker does not find {fault:?}") };
    let message =
        panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let message = message.unwrap_or_default();
    // The limit of the checker is no finding.
    assert!(!message.contains("maximum number of branches"), "{fault:?}: {message}");
}

/// loom's primitives with the names of `std::sync`.
#[allow(missing_docs, reason = "as those of `std::sync`")]
pub mod sync {
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
    pub use std::sync::{Arc, OnceLock, PoisonError};

    pub mod atomic {
        pub use std::sync::atomic::Ordering;

        use super::super::{Fault, seeded};

        const fn without_acquire(order: Ordering) -> Ordering {
            match order {
                Ordering::Acquire | Ordering::Relaxed => Ordering::Relaxed,
                _ => Ordering::Release,
            }
        }

        const fn without_release(order: Ordering) -> Ordering {
            match order {
                Ordering::Release | Ordering::Relaxed => Ordering::Relaxed,
                _ => Ordering::Acquire,
            }
        }

        fn load(order: Ordering) -> Ordering {
            if seeded(Fault::RelaxedLoads) { Ordering::Relaxed } else { order }
        }

        fn store(order: Ordering) -> Ordering {
            if seeded(Fault::RelaxedStores) { Ordering::Relaxed } else { order }
        }

        fn update(order: Ordering) -> Ordering {
            let order = if seeded(Fault::RelaxedLoads) { without_acquire(order) } else { order };
            if seeded(Fault::RelaxedStores) { without_release(order) } else { order }
        }

        pub fn fence(order: Ordering) {
            if !seeded(Fault::NoFences) {
                loom::sync::atomic::fence(order);
            }
        }

        macro_rules! atomic {
            ($name:ident, $value:ty) => {
                #[derive(Debug)]
                pub struct $name(loom::sync::atomic::$name);

                impl Default for $name {
                    fn default() -> Self {
                        Self::new(<$value>::default())
                    }
                }

                impl $name {
                    pub fn new(value: $value) -> Self {
                        Self(loom::sync::atomic::$name::new(value))
                    }

                    pub fn load(&self, order: Ordering) -> $value {
                        self.0.load(load(order))
                    }

                    pub fn store(&self, value: $value, order: Ordering) {
                        self.0.store(value, store(order));
                    }

                    pub fn swap(&self, value: $value, order: Ordering) -> $value {
                        self.0.swap(value, update(order))
                    }

                    pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                        self.0.fetch_and(value, update(order))
                    }

                    pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                        self.0.fetch_or(value, update(order))
                    }

                    pub fn compare_exchange_weak(
                        &self,
                        current: $value,
                        new: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        self.0.compare_exchange_weak(current, new, update(success), load(failure))
                    }
                }
            };
        }

        macro_rules! number {
            ($name:ident, $value:ty) => {
                atomic!($name, $value);

                impl $name {
                    pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                        self.0.fetch_add(value, update(order))
                    }

                    pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                        self.0.fetch_sub(value, update(order))
                    }

                    pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                        self.0.fetch_max(value, update(order))
                    }

                    pub fn fetch_update(
                        &self,
                        set: Ordering,
                        fetch: Ordering,
                        change: impl FnMut($value) -> Option<$value>,
                    ) -> Result<$value, $value> {
                        self.0.fetch_update(update(set), load(fetch), change)
                    }
                }
            };
        }

        atomic!(AtomicBool, bool);
        number!(AtomicU8, u8);
        number!(AtomicU32, u32);
        number!(AtomicU64, u64);
    }
}
