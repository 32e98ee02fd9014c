//! A wake-up for the queue's thread: an eventfd with a state that avoids redundant system calls. Many threads raise it,
//! one lowers it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Nothing is signalled.
const LOWERED: u8 = 0;
/// A thread is about to write the eventfd, or has just written it.
const WRITING: u8 = 1;
/// As [`WRITING`], and the signal has been raised or lowered since: the thread writes once more.
const WRITING_TWICE: u8 = 2;
/// The eventfd is written.
const RAISED: u8 = 3;

/// A level: it stays raised until it is lowered. Raising it again has no effect.
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

    /// The thread that lowers the signal afterwards sees everything that was published before this call.
    pub(crate) fn raise(&self) {
        // A state that stays the same is stored, too: `lower` then synchronizes with this call.
        let before = self.update(|state| match state {
            LOWERED => WRITING,
            RAISED => RAISED,
            _ => WRITING_TWICE,
        });
        if before != LOWERED {
            return;
        }
        // Until the state is `RAISED`, no other thread writes or lowers.
        while {
            // Fails only after 2^64 writes that nobody has read.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
            self.update(|state| if state == WRITING_TWICE { WRITING } else { RAISED }) == WRITING_TWICE
        } {}
    }

    /// Call this before looking for published results, not after. A signal that is being written stays raised: it is written once more, so
    /// that the owner wakes again, also one that has read the descriptor itself or waits for edges.
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

    /// The owner of a duplicate has read it before it lowers the signal.
    #[test]
    fn it_is_lowered_without_a_count() {
        let signal = Signal::new().unwrap();
        signal.raise();
        rustix::io::read(&signal, &mut [0; 8]).unwrap();
        signal.lower();
        signal.raise();
        assert!(readable(&signal, 0));
    }

    /// The owner may have read the first write already.
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

    /// Threads publish and raise; the owner reads the descriptor, lowers the signal and looks.
    #[test]
    fn an_owner_that_reads_the_descriptor_is_woken() {
        const ROUNDS: u32 = 20_000;
        let signal = Signal::new().unwrap();
        let published = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        published.fetch_add(1, Ordering::Relaxed);
                        signal.raise();
                    }
                });
            }
            let mut seen = 0;
            while seen < 2 * ROUNDS {
                assert!(readable(&signal, 60), "asleep after {seen} of {}", published.load(Ordering::SeqCst));
                let _ = rustix::io::read(&signal, &mut [0; 8]);
                signal.lower();
                seen += published.swap(0, Ordering::Relaxed);
            }
        });
    }

    /// Threads publish and raise, one lowers and looks. It never sleeps while there is something, and nothing is signalled in the end.
    #[test]
    fn no_wake_up_is_lost_and_none_is_left() {
        const ROUNDS: u32 = 20_000;
        let signal = Signal::new().unwrap();
        let published = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        published.fetch_add(1, Ordering::Relaxed);
                        signal.raise();
                    }
                });
            }
            let mut seen = 0;
            while seen < 3 * ROUNDS {
                assert!(readable(&signal, 60), "asleep after {seen} of {}", published.load(Ordering::SeqCst));
                signal.lower();
                seen += published.swap(0, Ordering::Relaxed);
            }
        });
        signal.lower();
        assert!(!readable(&signal, 0));
    }
}
