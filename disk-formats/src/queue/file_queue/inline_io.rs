//! Inline (blocking) I/O: transfers that the queue's own thread makes where the owner allows it to block. These are
//! transfers that io_uring would hand to its worker threads although they hardly ever wait: waking a worker costs
//! several times as much as the copy.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::fstatfs;
use rustix::io::Errno;

use crate::formats::format::Format;
use crate::host::backing::BackingFile;
use crate::host::iobuf::IoBuf;
use crate::host::memory::page_size;
use crate::queue::engine::{Direction, Ended, Transfer, transfer};

/// Bytes at the most: workers do larger ones side by side.
const MOST: usize = 256 << 10;

/// File systems that keep what is written in the page cache and write it back later. Others may have it go to a server at once.
const WRITE_BACK: [libc::__fsword_t; 4] =
    [libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC, libc::TMPFS_MAGIC];

/// The inline transfers of a queue. None is made before [`allow`](Self::allow).
#[derive(Debug, Default)]
pub(super) struct Inline {
    /// For each file, the transfers that are made inline.
    files: Vec<InlineIo>,
    ended: VecDeque<Ended>,
}

impl Inline {
    /// From now on make transfers of these files inline, `depth` requests at a time.
    pub(super) fn allow(&mut self, files: &[Arc<BackingFile>], depth: usize) {
        self.files = files.iter().map(|file| InlineIo::of(file)).collect();
        self.ended.reserve(depth);
    }

    /// Make the transfer; `false` leaves it to the engine.
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

    /// A transfer that has ended and was not handed out. It does not wake the queue.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Whether every transfer that has ended was handed out.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// Forget the transfers that have ended.
    pub(super) fn clear(&mut self) {
        self.ended.clear();
    }
}

/// Which transfers of a file are made inline.
#[derive(Clone, Copy, Debug, Default)]
struct InlineIo {
    /// Of whole pages: parts of pages may have to be read before.
    writes: bool,
    reads: bool,
}

impl InlineIo {
    /// Writes to the page cache; and reads of files that are in memory. Other file systems read for io_uring without its workers
    /// what they have in the page cache; the remainder has to wait for the disk.
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
        if len > MOST || writes && !whole {
            return None;
        }
        loop {
            match transfer(file.file().as_fd(), wanted.bufs, wanted.offset, writes, false) {
                Err(Errno::INTR) => {}
                // At most `MOST`.
                result => return Some(result.map(|moved| moved as u32)),
            }
        }
    }
}
