//! Rings in a child: those that a thread makes by itself, and those of disks, of which it has a second mapping to write anything to them.
#![allow(unsafe_code, reason = "entries of rings, and a ring that is mapped a second time")]

use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use io_uring::{IoUring, Parameters, opcode, squeue, types};
use paradisk_disk_formats::{
    Access, Completion, Disk, DiskQueue, FileDisk, IoBuf, Op, QueueConfig, Raw, Request,
};

/// The engine of a disk makes no smaller ring.
const ENTRIES: u32 = 8;
/// Bytes of the image.
pub(super) const SIZE: usize = 4096;
/// An entry that opens the file for reading.
fn open(path: &CString) -> squeue::Entry {
    opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).flags(libc::O_RDONLY).build()
}

fn name(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The result of one operation.
#[track_caller]
fn result(ring: &mut IoUring, entry: &squeue::Entry) -> i32 {
    // SAFETY: an entry here points to a path of its caller, which lives until this returns, or to nothing.
    unsafe { ring.submission().push(entry) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    ring.completion().next().unwrap().result()
}

/// Make a ring and open a file by it.
pub(super) fn open_by_a_ring_of_its_own(other: &Path) {
    let mut ring = IoUring::new(ENTRIES).unwrap();
    assert_eq!(result(&mut ring, &open(&name(&other.join("image")))), -libc::EACCES);
}

/// A disk that is open, and what its rings look like.
pub(super) struct DiskOfRings {
    disk: FileDisk,
    image: PathBuf,
    layout: Parameters,
}

impl DiskOfRings {
    pub(super) fn open(image: &Path) -> Self {
        let format = Raw::open(image, Access::READ_ONLY).unwrap();
        let layout = IoUring::new(ENTRIES).unwrap().params().clone();
        Self { disk: FileDisk::new(Arc::new(format)), image: image.to_owned(), layout }
    }

    /// A queue of the disk.
    pub(super) fn queue(&self) -> Ringed {
        let queue = self.disk.queue(&QueueConfig { depth: ENTRIES, ..QueueConfig::default() }).unwrap();
        assert_eq!(queue.engine(), "io_uring");
        let ring = queue.event().try_clone_to_owned().unwrap().into_raw_fd();
        // SAFETY: the queue sleeps on its ring, which has as many entries as the ring of this layout.
        let ring = unsafe { IoUring::from_fd(ring, self.layout.clone()) }.unwrap();
        Ringed { ring, queue, image: self.image.clone() }
    }
}

/// A queue and a second mapping of its ring.
pub(super) struct Ringed {
    ring: IoUring,
    queue: Box<dyn DiskQueue>,
    image: PathBuf,
}

impl Ringed {
    /// The queue reads its disk by the ring, and the ring does nothing else. The path is granted, and sockets are not limited otherwise: only
    /// the restrictions of the ring refuse these operations.
    pub(super) fn only_transfers(mut self) {
        let image = name(&self.image);
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        for (what, entry) in
            [("OPENAT", open(&image)), ("SOCKET", socket), ("NOP", opcode::Nop::new().build())]
        {
            assert_eq!(result(&mut self.ring, &entry), -libc::EACCES, "{what}");
        }
        let mut data = vec![0u8; SIZE];
        // SAFETY: the memory lives, and nothing refers to it, until the completion is reaped.
        let bufs = [unsafe { IoBuf::new(data.as_mut_ptr(), SIZE) }];
        let request = Request { tag: 1, op: Op::Read, offset: 0, len: SIZE as u64, bufs: &bufs };
        self.queue.push(&request).unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            self.queue.wait();
            self.queue.reap(&mut done);
        }
        assert_eq!(done, [Completion { tag: 1, result: Ok(()) }]);
        assert_eq!(data, [7; SIZE]);
    }
}
