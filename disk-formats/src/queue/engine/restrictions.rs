//! Rings that take only the operations of this engine, on registered files alone.
//!
//! A filter of system calls does not see the operations of a ring: with a ring, a thread that may not open files could have the kernel open
//! them. Restrictions (Linux 5.10, io_uring_register(2)) hold for the life of the ring, and nothing removes them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Restrict each io_uring that this crate makes from now on, in the whole process: it transfers data of its disk, and does nothing else for
/// whoever can write to the ring. A filter of system calls does not see what rings do, so a process with such filters calls this first.
///
/// # Errors
/// The kernel has no restrictions (Linux before 5.10): nothing has changed.
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

/// Whether [`restrict_rings`] has restricted them.
#[must_use]
pub fn rings_are_restricted() -> bool {
    RESTRICTED.load(Ordering::Relaxed)
}

/// Restrict a ring that was made disabled and has its files, and enable it.
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
