//! A level-triggered wake-up for the queue's thread: an eventfd, and a state that avoids redundant system calls.
//!
//! Any thread may raise the signal after it has published a result. Only the owner, the queue's thread, lowers it. The owner lowers the
//! signal first and then looks for results, so it misses none.

mod level;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
// `level` takes its primitives from here; its model takes those of a checker.
use std::sync;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use level::Level;

/// The signal. It stays raised until the owner lowers it; raising a raised signal has no effect.
#[derive(Debug)]
pub(crate) struct Signal {
    fd: OwnedFd,
    level: Level,
}

impl Signal {
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, level: Level::new() })
    }

    /// Raise the signal. If the owner then calls [`lower`](Self::lower), it sees everything that was published before this call.
    pub(crate) fn raise(&self) {
        let write = || {
            // Fails only after 2^64 writes that nobody has read.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        };
        self.level.raise(write, || self.read());
    }

    /// Lower the signal. The owner must call this before it looks for published results, not after.
    pub(crate) fn lower(&self) {
        self.level.lower(|| self.read());
    }

    fn read(&self) {
        // Fails if nothing is written.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Whether the descriptor becomes readable within so many seconds.
    fn readable(signal: &Signal, seconds: i64) -> bool {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(signal, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_from_raise_to_lower() {
        let signal = Signal::new().unwrap();
        for _ in 0..3 {
            signal.lower();
            assert!(!readable(&signal, 0));
            signal.raise();
            signal.raise();
            assert!(readable(&signal, 0));
            signal.lower();
            assert!(!readable(&signal, 0));
        }
    }

    /// The owner has read the counter through a duplicate of the eventfd before it lowers the signal.
    #[test]
    fn it_is_lowered_without_a_count() {
        let signal = Signal::new().unwrap();
        signal.raise();
        rustix::io::read(&signal, &mut [0; 8]).unwrap();
        signal.lower();
        signal.raise();
        assert!(readable(&signal, 0));
    }

    /// The owner lowers the signal before the thread that writes the eventfd runs again: `before` it has written, or after that. Another
    /// thread may raise the signal `again` meanwhile.
    fn preempted(before: bool, again: bool) {
        let signal = Signal::new().unwrap();
        let writes = AtomicU32::new(0);
        let preempt = || {
            signal.lower();
            assert!(!readable(&signal, 0), "the owner does not sleep");
            if again && writes.load(Ordering::Relaxed) < 2 {
                signal.raise();
            }
        };
        let write = || {
            writes.fetch_add(1, Ordering::Relaxed);
            if before {
                preempt();
            }
            rustix::io::write(&signal.fd, &1u64.to_ne_bytes()).unwrap();
            if !before {
                preempt();
            }
        };
        signal.level.raise(write, || signal.read());
        assert!(!readable(&signal, 0), "before {before}, again {again}");
        assert_eq!(writes.load(Ordering::Relaxed), 1 + u32::from(again));
        signal.raise();
        assert!(readable(&signal, 0));
    }

    #[test]
    fn a_signal_is_lowered_while_the_thread_that_writes_it_is_preempted() {
        for before in [false, true] {
            for again in [false, true] {
                preempted(before, again);
            }
        }
    }

    /// `threads` publish and raise; the owner calls `wake`, lowers the signal and looks for results. The owner never sleeps while there are
    /// results.
    fn publish(threads: u32, wake: fn(&Signal)) -> Signal {
        const ROUNDS: u32 = 20_000;
        let signal = Signal::new().unwrap();
        let published = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        published.fetch_add(1, Ordering::Relaxed);
                        signal.raise();
                    }
                });
            }
            let mut seen = 0;
            while seen < threads * ROUNDS {
                assert!(readable(&signal, 60), "asleep after {seen} of {}", published.load(Ordering::SeqCst));
                wake(&signal);
                signal.lower();
                seen += published.swap(0, Ordering::Relaxed);
            }
        });
        signal
    }

    #[test]
    fn an_owner_that_reads_the_descriptor_is_woken() {
        publish(2, |signal| {
            let _ = rustix::io::read(signal, &mut [0; 8]);
        });
    }

    /// The signal is lowered in the end.
    #[test]
    fn no_wake_up_is_lost_and_none_is_left() {
        let signal = publish(3, |_| ());
        signal.lower();
        assert!(!readable(&signal, 0));
    }
}
