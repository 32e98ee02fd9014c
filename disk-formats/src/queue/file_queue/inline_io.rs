//! Inline (blocking) I/O: transfers that the queue's own thread makes, if the owner allows the thread to block. The queue
//! makes those transfers inline that io_uring would pass to worker threads although they rarely wait. Waking a worker
//! costs several times as much as the copy.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::fstatfs;
use rustix::io::Errno;

use crate::contract::iobuf::IoBuf;
use crate::host::backing::BackingFile;
use crate::host::memory::page_size;
use crate::host::transfer;
use crate::map::format::Format;
use crate::queue::engine::{Direction, Ended, Transfer};

/// Maximum length in bytes. Larger transfers are left to worker threads, which run in parallel.
const MAX_INLINE: usize = 256 << 10;

/// File systems that write to the page cache and write back later. Others may send a write to a server at once.
const WRITE_BACK: [libc::__fsword_t; 4] =
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC, libc::TMPFS_MAGIC];

/// The inline transfers of a queue. There are none before [`allow`](Self::allow).
#[derive(Debug, Default)]
pub(super) struct Inline {
    /// For each file, which transfers are made inline.
    files: Vec<InlineIo>,
    ended: VecDeque<Ended>,
}

impl Inline {
    /// Allow inline transfers of these files from now on. `depth` is the maximum number of requests in flight.
    pub(super) fn allow(&mut self, files: &[Arc<BackingFile>], depth: usize) {
        self.files = files.iter().map(|file| InlineIo::of(file)).collect();
        self.ended.reserve(depth);
    }

    /// Make the transfer inline; `false` leaves it to the engine.
    #[inline]
    pub(super) fn transfer(&mut self, format: &dyn Format, wanted: &Transfer<'_>) -> bool {
        if let Some(inline) = self.files.get(wanted.file as usize)
            && let Some(file) = format.files().get(wanted.file as usize)
            && let Some(result) = inline.transfer(file, wanted)
        {
            self.ended.push_back((wanted.token, result));
            return true;
        }
        false
    }

    /// The next transfer that has ended. Inline transfers do not wake the queue.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Whether [`next`](Self::next) has returned all transfers.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// Drop the results of transfers that have ended.
    pub(super) fn clear(&mut self) {
        self.ended.clear();
    }
}

/// Which transfers of a file are made inline.
#[derive(Clone, Copy, Debug, Default)]
struct InlineIo {
    /// Writes of whole pages: a partial write may have to read its page first.
    writes: bool,
    reads: bool,
}

impl InlineIo {
    /// Writes to the page cache and reads of tmpfs are inline. Reads of other file systems are not: io_uring reads cached data without its
    /// workers, and a read of uncached data waits for the disk.
    fn of(file: &BackingFile) -> Self {
        if file.direct().is_some() || file.device().is_some() {
            return Self::default();
        }
        let magic = fstatfs(file.file()).map_or(0, |statfs| statfs.f_type);
        Self { writes: WRITE_BACK.contains(&magic), reads: magic == libc::TMPFS_MAGIC }
    }

    /// Make the transfer inline; `None` leaves it to the engine.
    #[inline]
    fn transfer(self, file: &BackingFile, wanted: &Transfer<'_>) -> Option<Result<u32, Errno>> {
        let writes = match wanted.direction {
            Direction::Write { dsync: false } if self.writes => true,
            Direction::Read if self.reads => false,
            _ => return None,
        };
        let len = wanted.bufs.iter().map(IoBuf::len).sum::<usize>();
        let page = page_size();
        let whole = wanted.offset.is_multiple_of(page as u64) && len.is_multiple_of(page);
        if len > MAX_INLINE || writes && !whole {
            return None;
        }
        loop {
            match transfer(file.file().as_fd(), wanted.bufs, wanted.offset, writes, false) {
                Err(Errno::INTR) => {}
                // At most `MAX_INLINE`, so the cast does not truncate.
                result => return Some(result.map(|moved| moved as u32)),
            }
        }
    }
}
