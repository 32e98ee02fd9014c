//! Signals a client's eventfd without ever blocking.
//!
//! The client shares the open file description of its eventfd, and `O_NONBLOCK` is a flag of that: the client can clear the
//! flag and fill the counter at any moment, and a `write` then sleeps until the client reads. Polling first does not help: the
//! client may fill the counter between `poll` and `write`, and the kernel has no `RWF_NOWAIT` for writes to an eventfd (6.18).
//!
//! The kernel's own `eventfd_signal` adds 1 without ever sleeping, whatever the flags are. io_uring calls it for each
//! completion where an eventfd is registered. So each notifier has a ring of one entry, and a signal is a no-op
//! request. Registering a descriptor that is not an eventfd fails.
//!
//! ```text
//! signal -> io_uring_enter(no-op) -> completion -> eventfd_signal
//!        -> rung, unpark -> thread -> write          where io_uring is not available
//! ```
//!
//! The client can block the thread for any time; nothing waits for it. The number of threads of all servers of the process is bounded
//! ([`THREADS`]).
#![allow(unsafe_code, reason = "requests to io_uring")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};
use paradisk_disk_formats::{ThreadKind, make_ring, rings_are_restricted, spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, readlinkat};
use rustix::io::{Errno, ReadWriteFlags};

/// Maximum number of threads, including those that clients have blocked.
const THREADS: usize = 128;
/// Tries to submit a no-op before the thread takes over.
const TRIES: usize = 3;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Signals one eventfd.
pub(crate) struct Notifier(Method);

enum Method {
    Ring(Box<IoUring>, OwnedFd),
    Thread(Writer),
}

impl Notifier {
    /// For an eventfd of a client.
    ///
    /// # Errors
    /// `EINVAL`: it is not an eventfd. Other errors: the host can make neither a ring nor a thread.
    pub(crate) fn new(event: OwnedFd) -> io::Result<Self> {
        // The kernel's reference to the eventfd outlives this copy.
        let copy = event.try_clone()?;
        match make_ring(move || ring(copy.as_fd()).map_err(|error| errno(&error))) {
            Ok(ring) => Ok(Self(Method::Ring(Box::new(ring), event))),
            Err(Errno::INVAL) => Err(Errno::INVAL.into()),
            Err(_) => {
                require_eventfd(event.as_fd())?;
                Writer::start(event).map(|writer| Self(Method::Thread(writer)))
            }
        }
    }

    /// Add 1 to the counter. A full counter stays as it is: it is a signal that the client has not read yet.
    #[inline]
    pub(crate) fn signal(&mut self) {
        match &mut self.0 {
            Method::Ring(ring, event) => {
                if !submit(ring) {
                    let writer = event.try_clone().and_then(Writer::start);
                    self.take_over(writer);
                }
            }
            Method::Thread(writer) => writer.ring(),
        }
    }

    /// The kernel does not accept no-ops any more: use a thread.
    #[cold]
    fn take_over(&mut self, writer: io::Result<Writer>) {
        if let Ok(writer) = writer {
            writer.ring();
            self.0 = Method::Thread(writer);
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A ring that signals `event` with each completion.
fn ring(event: BorrowedFd<'_>) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    let restricted = rings_are_restricted();
    if restricted {
        builder.setup_r_disabled();
    }
    let ring: IoUring = builder.build(1)?;
    ring.submitter().register_eventfd(event.as_raw_fd())?;
    if restricted {
        ring.submitter().register_restrictions(&mut [Restriction::sqe_op(opcode::Nop::CODE)])?;
        ring.submitter().register_enable_rings()?;
    }
    Ok(ring)
}

/// Submit a no-op. False: the kernel did not accept it.
#[inline]
fn submit(ring: &mut IoUring) -> bool {
    // SAFETY: a no-op refers to no memory and no descriptor.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    // Full: the entry of a failed submission is still there, and is submitted now.
    let _ = pushed;
    let submitted = (0..TRIES).any(|_| ring.submit().is_ok());
    // Drop the completion, to free its entry for the next one.
    ring.completion().for_each(drop);
    submitted
}

/// A thread that writes to the eventfd, and may sleep in that write.
struct Writer {
    shared: Arc<Shared>,
    thread: Thread,
    /// A duplicate of the eventfd.
    event: OwnedFd,
}

#[derive(Default)]
struct Shared {
    rung: AtomicBool,
    /// The thread is in `write`, perhaps asleep there.
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
        let thread = spawn(ThreadKind::Notifier, "notifier", write)?;
        Ok(Self { shared, thread: thread.thread().clone(), event: theirs_too })
    }

    fn ring(&self) {
        self.shared.rung.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The thread is not joined: it may be blocked.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if self.shared.writing.load(Ordering::SeqCst) {
            // Reading the counter wakes a write that sleeps. Reads of eventfds, unlike writes, can be made non-blocking.
            let mut counter = [0; 8];
            let buffers = &mut [IoSliceMut::new(&mut counter)];
            let _ = rustix::io::preadv2(&self.event, buffers, u64::MAX, ReadWriteFlags::NOWAIT);
        }
    }
}

impl Shared {
    fn write_to(&self, event: &OwnedFd) {
        loop {
            // `ended` is loaded before `rung`, so that a signal from before the drop is not lost.
            let ended = self.ended.load(Ordering::SeqCst);
            if self.rung.swap(false, Ordering::Acquire) {
                self.writing.store(true, Ordering::SeqCst);
                // The writer may have been dropped before `writing` was set: then nothing reads the counter to wake this thread. A full
                // counter is a signal already.
                if self.ended.load(Ordering::SeqCst) && is_full(event) {
                    return;
                }
                let write = || rustix::io::retry_on_intr(|| rustix::io::write(event, &1u64.to_ne_bytes()));
                let _ = write();
                self.writing.store(false, Ordering::SeqCst);
                if self.ended.load(Ordering::SeqCst) {
                    // The counter may have been read to wake this thread, with the signal in it: repeat it, but never sleep again.
                    if !is_full(event) {
                        let _ = write();
                    }
                    return;
                }
            } else if ended {
                return;
            } else {
                thread::park();
            }
        }
    }
}

/// Whether a write would sleep.
fn is_full(event: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(event, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// One of [`RUNNING`].
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Refuse a descriptor of a client that is not an eventfd: `poll` and epoll of other files may run code of the client (FUSE).
///
/// # Errors
/// `EINVAL`: it is not an eventfd, or its type cannot be determined.
pub(crate) fn require_eventfd(event: BorrowedFd<'_>) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", event.as_raw_fd());
    let is_eventfd = match readlinkat(CWD, path, Vec::new()) {
        // Paths of files have a slash, so no file has this name.
        Ok(name) => name.as_bytes() == b"anon_inode:[eventfd]",
        // Without /proc: registering it with io_uring fails for other files.
        Err(_) => ring(event).is_ok(),
    };
    if is_eventfd { Ok(()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    #[expect(clippy::disallowed_types, reason = "tests that count threads take turns")]
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    use super::*;

    /// [`RUNNING`] is one for the process, and so for all tests.
    #[expect(clippy::disallowed_types, reason = "tests that count threads take turns")]
    static TURN: Mutex<()> = Mutex::new(());

    fn turn() -> MutexGuard<'static, ()> {
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until no thread of a writer is left.
    fn all_end() {
        let begin = Instant::now();
        while RUNNING.load(Ordering::Relaxed) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "a thread is left");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// An eventfd to which writes sleep.
    fn full() -> OwnedFd {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event
    }

    /// A notifier with a ring, and one with a thread.
    fn both(event: &OwnedFd) -> [Notifier; 2] {
        let writer = Writer::start(event.try_clone().unwrap()).unwrap();
        [Notifier::new(event.try_clone().unwrap()).unwrap(), Notifier(Method::Thread(writer))]
    }

    /// The counter, once it is not 0. Resets it.
    fn counted(event: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        read(event, &mut value).unwrap();
        u64::from_ne_bytes(value)
    }

    #[test]
    fn each_signal_is_seen() {
        let _turn = turn();
        // The eventfd blocks: if a signal is lost, the read never returns.
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
        let _turn = turn();
        for way in 0..2 {
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let [mut ring, mut thread] = both(&event);
            write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            for _ in 0..100 {
                if way == 0 { ring.signal() } else { thread.signal() }
            }
            drop((ring, thread));
            // If the thread was blocked in its write, a read of the counter has woken it. Then the thread has written.
            assert!(counted(&event) > 0);
        }
    }

    /// A client that never reads does not occupy a thread for ever.
    #[test]
    fn a_thread_that_sleeps_ends_with_its_writer() {
        let _turn = turn();
        let event = full();
        let writer = Writer::start(event.try_clone().unwrap()).unwrap();
        writer.ring();
        while !writer.shared.writing.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        drop(writer);
        all_end();
        assert!(counted(&event) > 0, "the client is signalled all the same");
    }

    /// The writer is dropped after its thread has taken the signal, and before the thread has said that it writes.
    #[test]
    fn a_thread_that_is_told_late_does_not_sleep() {
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let shared = Shared::default();
            shared.rung.store(true, Ordering::SeqCst);
            shared.ended.store(true, Ordering::SeqCst);
            shared.write_to(&full());
            let empty = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            shared.rung.store(true, Ordering::SeqCst);
            shared.write_to(&empty);
            sender.send(counted(&empty))
        });
        let written = receiver.recv_timeout(Duration::from_secs(60)).expect("the thread sleeps");
        assert_eq!(written, 2, "and once more, as the first may have been read to wake it");
    }

    /// The counter is read to wake the thread, and the signal is in it again afterwards.
    #[test]
    fn a_signal_before_the_end_is_not_lost() {
        let _turn = turn();
        for _ in 0..1000 {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let writer = Writer::start(event.try_clone().unwrap()).unwrap();
            writer.ring();
            drop(writer);
            all_end();
            assert!(counted(&event) > 0);
        }
    }

    /// The thread checks for a signal at the same time as another thread makes one and drops the writer.
    #[test]
    fn a_signal_beside_the_end_is_not_lost() {
        const ROUNDS: usize = 50_000;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let all: Vec<Shared> = (0..ROUNDS).map(|_| Shared::default()).collect();
        let (begun, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wait_for = |count: &AtomicUsize, value: usize| {
            for turn in 1u32.. {
                if count.load(Ordering::Acquire) >= value {
                    return;
                }
                // The other thread may have no processor.
                if turn.is_multiple_of(1 << 12) { thread::yield_now() } else { std::hint::spin_loop() }
            }
        };
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for (shared, number) in all.iter().zip(1..) {
                    begun.store(number, Ordering::Release);
                    shared.write_to(&event);
                    over.store(number, Ordering::Release);
                }
            });
            let mut lost = 0;
            for (shared, number) in all.iter().zip(1..) {
                wait_for(&begun, number);
                (0..number % 64).for_each(|_| std::hint::spin_loop());
                shared.rung.store(true, Ordering::Release);
                shared.ended.store(true, Ordering::SeqCst);
                writer.thread().unpark();
                wait_for(&over, number);
                lost += usize::from(read(&event, &mut [0; 8]).is_err());
            }
            assert_eq!(lost, 0);
        });
    }

    #[test]
    fn threads_are_bounded_and_come_back() {
        let _turn = turn();
        all_end();
        let event = full();
        let start = || Writer::start(event.try_clone().unwrap());
        let writers: Vec<_> = (0..THREADS).map(|_| start().unwrap()).collect();
        assert_eq!(start().err().unwrap().raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
        writers.iter().for_each(Writer::ring);
        drop(writers);
        // Each thread that is woken adds 1 to the counter. Together they do not fill it, so none blocks again.
        all_end();
        start().unwrap();
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
