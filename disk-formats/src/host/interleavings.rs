//! Flushes that threads share, and their errors.

use interleave::sync::{Arc, Mutex};
use interleave::{Fault, explore, finds, thread};

use shared_flush::{SharedFlush, StickyFlush};

#[allow(dead_code, reason = "the models do not use everything")]
#[path = "shared_flush.rs"]
mod shared_flush;

mod sync {
    use interleave::sync as checked;
    use interleave::{Fault, seeded};

    pub(super) use checked::{Mutex, PoisonError};

    pub(super) mod atomic {
        use super::{Fault, checked, seeded};

        pub(in super::super) use checked::atomic::Ordering;

        /// With [`Fault::Own`], a thread takes the flush that had begun before its call for one that covers its writes.
        #[derive(Debug, Default)]
        pub(in super::super) struct AtomicU64(checked::atomic::AtomicU64);

        impl AtomicU64 {
            pub(in super::super) fn load(&self, order: Ordering) -> u64 {
                self.0.load(order).saturating_sub(seeded(Fault::Own).into())
            }

            pub(in super::super) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                self.0.fetch_add(value, order)
            }
        }
    }

    /// With [`Fault::OwnToo`], an error is forgotten after it was reported once, as the kernel forgets it.
    #[derive(Debug)]
    pub(super) struct OnceLock<T>(checked::OnceLock<T>);

    impl<T> OnceLock<T> {
        pub(super) const fn new() -> Self {
            Self(checked::OnceLock::new())
        }

        pub(super) fn get(&self) -> Option<&T> {
            self.0.get().filter(|_| !seeded(Fault::OwnToo))
        }

        pub(super) fn set(&self, value: T) -> Result<(), T> {
            self.0.set(value)
        }
    }
}

/// The kernel's view of a file, behind a lock of the kernel: a write or flush that comes later sees all that came earlier.
#[derive(Debug, Default)]
struct File {
    /// In the page cache, not on stable storage.
    dirty: [bool; 2],
    stable: [bool; 2],
    /// Writeback has failed: the next call reports the error, and what is dirty is lost.
    failed: bool,
}

impl File {
    fn fdatasync(&mut self) -> Result<(), ()> {
        let dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.failed) {
            return Err(());
        }
        for (stable, dirty) in self.stable.iter_mut().zip(dirty) {
            *stable |= dirty;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Model {
    shared: SharedFlush,
    sticky: StickyFlush<()>,
    file: Mutex<File>,
}

impl Model {
    fn write(&self, place: usize) {
        self.file.lock().unwrap().dirty[place] = true;
    }

    fn is_stable(&self, place: usize) -> bool {
        self.file.lock().unwrap().stable[place]
    }

    fn fdatasync(&self) -> Result<(), ()> {
        self.file.lock().unwrap().fdatasync()
    }
}

/// Three threads flush; two of them have written before.
fn flush_together() {
    let model = Arc::new(Model::default());
    let write = |model: &Model, place| {
        model.write(place);
        model.shared.run(|| model.fdatasync()).unwrap();
        assert!(model.is_stable(place), "a flush that returned Ok has missed a write");
    };
    let other = Arc::clone(&model);
    let other = thread::spawn(move || write(&other, 1));
    let third = Arc::clone(&model);
    let third = thread::spawn(move || third.shared.run(|| third.fdatasync()).unwrap());
    write(&model, 0);
    other.join().unwrap();
    third.join().unwrap();
}

/// Writeback has failed. Two threads write and flush; a third gets the kernel's only report by another call, and records it.
fn flush_after_an_error(reported_elsewhere: bool) {
    let model = Arc::new(Model::default());
    model.file.lock().unwrap().failed = true;
    let flush = |model: &Model| {
        model.sticky.run(|| {
            model.fdatasync().inspect_err(|()| {
                model.sticky.fail(());
            })
        })
    };
    if reported_elsewhere {
        // Dirty when writeback failed.
        model.write(1);
        model.fdatasync().unwrap_err();
    }
    let other = Arc::clone(&model);
    let other = thread::spawn(move || {
        if reported_elsewhere {
            other.sticky.fail(());
        } else {
            other.write(1);
        }
        assert_eq!(flush(&other), Err(()), "the error does not stick");
    });
    model.write(0);
    let flushed = flush(&model);
    assert!(flushed.is_err() || model.is_stable(0), "a flush that returned Ok has lost a write");
    assert!(flushed.is_err() || reported_elsewhere, "the error is lost between two flushes");
    other.join().unwrap();
    assert_eq!(flush(&model), Err(()), "the error does not stick");
}

/// The protection is `+ 1` in `SharedFlush::run`: a flush that had begun before the call may have missed the caller's writes.
#[test]
fn a_flush_covers_the_writes_that_completed_before_it() {
    explore(2, flush_together);
    finds(Fault::Own, 2, flush_together);
}

/// The protection is the error that `StickyFlush::fail` records.
#[test]
fn an_error_is_that_of_all_later_flushes() {
    explore(3, || flush_after_an_error(false));
    finds(Fault::OwnToo, 3, || flush_after_an_error(false));
}

/// The protection is the last `check` in `StickyFlush::run`.
#[test]
fn an_error_that_another_call_got_is_that_of_all_later_flushes() {
    explore(3, || flush_after_an_error(true));
    finds(Fault::OwnToo, 3, || flush_after_an_error(true));
}
