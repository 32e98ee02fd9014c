//! What a restricted ring does, and what it refuses.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use super::Uring;
use crate::host::backing::{Access, BackingFile};

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
        // EBUSY: the ring has files already. A restricted ring refuses the call before this check.
        let expected = if restricted { libc::EACCES } else { libc::EBUSY };
        assert_eq!(more.unwrap_err().raw_os_error(), Some(expected));
    }
}
