//! A level-triggered wake-up for the queue's thread: an eventfd, and a state that avoids redundant system calls.
//!
//! Any thread may raise the signal after it has published a result. Only the owner, the queue's thread, lowers it. The owner lowers the
//! signal first and then looks for results, so it misses none.
//!
//! ```text
//! LOWERED -raise-> WRITING -written-> RAISED -lower-> LOWERED
//!                    | ^
//!        raise, lower| |written        (the eventfd is written again)
//!                    v |
//!                WRITING_TWICE
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The signal is not raised; the eventfd's counter is 0.
const LOWERED: u8 = 0;
/// A thread in `raise` is about to write the eventfd, or has just written it. No other thread writes.
const WRITING: u8 = 1;
/// As [`WRITING`], and another thread has called `raise` or `lower` since: the writing thread writes once more.
const WRITING_TWICE: u8 = 2;
/// The eventfd is written, and no thread writes.
const RAISED: u8 = 3;

/// The signal. It stays raised until the owner lowers it; raising a raised signal has no effect.
#[derive(Debug)]
pub(crate) struct Signal {
    fd: OwnedFd,
    state: AtomicU8,
}

impl Signal {
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, state: AtomicU8::new(LOWERED) })
    }

    /// Raise the signal. If the owner then calls [`lower`](Self::lower), it sees everything that was published before this call.
    pub(crate) fn raise(&self) {
        // The state is stored even if it stays the same, so that `lower` synchronizes with this call.
        let before = self.update(|state| match state {
            LOWERED => WRITING,
            RAISED => RAISED,
            _ => WRITING_TWICE,
        });
        if before != LOWERED {
            return;
        }
        // Until the state is `RAISED`, no other thread writes or reads the eventfd here.
        while {
            // Fails only after 2^64 writes that nobody has read.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
            self.update(|state| if state == WRITING_TWICE { WRITING } else { RAISED }) == WRITING_TWICE
        } {}
    }

    /// Lower the signal. The owner must call this before it looks for published results, not after.
    ///
    /// While a thread writes the eventfd, the signal cannot be lowered: it stays raised, and the thread writes once more. So the owner
    /// wakes again, even if it has read the eventfd itself or waits for edges.
    pub(crate) fn lower(&self) {
        match self.state.load(Ordering::Acquire) {
            LOWERED => {}
            RAISED => {
                let _ = rustix::io::read(&self.fd, &mut [0; 8]);
                self.state.swap(LOWERED, Ordering::AcqRel);
            }
            _ => {
                self.update(|state| if state == WRITING { WRITING_TWICE } else { state });
            }
        }
    }

    /// Change the state, and return the one before.
    fn update(&self, change: impl Fn(u8) -> u8) -> u8 {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            match self.state.compare_exchange_weak(state, change(state), Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(before) => return before,
                Err(now) => state = now,
            }
        }
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
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

    /// The owner may already have read what was written first.
    #[test]
    fn a_signal_that_is_being_written_is_written_again() {
        for change in [Signal::raise, Signal::lower] {
            let signal = Signal::new().unwrap();
            signal.state.store(WRITING, Ordering::SeqCst);
            change(&signal);
            assert_eq!(signal.state.load(Ordering::SeqCst), WRITING_TWICE);
            assert!(!readable(&signal, 0), "the other thread writes");
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
