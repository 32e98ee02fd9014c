//! How rings are made: restricted, on a thread of its own. The kernel accepts only the operations of this engine on a restricted ring, and only on
//! registered files.
//!
//! A filter of system calls does not see the operations of a ring: with a ring, a thread that may not open files could have the kernel open
//! them. Restrictions (Linux 5.10, io_uring_register(2)) hold for the life of the ring and cannot be removed.
//!
//! With a ring that it makes itself, a thread could still have the kernel do what its filter refuses. So a thread of its own makes all rings of
//! the process, and restricts each ring before any other thread has it. The threads that use rings need no system call that makes one.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};

use rustix::io::Errno;

use crate::host::threads::{ThreadKind, spawn};

#[cfg(feature = "io-uring")]
use io_uring::register::Restriction;
#[cfg(feature = "io-uring")]
use io_uring::squeue::Flags;
#[cfg(feature = "io-uring")]
use io_uring::{IoUring, Submitter, opcode};

/// Rings that are made from now on are restricted.
static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// include/uapi/linux/io_uring.h: calls of io_uring_register that the engine makes later.
#[cfg(feature = "io-uring")]
const IORING_UNREGISTER_FILES: u8 = 3;
#[cfg(feature = "io-uring")]
const IORING_REGISTER_EVENTFD: u8 = 4;

/// Restrict each io_uring that this crate creates from now on, in the whole process. A restricted io_uring can only transfer data of its
/// disk, whatever is written to its submission ring. System-call filters do not see the operations of a ring, so a process calls this
/// before it installs such filters.
///
/// # Errors
/// The kernel does not support restrictions (Linux before 5.10). Rings are then not restricted.
pub fn restrict_rings() -> io::Result<()> {
    #[cfg(feature = "io-uring")]
    {
        // Without io_uring there are no rings to restrict.
        if IoUring::new(1).is_err() {
            return Ok(());
        }
        let ring: IoUring = IoUring::builder().setup_r_disabled().build(1)?;
        restrict(&ring.submitter())?;
        RESTRICTED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether rings are restricted: [`restrict_rings`] has succeeded, and the host has io_uring.
#[must_use]
pub fn rings_are_restricted() -> bool {
    RESTRICTED.load(Ordering::Relaxed)
}

/// Restrict and enable a ring that was created disabled and whose files are registered.
#[cfg(feature = "io-uring")]
pub(super) fn restrict(submitter: &Submitter<'_>) -> io::Result<()> {
    let operations = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::PollAdd::CODE,
    ];
    let registers = [IORING_UNREGISTER_FILES, IORING_REGISTER_EVENTFD];
    let mut restrictions: Vec<_> = operations.into_iter().map(Restriction::sqe_op).collect();
    restrictions.extend(registers.into_iter().map(Restriction::register_op));
    restrictions.push(Restriction::sqe_flags_required(Flags::FIXED_FILE.bits()));
    submitter.register_restrictions(&mut restrictions)?;
    submitter.register_enable_rings()
}

type Order = Box<dyn FnOnce() + Send>;

static MAKER: OnceLock<Sender<Order>> = OnceLock::new();

/// Have a thread of its own ([`ThreadKind::RingMaker`]) run all that is passed to [`make_ring`] from now on, in the whole process.
///
/// # Errors
/// The host's, if it refuses the thread.
pub fn start_ring_maker() -> io::Result<()> {
    if MAKER.get().is_some() {
        return Ok(());
    }
    let (orders, received) = mpsc::channel::<Order>();
    spawn(ThreadKind::RingMaker, "ring-maker", move || received.into_iter().for_each(|order| order()))?;
    // If another thread was faster, the maker ends, because nobody has its channel.
    let _ = MAKER.set(orders);
    Ok(())
}

/// Make an io_uring by `make`: on the thread of [`start_ring_maker`] if there is one, else on this thread. All rings of this crate are made
/// so.
///
/// # Errors
/// The host's; ECANCELED if the thread has ended.
pub fn make_ring<T: Send + 'static>(
    make: impl FnOnce() -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    let Some(maker) = MAKER.get() else { return make() };
    let (sender, made) = mpsc::sync_channel(1);
    let order = move || {
        // The receiver waits.
        let _ = sender.send(make());
    };
    maker.send(Box::new(order)).map_err(|_| Errno::CANCELED)?;
    made.recv().unwrap_or(Err(Errno::CANCELED))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Other tests of this process then use the maker, too, which changes nothing for them.
    #[test]
    fn rings_are_made_on_one_thread_from_its_start_on() {
        let name = || Ok(thread::current().name().map(str::to_owned));
        start_ring_maker().unwrap();
        start_ring_maker().unwrap();
        let names = (0..3).map(|_| thread::spawn(move || make_ring(name).unwrap()).join().unwrap());
        assert!(names.flatten().all(|name| name == "ring-maker"));
        assert_eq!(make_ring(|| Err::<(), _>(Errno::NOMEM)), Err(Errno::NOMEM));
    }
}
