//! Linux calls that neither the standard library nor rustix has: ioctls of block devices, cloning of file ranges, early
//! writeback, and open-file-description locks; and the time-stamp counter, to measure the time spent in system calls.
#![allow(
    unsafe_code,
    reason = "ioctl(2) and fcntl(2) with their argument structures, sync_file_range(2), RDTSC"
)]

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::contract::iobuf::IoBuf;

/// `BLKDISCARD`, include/uapi/linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `BLKZEROOUT`, include/uapi/linux/fs.h: `_IO(0x12, 127)`.
const BLKZEROOUT: libc::Ioctl = 0x127f;

/// Discard a range of a block device.
pub(crate) fn blkdiscard(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    range_ioctl(file, BLKDISCARD, offset, len)
}

/// Zero a range of a block device by the fastest method that keeps it allocated.
pub(crate) fn blkzeroout(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    range_ioctl(file, BLKZEROOUT, offset, len)
}

fn range_ioctl(file: &File, request: libc::Ioctl, offset: u64, len: u64) -> Result<(), Errno> {
    let range: [u64; 2] = [offset, len];
    // SAFETY: both requests read two u64 and keep no pointer.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, range.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Clone a range of `from` to `to`. Both must be on one file system; offsets and length must be multiples of its block
/// size.
pub(crate) fn clone_range(from: &File, offset: u64, len: u64, to: &File, at: u64) -> Result<(), Errno> {
    let range = libc::file_clone_range {
        src_fd: i64::from(from.as_raw_fd()),
        src_offset: offset,
        src_length: len,
        dest_offset: at,
    };
    // SAFETY: FICLONERANGE reads the structure and keeps no pointer.
    let result = unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Start writeback of a range without waiting for its end.
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(Errno::INVAL);
    };
    // SAFETY: the call takes integers alone.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Lock types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    None,
    Shared,
}

/// Set or clear a lock on a range of the file for this open file description. Does not wait. An empty range reaches to
/// the end of any file.
pub(crate) fn ofd_lock(file: &File, lock: Lock, bytes: Range<u64>) -> Result<(), Errno> {
    let kind = match lock {
        Lock::None => libc::F_UNLCK,
        Lock::Shared => libc::F_RDLCK,
    };
    ofd(file, libc::F_OFD_SETLK, kind, bytes).map(drop)
}

/// Whether another open file description holds a lock on one of these bytes.
pub(crate) fn ofd_is_locked(file: &File, bytes: Range<u64>) -> Result<bool, Errno> {
    Ok(ofd(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)? != libc::F_UNLCK)
}

/// Calls fcntl. Returns the lock type that the kernel left in the structure.
fn ofd(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    bytes: Range<u64>,
) -> Result<libc::c_int, Errno> {
    // SAFETY: `flock` is plain integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = i64::try_from(bytes.start).map_err(|_| Errno::INVAL)?;
    lock.l_len = i64::try_from(bytes.end.saturating_sub(bytes.start)).map_err(|_| Errno::INVAL)?;
    // SAFETY: both commands read and write the structure and keep no pointer.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == 0 { Ok(lock.l_type.into()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// How a transfer reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RwMode {
    Read,
    /// Read from the page cache alone (`RWF_NOWAIT`). Fails with [`Errno::AGAIN`] if it has no data of the range, and with
    /// [`Errno::OPNOTSUPP`] on file systems that cannot tell.
    ReadCached,
    Write,
    /// With `RWF_DSYNC`.
    WriteThrough,
}

/// One preadv, preadv2, pwritev or pwritev2. Returns the number of bytes moved.
pub(crate) fn transfer(
    fd: BorrowedFd<'_>,
    bufs: &[IoBuf],
    offset: u64,
    mode: RwMode,
) -> Result<usize, Errno> {
    let iovecs = IoBuf::as_iovecs(bufs);
    let count = i32::try_from(iovecs.len()).map_err(|_| Errno::INVAL)?;
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let fd = fd.as_raw_fd();
    // SAFETY: the iovecs are a slice of `count`. The memory that they point to is valid until the request that carries
    // them has been reaped (the promise of `IoBuf::new`); the request is not reaped before this call returns.
    let moved = unsafe {
        match mode {
            RwMode::Read => libc::preadv(fd, iovecs.as_ptr(), count, offset),
            RwMode::ReadCached => libc::preadv2(fd, iovecs.as_ptr(), count, offset, libc::RWF_NOWAIT),
            RwMode::Write => libc::pwritev(fd, iovecs.as_ptr(), count, offset),
            RwMode::WriteThrough => libc::pwritev2(fd, iovecs.as_ptr(), count, offset, libc::RWF_DSYNC),
        }
    };
    usize::try_from(moved).map_err(|_| last_error())
}

/// The time-stamp counter; on machines other than x86-64 nanoseconds of the monotonic clock.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 and reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The time-stamp counter; on machines other than x86-64 nanoseconds of the monotonic clock.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tsc_tests {
    #[test]
    fn ticks_advance() {
        let before = super::ticks();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(super::ticks() > before);
    }
}
