//! System calls that read and write file data, change files or directories, or flush them. All modules make these
//! calls through this module, except for the engine with io_uring (`queue/engine/uring.rs`).
//!
//! In tests a fault plan ([`faults`]) may answer calls for files below a test directory. Otherwise each function makes
//! the system call that its doc names, with the retries that its doc names.

pub(crate) mod backing;
#[cfg(test)]
pub(crate) mod crash;
#[cfg(test)]
pub(crate) mod effort;
pub(crate) mod memory;
pub(crate) mod passed;
pub(crate) mod shared_flush;
pub(crate) mod store;
pub(crate) mod sys;
pub(crate) mod threads;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
pub(crate) mod faults;
#[cfg(test)]
mod interleavings;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
// `shared_flush` takes its primitives from here; its models take those of a checker.
use std::sync;
use std::time::Duration;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, renameat_with};
use rustix::io::{Errno, retry_on_intr};

use crate::contract::iobuf::IoBuf;
use sys::RwMode;

/// Create a regular file that does not exist yet, open for reading and writing.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    #[cfg(test)]
    if let Some(plan) = faults::of_path(path) {
        return plan.create_new(path);
    }
    File::options().read(true).write(true).create_new(true).open(path)
}

/// pread(2), once.
pub(crate) fn read_at(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return Ok(plan.read(file, data, offset)?);
    }
    file.read_at(data, offset)
}

/// pwrite(2), once.
pub(crate) fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return Ok(plan.write(file, data, offset, false)?);
    }
    file.write_at(data, offset)
}

/// preadv(2), preadv2(2), pwritev(2) or pwritev2(2), once: as [`sys::transfer`].
pub(crate) fn transfer(
    fd: BorrowedFd<'_>,
    bufs: &[IoBuf],
    offset: u64,
    mode: RwMode,
) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(fd) {
        return match mode {
            RwMode::Read => plan.transfer(fd, bufs, offset, None),
            RwMode::ReadCached => Err(Errno::AGAIN),
            RwMode::Write => plan.transfer(fd, bufs, offset, Some(false)),
            RwMode::WriteThrough => plan.transfer(fd, bufs, offset, Some(true)),
        };
    }
    sys::transfer(fd, bufs, offset, mode)
}

/// Read until `data` is full. EINTR is retried.
///
/// # Errors
/// The host's; `UnexpectedEof` if the file ends before.
pub(crate) fn read_exact_at(file: &File, mut data: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match read_at(file, data, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => {
                data = data.get_mut(moved..).unwrap_or_default();
                offset += moved as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Write until `data` is written. EINTR is retried.
///
/// # Errors
/// The host's; `WriteZero` if a write returns 0.
pub(crate) fn write_all_at(file: &File, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match write_at(file, data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => {
                data = data.get(moved..).unwrap_or_default();
                offset += moved as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Pause before a change of the file. `false`: there is no pause, in tests that simulate faults, which change a file many
/// times in a second.
pub(crate) fn pause(file: &File, length: Duration) -> bool {
    #[cfg(test)]
    if faults::of_file(file).is_some() {
        return false;
    }
    #[cfg(not(test))]
    let _ = file;
    std::thread::sleep(length);
    true
}

/// fcntl(2) with F_OFD_SETLK, once: take a shared lock on a range, as [`sys::ofd_lock`].
pub(crate) fn lock(file: &File, bytes: Range<u64>) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return plan.lock(file, bytes);
    }
    sys::ofd_lock(file, sys::Lock::Shared, bytes)
}

/// ftruncate(2). EINTR is retried.
pub(crate) fn set_len(file: &File, size: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| {
        #[cfg(test)]
        if let Some(plan) = faults::of_file(file) {
            return plan.set_len(file, size);
        }
        rustix::fs::ftruncate(file, size)
    })?)
}

/// fallocate(2), once.
pub(crate) fn fallocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return plan.fallocate(file, flags, offset, len);
    }
    rustix::fs::fallocate(file, flags, offset, len)
}

/// FICLONERANGE, once: as [`sys::clone_range`].
pub(crate) fn clone_range(from: &File, offset: u64, len: u64, to: &File, at: u64) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(to) {
        return plan.clone_range(from, offset, len, to, at);
    }
    sys::clone_range(from, offset, len, to, at)
}

/// copy_file_range(2), once. Both offsets advance by the bytes that were copied.
pub(crate) fn copy_file_range(
    from: &File,
    offset: &mut u64,
    to: &File,
    at: &mut u64,
    len: usize,
) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(to) {
        return plan.copy_file_range(from, offset, to, at, len);
    }
    rustix::fs::copy_file_range(from, Some(offset), to, Some(at), len)
}

/// fdatasync(2), once.
pub(crate) fn fdatasync(file: &File) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return plan.sync(file);
    }
    rustix::fs::fdatasync(file)
}

/// sync_file_range(2) with SYNC_FILE_RANGE_WRITE, once: as [`sys::start_writeback`].
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return plan.start_writeback(file, offset, len);
    }
    sys::start_writeback(file, offset, len)
}

/// fsync(2). EINTR is retried.
pub(crate) fn fsync(file: &File) -> io::Result<()> {
    Ok(retry_on_intr(|| {
        #[cfg(test)]
        if let Some(plan) = faults::of_file(file) {
            return plan.sync(file);
        }
        rustix::fs::fsync(file)
    })?)
}

/// posix_fadvise(2) with POSIX_FADV_DONTNEED: evict the file's clean pages from the page cache.
pub(crate) fn drop_cache(file: &File) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_file(file) {
        return plan.drop_cache(file);
    }
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
}

/// fsync(2) of the directory at `folder`, once.
pub(crate) fn fsync_folder(folder: &Path) -> io::Result<()> {
    let opened = File::open(folder)?;
    #[cfg(test)]
    if let Some(plan) = faults::of_folder(folder) {
        return Ok(plan.sync_folder()?);
    }
    Ok(rustix::fs::fsync(opened)?)
}

/// Flush the directory of `path`, so that the creation or removal of the entry is on stable storage.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    loop {
        match fsync_folder(folder) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The file system does not support fsync of directories.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return Ok(()),
            done => return done,
        }
    }
}

/// renameat2(2) with RENAME_NOREPLACE, once.
pub(crate) fn rename_new(from: &Path, to: &Path) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(plan) = faults::of_path(to) {
        return plan.rename_new(from, to);
    }
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

/// link(2), once.
pub(crate) fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    if let Some(plan) = faults::of_path(to) {
        return plan.hard_link(from, to);
    }
    fs::hard_link(from, to)
}

/// unlink(2), once.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    if let Some(plan) = faults::of_path(path) {
        return plan.remove_file(path);
    }
    fs::remove_file(path)
}
