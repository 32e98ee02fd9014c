//! Which files of a client are mapped as its memory.
//!
//! An access to a mapped page waits until the file system has read it. A file system that a client controls (FUSE, a network) would so
//! stop the threads of the server for as long as the client wants. memfd, tmpfs and hugetlbfs do not wait for anybody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, fcntl_get_seals, statx};
use rustix::io::Errno;

use crate::notifier::require_eventfd;

/// Where the memory of clients may be: in a memfd, tmpfs, hugetlbfs, and what is [added](Self::add).
#[derive(Clone, Debug, Default)]
pub struct MemorySources(Vec<Source>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Regular files of this file system.
    FileSystem { major: u32, minor: u32 },
    /// This character device (device DAX).
    Device { major: u32, minor: u32 },
}

/// What a client has passed is not what the protocol expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Unexpected {
    /// It is not of an expected kind, or its kind cannot be determined without waiting for somebody.
    #[error(
        "the client has passed a file descriptor that is neither an eventfd nor shared memory in a memfd, tmpfs or hugetlbfs; \
         --client-memory names other file systems"
    )]
    Kind,
    /// The host's error.
    #[error(transparent)]
    Host(#[from] Errno),
}

impl MemorySources {
    /// Also map files on the file system that `path` is on, or the character device at `path`.
    ///
    /// # Errors
    /// There is nothing at the path.
    pub fn add(&mut self, path: &Path) -> io::Result<()> {
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE)?;
        self.0.push(Source::of(&found));
        Ok(())
    }

    /// Check, without waiting for anybody, that `fd` is an eventfd or a file that may be mapped.
    pub(crate) fn check(&self, fd: BorrowedFd<'_>) -> Result<(), Unexpected> {
        if self.is_memory(fd) || require_eventfd(fd).is_ok() { Ok(()) } else { Err(Unexpected::Kind) }
    }

    fn is_memory(&self, fd: BorrowedFd<'_>) -> bool {
        // Linux answers for files of tmpfs, which include memfds, and of hugetlbfs, and for no others.
        if fcntl_get_seals(fd).is_ok() {
            return true;
        }
        // DONT_SYNC: without asking the server or daemon of a file system.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        !self.0.is_empty()
            && statx(fd.as_fd(), "", flags, StatxFlags::TYPE)
                .is_ok_and(|found| self.0.contains(&Source::of(&found)))
    }
}

impl Source {
    fn of(found: &Statx) -> Self {
        match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::CharacterDevice => {
                Self::Device { major: found.stx_rdev_major, minor: found.stx_rdev_minor }
            }
            _ => Self::FileSystem { major: found.stx_dev_major, minor: found.stx_dev_minor },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn files_of_memory_are_taken_and_others_where_they_are_named() {
        let disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (reader, _writer) = io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let mut sources = MemorySources::default();
        let memory = memfd_create("m", MemfdFlags::CLOEXEC).unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let shm = tempfile::tempfile_in("/dev/shm").unwrap();
        for fd in [memory.as_fd(), event.as_fd(), shm.as_fd()] {
            assert_eq!(sources.check(fd), Ok(()));
        }
        for fd in [disk.as_fd(), reader.as_fd(), null.as_fd()] {
            assert_eq!(sources.check(fd), Err(Unexpected::Kind));
        }
        sources.add(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert_eq!(sources.check(disk.as_fd()), Ok(()));
        assert_eq!(sources.check(null.as_fd()), Err(Unexpected::Kind), "a device of another number");
        assert_eq!(sources.check(reader.as_fd()), Err(Unexpected::Kind));
        sources.add(Path::new("/dev/null")).unwrap();
        assert_eq!(sources.check(null.as_fd()), Ok(()));
        assert!(sources.add(Path::new("/does/not/exist")).is_err());
    }
}
