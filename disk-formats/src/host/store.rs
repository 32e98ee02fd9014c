//! The storage of a format's metadata: a file, the content of another disk, or in crash tests a record of every write
//! that can be cut anywhere.

use std::io;
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, seek};
use rustix::io::{Errno, retry_on_intr};

use crate::error::IoError;
use crate::host;
use crate::host::backing::BackingFile;

/// A growing run of bytes with explicit flushes.
///
/// # Contract
/// - Space gained by [`set_size`](Self::set_size) and [`reserve`](Self::reserve) reads as zeros.
/// - Nothing is on stable storage, and nothing is ordered, before [`sync`](Self::sync) has returned; this holds for
///   changes of the size, too.
/// - After a failed [`sync`](Self::sync) of a file, every later one fails, and so does everything that changes it
///   ([`IoError::FlushLost`]).
pub(crate) trait Store: Send + Sync {
    /// For messages.
    fn path(&self) -> &Path;

    /// Bytes now.
    fn len(&self) -> io::Result<u64>;

    /// Read exactly `data` from `offset`.
    fn read_at(&self, data: &mut [u8], offset: u64) -> io::Result<()>;

    /// Write exactly `data` at `offset`, growing as needed. Whole sectors of 512 bytes.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Cut or grow.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Cut to the size from before an attempt to grow that has failed, also where a flush was what failed: what lay behind was
    /// never acknowledged.
    fn cut_back(&self, size: u64) -> io::Result<()> {
        self.set_size(size)
    }

    /// Grow to `end` at the least, with `[start, end)` allocated where the host supports it.
    fn reserve(&self, start: u64, end: u64) -> io::Result<()>;

    /// Make a range inside read as zeros; `may_unmap` allows to deallocate it.
    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError>;

    /// Have `len` bytes at `to` share the storage of those of `source` at `from`. As a write it is not on stable
    /// storage before [`sync`](Self::sync). After an error the range holds anything.
    ///
    /// # Errors
    /// EOPNOTSUPP, or another error of the file system: the caller reads and writes instead.
    fn share(&self, source: &dyn Store, from: u64, to: u64, len: u64) -> Result<(), Errno>;

    /// Flush: everything done so far is on stable storage.
    fn sync(&self) -> io::Result<()>;

    /// Check before what was written is read again: after a failed [`sync`](Self::sync) the host may return the old
    /// content.
    ///
    /// # Errors
    /// [`IoError::FlushLost`].
    fn intact(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// Where data begin that the host stores, from `offset` on: what lies before reads as zeros. `offset` where the
    /// host cannot report it; the largest number where there are none.
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// The file, where it is one.
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

    fn cut_back(&self, size: u64) -> io::Result<()> {
        host::set_len(self.file(), size)
    }

    fn reserve(&self, start: u64, end: u64) -> io::Result<()> {
        self.check_flushes()?;
        let len = end.saturating_sub(start);
        match retry_on_intr(|| host::fallocate(self.file(), FallocateFlags::empty(), start, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => match Store::len(self)? {
                have if have < end => self.set_size(end),
                _ => Ok(()),
            },
            done => Ok(done?),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, may_unmap: bool) -> Result<(), IoError> {
        self.write_zeroes(offset, len, may_unmap)
    }

    fn share(&self, source: &dyn Store, from: u64, to: u64, len: u64) -> Result<(), Errno> {
        let source = source.backing().ok_or(Errno::OPNOTSUPP)?;
        // The caller writes instead, and that reports the failed flush.
        self.check_flushes().map_err(|_| Errno::IO)?;
        retry_on_intr(|| host::clone_range(source.file(), from, len, self.file(), to))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.sync()?)
    }

    fn intact(&self) -> Result<(), IoError> {
        self.check_flushes()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        match seek(self.file(), SeekFrom::Data(offset)) {
            Ok(data) => Ok(data),
            Err(Errno::NXIO) if offset < Store::len(self)? => Ok(u64::MAX),
            Err(_) => Ok(offset),
        }
    }

    fn backing(&self) -> Option<&BackingFile> {
        Some(self)
    }
}

/// An operating-system error as that of a request.
pub(crate) fn io_error(error: &io::Error) -> IoError {
    // Of a store inside a disk.
    if let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<IoError>()) {
        return *error;
    }
    Errno::from_io_error(error).map_or(IoError::Damaged("a file ends inside the image"), IoError::from)
}

/// Bytes looked at, or copied, at once.
const CHUNK: u64 = 1 << 20;

/// The last sector of a range that is not all zeros. What the host does not store is not read.
pub(crate) fn last_nonzero(store: &dyn Store, from: u64, to: u64) -> io::Result<Option<u64>> {
    let mut bytes = vec![0; CHUNK.min(to.saturating_sub(from)) as usize];
    let mut end = to;
    while end > from {
        let part = (end - from).min(CHUNK);
        if store.next_data(end - part)? < end {
            let chunk = bytes.get_mut(..part as usize).unwrap_or_default();
            store.read_at(chunk, end - part)?;
            if let Some(at) = chunk.iter().rposition(|byte| *byte != 0) {
                return Ok(Some((end - part + at as u64) / 512 * 512));
            }
        }
        end -= part;
    }
    Ok(None)
}

/// Copy `len` bytes of a store to another place of it: the runs do not overlap.
pub(crate) fn copy_run(store: &dyn Store, from: u64, to: u64, len: u64) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK.min(len) as usize];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(CHUNK);
        let chunk = bytes.get_mut(..part as usize).unwrap_or_default();
        store.read_at(chunk, from + done)?;
        store.write_at(chunk, to + done)?;
        done += part;
    }
    Ok(())
}
