//! Storage for a format's metadata: a file, a file with its VHDX log applied in memory, a nested image's range of another disk, or in
//! crash tests a recording file.

use std::io;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, retry_on_intr};

use crate::contract::error::IoError;
use crate::host;
use crate::host::backing::BackingFile;

/// A resizable byte array with explicit flushes.
///
/// # Contract
/// - Space added by [`set_size`](Self::set_size) and [`reserve`](Self::reserve) reads as zeros.
/// - Until [`sync`](Self::sync) has returned, a power failure may lose any change since the last `sync`, of data or size, and keep any
///   other.
/// - After a failed [`sync`](Self::sync) of a file, every later `sync` and every change of the file, except
///   [`undo_growth`](Self::undo_growth), fails with [`IoError::FlushLost`].
pub(crate) trait Store: Send + Sync {
    /// The path, for messages.
    fn path(&self) -> &Path;

    /// Current size in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fill `data` from `offset`.
    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()>;

    /// Write all of `data` at `offset`, in whole sectors of 512 bytes. The store grows as needed.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Truncate or extend.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Truncate to the size before a failed attempt to grow. Allowed after a failed flush, too: the data beyond `size`
    /// were never acknowledged.
    fn undo_growth(&self, size: u64) -> io::Result<()> {
        self.set_size(size)
    }

    /// Grow to at least `end`. `[start, end)` is allocated if the host supports that.
    fn reserve(&self, start: u64, end: u64) -> io::Result<()>;

    /// Make an existing range read as zeros. `may_unmap` allows deallocating it.
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError>;

    /// Clone `len` bytes of `source` at `from` to `to`, by sharing storage. Like a write, the clone is not on stable
    /// storage before [`sync`](Self::sync). After an error the content of the range is undefined.
    ///
    /// # Errors
    /// EOPNOTSUPP, or another error of the file system: the caller copies the data instead.
    fn clone_range(&self, source: &dyn Store, from: u64, to: u64, len: u64) -> Result<(), Errno>;

    /// Flush: all earlier changes are on stable storage afterwards.
    fn sync(&self) -> io::Result<()>;

    /// Call this before reading back data that were written: after a failed [`sync`](Self::sync) the host may return
    /// the old content.
    ///
    /// # Errors
    /// [`IoError::FlushLost`].
    fn check_flushes(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// Offset of the first data that the host stores at or after `offset`. The range before it reads as zeros. Returns
    /// `offset` if the host cannot report it, and `u64::MAX` if there are no data.
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// Whether new space need not be allocated, because what is not written is to stay a hole.
    fn keeps_holes(&self) -> bool {
        false
    }

    /// The file, if the store is a file.
    fn backing(&self) -> Option<&BackingFile> {
        None
    }
}

impl Store for BackingFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(seek(self.file(), SeekFrom::End(0))?)
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(data, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.check_flushes()?;
        host::set_len(self.file(), size)
    }

    fn undo_growth(&self, size: u64) -> io::Result<()> {
        host::set_len(self.file(), size)
    }

    fn reserve(&self, start: u64, end: u64) -> io::Result<()> {
        self.reserve_range(start, end)
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.write_zeroes(offset, len, may_unmap)
    }

    fn clone_range(&self, source: &dyn Store, from: u64, to: u64, len: u64) -> Result<(), Errno> {
        let source = source.backing().ok_or(Errno::OPNOTSUPP)?;
        // The caller copies instead, and the copy reports the failed flush.
        self.check_flushes().map_err(|_| Errno::IO)?;
        retry_on_intr(|| host::clone_range(source.file(), from, len, self.file(), to))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.sync()?)
    }

    fn check_flushes(&self) -> Result<(), IoError> {
        self.check_flushes()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        match seek(self.file(), SeekFrom::Data(offset)) {
            Ok(data) => Ok(data),
            Err(Errno::NXIO) if offset < Store::len(self)? => Ok(u64::MAX),
            Err(_) => Ok(offset),
        }
    }

    fn keeps_holes(&self) -> bool {
        self.keeps_holes()
    }

    fn backing(&self) -> Option<&BackingFile> {
        Some(self)
    }
}

/// Fill `data` from `offset`, with zeros behind the end of the store.
pub(crate) fn read_padded(store: &dyn Store, data: &mut [u8], offset: u64) -> io::Result<()> {
    match store.read_at(data, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let there = store.len()?.saturating_sub(offset).min(data.len() as u64);
            let (inside, behind) = data.split_at_mut(there as usize);
            behind.fill(0);
            store.read_at(inside, offset)
        }
        done => done,
    }
}

/// Convert an error of the operating system to an error of a request.
pub(crate) fn io_error(error: io::Error) -> IoError {
    // A store inside another disk wraps an `IoError`.
    if let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<IoError>()) {
        return *error;
    }
    Errno::from_io_error(&error).map_or(IoError::Damaged("a file ends inside the image"), IoError::from)
}

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Bytes that are examined at once.
const CHUNK: u64 = 1 << 20;

/// Offset of the last sector of a range that is not all zeros. Skips ranges that the host does not store.
pub(crate) fn last_nonzero(store: &dyn Store, from: u64, to: u64) -> io::Result<Option<u64>> {
    last_nonzero_of(store, from, to, |_| true)
}

/// As [`last_nonzero`], of the sectors for whose offset `counts` returns `true`.
pub(crate) fn last_nonzero_of(
    store: &dyn Store,
    from: u64,
    to: u64,
    counts: impl Fn(u64) -> bool,
) -> io::Result<Option<u64>> {
    let mut bytes = vec![0; CHUNK.min(to.saturating_sub(from)) as usize];
    let mut end = to;
    while end > from {
        let start = ((end - 1) / CHUNK * CHUNK).max(from);
        if store.next_data(start)? < end {
            let chunk = bytes.get_mut(..(end - start) as usize).unwrap_or_default();
            store.read_at(chunk, start)?;
            for at in (start / SECTOR..end.div_ceil(SECTOR)).rev().map(|sector| sector * SECTOR) {
                let part = at.max(start) - start..(at + SECTOR).min(end) - start;
                let sector = chunk.get(part.start as usize..part.end as usize).unwrap_or_default();
                if sector.iter().any(|byte| *byte != 0) && counts(at) {
                    return Ok(Some(at));
                }
            }
        }
        end = start;
    }
    Ok(None)
}
