//! Inline (blocking) I/O: transfers that the queue's own thread makes, if the owner allows the thread to block. These are transfers that rarely
//! wait, or cannot: writes to the page cache, which io_uring would pass to worker threads (waking one costs several times as much as the
//! copy), and reads of what the page cache has, which take two system calls less (to submit, and to be woken).

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::fstatfs;
use rustix::io::Errno;

use crate::contract::iobuf::IoBuf;
use crate::host::backing::BackingFile;
use crate::host::memory::page_size;
use crate::host::sys::RwMode;
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
        if let Some(inline) = self.files.get_mut(wanted.file as usize)
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
    /// How reads are made. [`RwMode::ReadCached`]: the engine reads what the page cache does not have, because that waits for the disk.
    reads: Option<RwMode>,
}

impl InlineIo {
    /// tmpfs has all data in memory, but not the flag to read without waiting.
    fn of(file: &BackingFile) -> Self {
        if file.direct().is_some() || file.device().is_some() {
            return Self::default();
        }
        let magic = fstatfs(file.file()).map_or(0, |statfs| statfs.f_type);
        let mode = if magic == libc::TMPFS_MAGIC { RwMode::Read } else { RwMode::ReadCached };
        Self { writes: WRITE_BACK.contains(&magic), reads: Some(mode) }
    }

    /// Make the transfer inline; `None` leaves it to the engine.
    #[inline]
    fn transfer(&mut self, file: &BackingFile, wanted: &Transfer<'_>) -> Option<Result<u32, Errno>> {
        let mode = match wanted.direction {
            Direction::Write { dsync: false } if self.writes => RwMode::Write,
            Direction::Write { .. } => return None,
            Direction::Read => self.reads?,
        };
        let len = wanted.bufs.iter().map(IoBuf::len).sum::<usize>();
        let page = page_size();
        let whole = wanted.offset.is_multiple_of(page as u64) && len.is_multiple_of(page);
        if len > MAX_INLINE || mode == RwMode::Write && !whole {
            return None;
        }
        loop {
            match (mode, transfer(file.file().as_fd(), wanted.bufs, wanted.offset, mode)) {
                (_, Err(Errno::INTR)) => {}
                (RwMode::ReadCached, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                    self.reads = None;
                    return None;
                }
                // Errors are the engine's to find. So is the end of the file: Linux 5.9 and 5.10 return 0 for data that are not cached.
                (RwMode::ReadCached, Ok(0) | Err(_)) => return None,
                // At most `MAX_INLINE`, so the cast does not truncate.
                (_, result) => return Some(result.map(|moved| moved as u32)),
            }
        }
    }
}
