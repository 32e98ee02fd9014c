//! Signals a client's eventfd, and never blocks.
//!
//! The client shares the open file description of its eventfd, and `O_NONBLOCK` is a flag of that: the client can clear the
//! flag and fill the counter at any moment, and a `write` then sleeps until the client reads. Asking first does not help: the
//! client may fill the counter between `poll` and `write`, and the kernel knows no `RWF_NOWAIT` for writes to an eventfd (6.18).
//!
//! The kernel's own `eventfd_signal` adds 1 without ever sleeping, whatever the flags are. io_uring calls it for each
//! completion where an eventfd is registered. So each notifier has a ring of one entry, and a signal is a no-op
//! request. Registering fails for what is not an eventfd.
//!
//! ```text
//! signal -> io_uring_enter(no-op) -> completion -> eventfd_signal
//!        -> rung, unpark -> thread -> write          where the host refuses io_uring
//! ```
//!
//! The thread may be blocked for as long as the client likes; nobody waits for it. Their number is bounded over all servers
//! of the process ([`THREADS`]).
#![allow(unsafe_code, reason = "requests to io_uring")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};

use io_uring::{IoUring, opcode};
use rustix::fs::{CWD, readlinkat};
use rustix::io::{Errno, ReadWriteFlags};

/// Threads that signal, or that a client has blocked for good, at the most.
const THREADS: usize = 128;
/// Tries to submit a no-op before the thread takes over.
const TRIES: usize = 3;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Signals one eventfd.
pub(crate) struct Notifier(Way);

enum Way {
    Ring(Box<IoUring>, OwnedFd),
    Thread(Writer),
}

impl Notifier {
    /// For an eventfd of a client.
    ///
    /// # Errors
    /// `EINVAL`: it is no eventfd; or the host has nothing left to signal it with.
    pub(crate) fn new(event: OwnedFd) -> io::Result<Self> {
        match ring(event.as_fd()) {
            Ok(ring) => Ok(Self(Way::Ring(Box::new(ring), event))),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Err(error),
            Err(_) => {
                require_eventfd(event.as_fd())?;
                Writer::start(event).map(|writer| Self(Way::Thread(writer)))
            }
        }
    }

    /// Add 1 to the counter. A counter that is full stays full: the client has yet to see what is in it.
    #[inline]
    pub(crate) fn signal(&mut self) {
        match &mut self.0 {
            Way::Ring(ring, event) => {
                if !submit(ring) {
                    let writer = event.try_clone().and_then(Writer::start);
                    self.take_over(writer);
                }
            }
            Way::Thread(writer) => writer.ring(),
        }
    }

    /// The host does not let the ring be entered any more.
    #[cold]
    fn take_over(&mut self, writer: io::Result<Writer>) {
        if let Ok(writer) = writer {
            writer.ring();
            self.0 = Way::Thread(writer);
        }
    }
}

/// A ring that signals `event` with each completion.
fn ring(event: BorrowedFd<'_>) -> io::Result<IoUring> {
    let ring = IoUring::new(1)?;
    ring.submitter().register_eventfd(event.as_raw_fd())?;
    Ok(ring)
}

/// Have a no-op complete. False: the host does not take it.
#[inline]
fn submit(ring: &mut IoUring) -> bool {
    // SAFETY: a no-op names no memory and no descriptor.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    // Full: the one of a failed try is still there and serves.
    let _ = pushed;
    let submitted = (0..TRIES).any(|_| ring.submit().is_ok());
    // It has completed, and its completion means nothing: only the place for the next one is needed.
    ring.completion().for_each(drop);
    submitted
}

/// A thread that writes, and that may be blocked by that.
struct Writer {
    shared: Arc<Shared>,
    thread: Thread,
    /// The eventfd once more.
    event: OwnedFd,
}

#[derive(Default)]
struct Shared {
    rung: AtomicBool,
    /// The thread writes, or sleeps in that.
    writing: AtomicBool,
    ended: AtomicBool,
}

impl Writer {
    fn start(event: OwnedFd) -> io::Result<Self> {
        let theirs_too = event.try_clone()?;
        let shared = Arc::new(Shared::default());
        let running = RUNNING.fetch_add(1, Ordering::Relaxed);
        let counted = Counted;
        if running >= THREADS {
            return Err(Errno::AGAIN.into());
        }
        let theirs = Arc::clone(&shared);
        let write = move || {
            let _counted = counted;
            theirs.write_to(&event);
        };
        let thread = thread::Builder::new().name("notifier".to_owned()).spawn(write)?;
        Ok(Self { shared, thread: thread.thread().clone(), event: theirs_too })
    }

    fn ring(&self) {
        self.shared.rung.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The thread is not waited for: it may be blocked.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if self.shared.writing.load(Ordering::SeqCst) {
            // Reading the counter lets a write that sleeps end. Reads of eventfds, unlike writes, can be told not to block.
            let mut counter = [0; 8];
            let buffers = &mut [IoSliceMut::new(&mut counter)];
            let _ = rustix::io::preadv2(&self.event, buffers, u64::MAX, ReadWriteFlags::NOWAIT);
        }
    }
}

impl Shared {
    fn write_to(&self, event: &OwnedFd) {
        loop {
            if self.rung.swap(false, Ordering::Acquire) {
                self.writing.store(true, Ordering::SeqCst);
                // A full counter says what it is to say already.
                let write = || rustix::io::retry_on_intr(|| rustix::io::write(event, &1u64.to_ne_bytes()));
                let _ = write();
                self.writing.store(false, Ordering::SeqCst);
                if self.ended.load(Ordering::SeqCst) {
                    // What was written may have been read to wake this thread.
                    let _ = write();
                    return;
                }
            } else if self.ended.load(Ordering::Acquire) {
                return;
            } else {
                thread::park();
            }
        }
    }
}

/// One of [`RUNNING`].
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// That a descriptor of a client is an eventfd: `poll` and epoll of other files may run code of the client's (FUSE).
///
/// # Errors
/// `EINVAL`: it is none, or nobody can tell.
pub(crate) fn require_eventfd(event: BorrowedFd<'_>) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", event.as_raw_fd());
    let is_eventfd = match readlinkat(CWD, path, Vec::new()) {
        // Names of files have a slash, so no file is called like this.
        Ok(name) => name.as_bytes() == b"anon_inode:[eventfd]",
        // Without /proc, the kernel is asked by registering it.
        Err(_) => ring(event).is_ok(),
    };
    if is_eventfd { Ok(()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    use super::*;

    /// One of each way.
    fn both(event: &OwnedFd) -> [Notifier; 2] {
        let writer = Writer::start(event.try_clone().unwrap()).unwrap();
        [Notifier::new(event.try_clone().unwrap()).unwrap(), Notifier(Way::Thread(writer))]
    }

    /// What is in the counter, once there is something.
    fn counted(event: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        read(event, &mut value).unwrap();
        u64::from_ne_bytes(value)
    }

    #[test]
    fn each_signal_is_seen() {
        // Blocking: a signal that does not come is waited for in vain.
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for mut notifier in both(&event) {
            for _ in 0..1000 {
                notifier.signal();
                assert_eq!(counted(&event), 1);
            }
        }
    }

    /// `O_NONBLOCK` is not set and the counter is full: a write would sleep.
    #[test]
    fn a_full_counter_blocks_nobody() {
        for way in 0..2 {
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let [mut ring, mut thread] = both(&event);
            write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let begin = Instant::now();
            for _ in 0..100 {
                if way == 0 { ring.signal() } else { thread.signal() }
            }
            drop((ring, thread));
            assert!(begin.elapsed() < Duration::from_secs(5));
            assert!(counted(&event) >= u64::MAX - 1);
        }
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let (reader, writer) = std::io::pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        for fd in [OwnedFd::from(reader), writer.into(), file.into()] {
            assert_eq!(require_eventfd(fd.as_fd()), Err(Errno::INVAL));
            assert_eq!(ring(fd.as_fd()).err().unwrap().raw_os_error(), Some(Errno::INVAL.raw_os_error()));
            assert!(Notifier::new(fd).is_err());
        }
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(require_eventfd(event.as_fd()), Ok(()));
        assert!(ring(event.as_fd()).is_ok());
    }
}
