//! Rings that take only the operations of this engine, on registered files alone.
//!
//! A filter of system calls does not see the operations of a ring: with a ring, a thread that may not open files could have the kernel open
//! them. Restrictions (Linux 5.10, io_uring_register(2)) hold for the life of the ring, and nothing removes them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::{IoUring, Submitter, opcode};
use rustix::io::Errno;

/// Rings that are made from now on are restricted.
static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// include/uapi/linux/io_uring.h: calls of io_uring_register that the engine makes later.
const IORING_UNREGISTER_FILES: u8 = 3;
const IORING_REGISTER_EVENTFD: u8 = 4;

pub(super) fn wanted() -> bool {
    RESTRICTED.load(Ordering::Relaxed)
}

pub(super) fn enable() -> Result<(), Errno> {
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    // Without io_uring there are no rings to restrict.
    if IoUring::new(1).is_err() {
        return Ok(());
    }
    let ring: IoUring = IoUring::builder().setup_r_disabled().build(1).map_err(errno)?;
    restrict(&ring.submitter()).map_err(errno)?;
    RESTRICTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Restrict a ring that was made disabled and has its files, and enable it.
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    use io_uring::{squeue, types};

    use super::*;
    use crate::host::backing::{Access, BackingFile};
    use crate::queue::engine::uring::Uring;

    /// The result of one operation by a ring.
    #[track_caller]
    fn result(engine: &mut Uring, entry: squeue::Entry) -> i32 {
        let ring = engine.ring.as_mut().unwrap();
        // SAFETY: what the entries here point to is static, or lives in the test until this returns.
        unsafe { ring.submission().push(&entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    }

    #[test]
    fn a_restricted_ring_transfers_registered_files_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, [7; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        let open = || Arc::new(BackingFile::open(&path, Access::READ_ONLY).unwrap());
        let mut data = [0u8; 512];
        for restricted in [false, true] {
            let mut engine = Uring::with_setup(&[open()], 8, true, restricted).unwrap();
            let denied = |result: i32| if restricted { result == -libc::EACCES } else { result >= 0 };
            let opens = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
            assert!(denied(result(&mut engine, opens)), "OPENAT");
            assert!(denied(result(&mut engine, opcode::Nop::new().build())), "NOP");
            let plain = opcode::Read::new(types::Fd(file.as_raw_fd()), data.as_mut_ptr(), 512).build();
            assert!(denied(result(&mut engine, plain)), "READ of a descriptor");
            let fixed = opcode::Read::new(types::Fixed(0), data.as_mut_ptr(), 512).build();
            assert_eq!((result(&mut engine, fixed), data), (512, [7; 512]));
            let more = engine.ring.as_ref().unwrap().submitter().register_files_sparse(8);
            // There are files already, unless the call is refused before.
            let expected = if restricted { libc::EACCES } else { libc::EBUSY };
            assert_eq!(more.unwrap_err().raw_os_error(), Some(expected));
        }
    }
}
