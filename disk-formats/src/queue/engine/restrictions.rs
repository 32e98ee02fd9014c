//! Restricted rings: the kernel accepts only the operations of this engine, and only on registered files.
//!
//! A filter of system calls does not see the operations of a ring: with a ring, a thread that may not open files could have the kernel open
//! them. Restrictions (Linux 5.10, io_uring_register(2)) hold for the life of the ring and cannot be removed.

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
